"""gmm with a recipe: operands quantised on the way to a product in FP8, and its gradients, products in FP8 as well.

Each operand is quantised along the dim that its product sums over (docs/fp8.md):

    y  = x @ w       rows of x, w along k
    dx = dy @ w^T    rows of dy, w along n
    dw = x^T @ dy    x and dy along the rows of each group: their column-wise copies

| primitive | operands | result |
|---|---|---|
| tangent_p | group_sizes [G], group_offset [], FP8 with scales of w for dx and of x for dw, tangents of the operands `of` | [m,n] |

tangent_p stands for the tangent of y, which is linear in those of the operands. It is there to be transposed: that makes the
gradients. Nothing computes it, so there is no forward mode. What reverse mode keeps are its operands: FP8 alone.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from .. import _scaled as _modes
from .._errors import wrong_type
from . import _arguments, _qarray, _scaled
from ._primitives import (
    batch_shape,
    bias_grad_p,
    cotangent_dtype,
    cotangent_of,
    define_batching,
    result_aval,
    unify,
)

_E4M3 = np.dtype(jnp.float8_e4m3fn)


class Call(NamedTuple):
    """What a product is told beside its arrays."""

    op: str
    recipe: str
    transpose_rhs: bool
    out_dtype: np.dtype
    fast_accumulation: bool

    @property
    def product(self):
        """Parameters that its three products share."""
        mode = _modes.MODES[self.recipe]
        return {"lhs_mode": mode, "rhs_mode": mode, "fast_accumulation": self.fast_accumulation}


def operands(op, recipe, names, values, dims):
    """The arrays of a product with a recipe."""
    _modes.check_recipe(op, recipe)
    for name, value in zip(names, values):
        if _scaled.is_scaled(value) or _qarray.is_qarray(value):
            expected = f"an array of {', '.join(_arguments.FP8_RESULTS)}, because recipe = {recipe!r} quantises it"
            raise wrong_type(op, name, value, expected)
    each = zip(names, values, dims)
    return [_arguments.array(op, *one, _arguments.FP8_RESULTS) for one in each]


def out_dtype(op, lhs, preferred):
    """The result's type: lhs's, or what is asked for."""
    return _arguments.fp8_out_dtype(op, lhs.dtype if preferred is None else preferred)


def gmm(call, lhs, rhs, sizes, offset, bias):
    """The product of lhs [m, k] and rhs [g, k, n], or [g, n, k] with call.transpose_rhs. bias: () or one of [g, n]."""
    lhs, rhs, sizes, offset, *bias = unify(lhs, rhs, sizes, offset, *bias)
    return _product(call, lhs, rhs, sizes, offset, bias)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _product(call, lhs, rhs, sizes, offset, bias):
    return _forward(call, lhs, rhs, sizes, offset, bias, ())[0]


@functools.partial(_product.defjvp, symbolic_zeros=True)
def _product_jvp(call, primals, tangents):
    lhs, rhs, sizes, offset, bias = primals
    named = {"lhs": tangents[0], "rhs": tangents[1]} | {"bias": dot for dot in tangents[4]}
    dots = {name: dot for name, dot in named.items() if not isinstance(dot, SymbolicZero)}
    out, kept = _forward(call, lhs, rhs, sizes, offset, bias, tuple(dots))
    tangent = tangent_p.bind(
        sizes,
        offset,
        *kept,
        *dots.values(),
        call=call,
        of=tuple(dots),
        shape=out.shape,
        batch_rank=0,
    )
    return out, tangent


def _forward(call, lhs, rhs, sizes, offset, bias, of):
    """(the product, tangent_p's FP8 operands for gradients `of` these)"""
    quantised = functools.partial(_quantised, call.recipe, dtype=_E4M3)
    rows, copy = quantised(lhs, sizes, rows=True, columns="rhs" in of)
    if call.transpose_rhs:  # stored along k
        along_k, along_n = quantised(rhs, rows=True, columns="lhs" in of)
    else:
        along_n, along_k = quantised(rhs, rows="lhs" in of, columns=True)
    (out,) = _scaled.scaled_gmm_p.bind(
        *rows,
        *along_k,
        sizes,
        offset,
        *bias,
        transpose_rhs=True,
        has_bias=bool(bias),
        out_dtype=call.out_dtype,
        batch_rank=0,
        **call.product,
    )
    return out, [*(along_n or ()), *(copy or ())]


def _quantised(recipe, x, *sizes, dtype, rows, columns, batch_rank=0):
    """((data, scales) along the last dim, those of the copy along the other): None for what isn't wanted."""
    if not rows and not columns:
        return None, None
    made = _scaled.quantize_p.bind(
        x,
        *sizes,
        rows=rows,
        columns=columns,
        mode=_modes.MODES[recipe],
        dtype=dtype,
        scale_dtype=np.dtype(jnp.float8_e8m0fnu if recipe == "mx" else jnp.float32),
        power_of_two=False,
        amax_floor=0.0,
        grouped=bool(sizes),
        batch_rank=batch_rank,
    )
    return (made[:2] if rows else None), (made[-2:] if columns else None)


# ---- the tangent and its transpose -------------------------------------------------------------

tangent_p = Primitive("cadre_recipe_tangent")


def _aval(sizes, *others, call, shape, batch_rank, **_):
    return result_aval(sizes, batch_shape((sizes, *others), batch_rank), shape, call.out_dtype)


def _refuse_forward_mode(*_, call, **__):
    """What would compute a tangent: its values, its lowering, or a tangent of it."""
    raise NotImplementedError(
        f"{call.op}: forward mode is asked for with recipe = {call.recipe!r}, expected reverse mode: jax.grad or jax.vjp"
    )


def _transpose(cotangent, *operands, call, of, shape, batch_rank):
    nothing = (None,) * (len(operands) - len(of))
    if type(cotangent) is ad.Zero:
        return nothing + (None,) * len(of)
    (sizes, offset, *kept), dots = operands[: len(nothing)], operands[len(nothing) :]
    asked = {name: dot for name, dot in zip(of, dots) if ad.is_undefined_primal(dot)}
    rows, columns = _quantised(
        call.recipe,
        cotangent,
        sizes,
        dtype=np.dtype(_modes.GRADIENTS[call.recipe]),
        rows="lhs" in asked,
        columns="rhs" in asked,
        batch_rank=batch_rank,
    )
    groups = sizes, offset
    made = {}
    if "lhs" in asked:
        (made["lhs"],) = _scaled.scaled_gmm_p.bind(
            *rows,
            *kept[:2],
            *groups,
            transpose_rhs=True,
            has_bias=False,
            out_dtype=cotangent_dtype(asked["lhs"], cotangent, batch_rank),
            batch_rank=batch_rank,
            **call.product,
        )
    if "rhs" in asked:
        copies = (columns, kept[-2:]) if call.transpose_rhs else (kept[-2:], columns)
        (made["rhs"],) = _scaled.scaled_tgmm_p.bind(
            *copies[0],
            *copies[1],
            *groups,
            lhs_columns=True,
            rhs_columns=True,
            num_groups=asked["rhs"].aval.shape[batch_rank],
            out_dtype=cotangent_dtype(asked["rhs"], cotangent, batch_rank),
            batch_rank=batch_rank,
            **call.product,
        )
    if "bias" in asked:
        made["bias"] = bias_grad_p.bind(
            cotangent,
            *groups,
            num_groups=asked["bias"].aval.shape[batch_rank],
            out_dtype=cotangent_dtype(asked["bias"], cotangent, batch_rank),
            batch_rank=batch_rank,
        )
    bars = {
        name: cotangent_of(asked[name], bar, cotangent, batch_rank) for name, bar in made.items()
    }
    return nothing + tuple(bars.get(name) for name in of)


tangent_p.def_impl(_refuse_forward_mode)
tangent_p.def_abstract_eval(_aval)
define_batching(tangent_p)
mlir.register_lowering(tangent_p, _refuse_forward_mode)
ad.primitive_jvps[tangent_p] = _refuse_forward_mode
ad.primitive_transposes[tangent_p] = _transpose
