"""The experts of a layer with a recipe: products in FP8 with row ops and the activation between them, as in the torch front
(docs/decisions/0043).

A token's weight multiplies its activated row before that is quantised, instead of the row of the result. Kept for backward: the
column-wise copies of the gathered and of the activated rows, the weights as their gradients' inputs read them, the pre-activation
in FP8, the routing; x with weights on the input.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ._layer_composed import activate_wide
from ._ops import gmm_of
from ._primitives import gmm_p, unify
from ._quantize import dequantize, quantize

#: How the pre-activation is kept, whatever the recipe: the finest scales that any type of gradient can read.
_PREACT_MODE = "block_128"


def experts(op, o, recipe, *, transposed, weights_on_input, precision, **activation):
    """[t, h] from the operands of a layer by name, those that are given. `activation`: what activate_wide takes."""
    o = dict(zip(o, unify(*map(_gathered_from_mesh, o.values())), strict=True))
    del precision  # f32 has no part in it
    dtype, rows_and_slots = o["x"].dtype, (o["source_row"], o["slot_row"])
    factors = _of_rows(o["weights"], *rows_and_slots) if "weights" in o else None
    of_input, of_activated = (factors, None) if weights_on_input else (None, factors)

    def product(rows, weight, bias, out_dtype=dtype):
        return gmm_of(
            op,
            rows,
            o[weight],
            o["group_sizes"],
            names=("rows", weight),
            transpose_rhs=not transposed,
            bias=bias,
            group_offset=o["group_offset"],
            preferred_element_type=out_dtype,
            recipe=recipe,
        )

    rows = _gathered(o["x"], of_input, *rows_and_slots)
    preact = product(rows, "w13", o.get("bias13"))
    inner = activated(functools.partial(activate_wide, **activation), preact, of_activated, o["group_sizes"])
    if of_activated is None or "bias2" not in o:
        y = product(inner, "w2", o.get("bias2"))
    else:
        y = product(inner, "w2", None, jnp.float32)
        bias = _weighed_bias(of_activated, o["bias2"], o["group_sizes"], o["group_offset"])
        y = (y + bias).astype(dtype)
    return _combined(y, *rows_and_slots).astype(dtype)


def _gathered_from_mesh(array):
    """What an explicit mesh has in parts, whole, as calls of the handlers read it."""
    sharding = jax.typeof(array).sharding
    if all(axis is None for axis in sharding.spec):
        return array
    return jax.sharding.reshard(array, sharding.update(spec=PartitionSpec(*(None,) * array.ndim)))


@jax.checkpoint  # neither the rows of the bias nor their products are kept
def _weighed_bias(factors, bias, sizes, offset):
    """factors[r] * bias[group(r)] in f32, zero in rows of no local group: a product over no inner dim plus the bias."""
    m, (groups, n) = factors.shape[0], bias.shape
    nothing = jnp.zeros((m, 0), jnp.float32), jnp.zeros((groups, 0, n), jnp.float32)
    operands = unify(*nothing, sizes, offset, bias.astype(jnp.float32))
    rows = gmm_p.bind(*operands, transpose_rhs=False, out_dtype=jnp.float32, batch_rank=0, precision=0)
    return factors[:, None] * rows


def _of_rows(weights, source_row, slot_row):
    """The weight of each row in f32 [m]; of rows that no slot has, zero."""
    m = source_row.shape[0]
    places = jnp.where(slot_row < 0, m, slot_row)
    factors = unify(jnp.zeros(m, jnp.float32), weights)[0]
    return factors.at[places].set(weights.astype(jnp.float32), mode="drop")


# ---- the activation --------------------------------------------------------------------------------


def _weighed(function, preact, factors):
    wide = function(preact.astype(jnp.float32))
    return wide if factors is None else wide * factors[:, None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activated(function, preact, factors, sizes):
    """function(preact [m, n]), each row times its factor [m] or None, in f32: what is quantised next is rounded once. The
    pre-activation is kept in FP8, and the gradient has its type."""
    return _weighed(function, preact, factors)


def _activated_forward(function, preact, factors, sizes):
    kept = quantize(preact, _PREACT_MODE, sizes), jnp.zeros((), preact.dtype), factors, sizes
    return _weighed(function, preact, factors), kept


def _activated_backward(function, kept, gradient):
    preact, like, factors, sizes = kept
    preact = dequantize(preact, sizes, out_dtype=like.dtype)
    _, transposed = jax.vjp(functools.partial(_weighed, function), preact, factors)
    return *transposed(gradient.astype(like.dtype).astype(gradient.dtype)), None


activated.defvjp(_activated_forward, _activated_backward)


# ---- rows by token ---------------------------------------------------------------------------------


@jax.custom_vjp
def _gathered(x, factors, source_row, slot_row):
    """The row of x [t, h] that each row is, or in f32 that times its factor. Rows of no token hold anything."""
    rows = x[jnp.maximum(source_row, 0)]
    return rows if factors is None else rows.astype(jnp.float32) * factors[:, None]


def _gathered_forward(x, factors, source_row, slot_row):
    kept = None if factors is None else x
    return _gathered(x, factors, source_row, slot_row), (kept, factors, source_row, slot_row)


def _gathered_backward(kept, gradient):
    x, factors, source_row, slot_row = kept
    if factors is None:
        return _summed(gradient, slot_row).astype(gradient.dtype), None, None, None
    wide = gradient.astype(x.dtype).astype(jnp.float32)
    of_factors = (wide * x[jnp.maximum(source_row, 0)]).sum(1)
    dx = _summed(wide * factors[:, None], slot_row).astype(x.dtype)
    return dx, jnp.where(source_row < 0, 0, of_factors), None, None


_gathered.defvjp(_gathered_forward, _gathered_backward)


@jax.custom_vjp
def _combined(y, source_row, slot_row):
    """[t, h] in f32: the sum of each token's rows."""
    return _summed(y, slot_row)


def _combined_forward(y, source_row, slot_row):
    return _summed(y, slot_row), (jnp.zeros((), y.dtype), source_row)


def _combined_backward(kept, gradient):
    like, source_row = kept
    rows = gradient.astype(like.dtype)[jnp.maximum(source_row, 0)]
    return jnp.where(source_row[:, None] < 0, 0, rows), None, None


_combined.defvjp(_combined_forward, _combined_backward)


def _summed(rows, slot_row):
    """In f32 and in the order of the slots."""
    tokens, top_k = slot_row.shape
    out = unify(jnp.zeros((tokens, rows.shape[1]), jnp.float32), rows, slot_row)[0]
    for slot in range(top_k) if rows.shape[0] else ():
        row = slot_row[:, slot, None]
        out = out + jnp.where(row < 0, 0, rows[jnp.maximum(row[:, 0], 0)].astype(jnp.float32))
    return out
