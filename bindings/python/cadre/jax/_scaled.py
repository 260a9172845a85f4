"""ScaledArray, FP8 data with their scales; the primitives that make and multiply them, which only handlers compute.

| primitive | operands | results |
|---|---|---|
| quantize_p | x [m,k] or [g,n,k], group_sizes [G]? | data and scales with `rows`, the same of the copy with `columns` |
| dequantize_p | data, scales, group_sizes [G]? | [m,k] or [g,n,k] |
| amax_p | x, group_sizes [G]? | in the shape of the scales |
| scaled_gmm_p | lhs, its scales, rhs, its scales, group_sizes [G], group_offset [], bias [g,n]? | [m,n] |
| scaled_tgmm_p | lhs, its scales, rhs, its scales, group_sizes [G], group_offset [] | [g,k,n] |

None is differentiable. A product of arrays with a recipe is composed of them, and is (_recipes.py).
"""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.extend.core import Primitive
from jax.interpreters import ad

from .. import _scaled
from .._errors import renamed, wrong_type, wrong_value
from . import _arguments, _lowering, _workspace
from ._primitives import batch_shape, define_batching, result_aval, run_compiled, unify

SCALES = ("float32", "float8_e8m0fnu")


class ScaledArray(_scaled.ScaledTensor):
    """Quantised data: a value is `data` times the scale that belongs to it. A pytree, so it goes through jit and shard_map.

    data: e4m3 or e5m2, rows [m, k] or weights [g, n, k] (or [g, k, n]). scales, by mode, for rows | for weights:
      "tensor"     [1] f32                      | [1] or [g] f32
      "row"        [m] f32                      | [g, n] f32
      "block_128"  [m, ceil(k/128)] f32 or e8m0 | [g, ceil(n/128), ceil(k/128)] f32 or e8m0
      "mx"         [m, ceil(k/32)] e8m0         | [g, n, ceil(k/32)] e8m0
    Weights stored [g, k, n] have the last two dims of block and mx scales exchanged.
    columns: data is the column-wise copy that quantize makes for tgmm, [k, capacity], with scales along the rows of each
    group (docs/fp8.md has the layout).

    >>> data = jnp.ones((3, 4, 5), jnp.float8_e4m3fn)
    >>> weights = cadre.jax.ScaledArray(data, jnp.full(3, 0.5), "tensor")
    >>> [leaf.shape for leaf in jax.tree.leaves(weights)]
    [(3, 4, 5), (3,)]
    """

    __slots__ = ()
    data: Any
    scales: Any


def _children(array):
    return (array.data, array.scales), (array.mode, array.columns)


def _children_with_keys(array):
    children, fixed = _children(array)
    keys = (jax.tree_util.GetAttrKey(name) for name in ("data", "scales"))
    return tuple(zip(keys, children)), fixed


jax.tree_util.register_pytree_with_keys(
    ScaledArray,
    _children_with_keys,
    lambda fixed, children: ScaledArray(*children, fixed[0], columns=fixed[1]),
    _children,
)
export.register_pytree_node_serialization(
    ScaledArray,
    serialized_name="cadre.jax.ScaledArray",
    serialize_auxdata=lambda fixed: json.dumps(fixed).encode(),
    deserialize_auxdata=lambda text: tuple(json.loads(text)),
)


is_copy = _scaled.is_copy


def is_scaled(*values):
    """Whether any of these operands is quantised."""
    return any(isinstance(value, _scaled.ScaledTensor) for value in values)


def operand(op, name, value, dims, *, columns=False):
    """(data, scales) of a ScaledArray whose data have these dims; `columns`: it may also be a column-wise copy."""
    if not is_scaled(value):
        raise wrong_type(op, name, value, "a ScaledArray because the other operand is one")
    if value.columns and not columns:
        expected = f"False: {op} takes rows, a column-wise copy is for tgmm"
        raise wrong_value(op, f"{name}.columns", True, expected)
    dims = ("k", "capacity") if value.columns else dims
    data = _arguments.array(op, f"{name}.data", value.data, dims, _arguments.FP8)
    scales = _arguments.as_array(op, f"{name}.scales", value.scales)
    if scales.dtype.name not in SCALES:
        expected = " or ".join(SCALES)
        raise TypeError(f"{op}: {name}.scales.dtype = {scales.dtype.name}, expected {expected}")
    return data, scales


# ---- what the primitives make ----------------------------------------------------------------


def _quantize_aval(
    x, *sizes, rows, columns, mode, dtype, scale_dtype, batch_rank, **_
):
    batch, shape = batch_shape((x, *sizes), batch_rank), x.shape[batch_rank:]
    shapes = []
    if rows:
        shapes.append((shape, _scaled.scale_shape(mode, shape)))
    if columns and len(shape) == 3:
        turned = (shape[0], shape[2], shape[1])
        shapes.append((turned, _scaled.scale_shape(mode, turned)))
    elif columns:
        groups = sizes[0].shape[-1] if sizes else 1
        shapes.append(_scaled.column_shapes(mode, shape, groups))
    return [
        result_aval(x, batch, each, of)
        for pair in shapes
        for each, of in zip(pair, (dtype, scale_dtype), strict=True)
    ]


def _copies(params):
    """The results of quantize that a copy is: what lies behind its last group is written by nobody."""
    if not params["columns"]:
        return ()
    return (2, 3) if params["rows"] else (0, 1)


def _dequantize_aval(data, scales, *sizes, shape, out_dtype, batch_rank, **_):
    return [result_aval(data, batch_shape((data, scales, *sizes), batch_rank), shape, out_dtype)]


def _amax_aval(x, *sizes, mode, batch_rank, **_):
    shape = _scaled.scale_shape(mode, x.shape[batch_rank:])
    return [result_aval(x, batch_shape((x, *sizes), batch_rank), shape, np.float32)]


def _gmm_aval(*operands, transpose_rhs, out_dtype, batch_rank, **_):
    lhs, _, rhs, *_ = operands
    n = rhs.shape[batch_rank + (1 if transpose_rhs else 2)]
    shape = (lhs.shape[batch_rank], n)
    return [result_aval(lhs, batch_shape(operands, batch_rank), shape, out_dtype)]


def _tgmm_aval(*operands, num_groups, lhs_columns, rhs_columns, out_dtype, batch_rank, **_):
    lhs, _, rhs, *_ = operands
    k, n = (
        x.shape[batch_rank + (0 if columns else 1)]
        for x, columns in ((lhs, lhs_columns), (rhs, rhs_columns))
    )
    return [result_aval(lhs, batch_shape(operands, batch_rank), (num_groups, k, n), out_dtype)]


# ---- registration ----------------------------------------------------------------------------

_AVALS = {}


def _none(params):
    return ()


def _define(op, aval, attributes, zeroed=_none):
    """`attributes`: the parameters that the handler is told. `zeroed`: results that begin as zeros."""
    primitive = Primitive(f"cadre_{op}")
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(run_compiled, primitive))
    primitive.def_abstract_eval(aval)
    _AVALS[primitive] = aval
    define_batching(primitive)
    ad.primitive_jvps[primitive] = functools.partial(_refuse_derivative, op.removeprefix("scaled_"))

    def told(params):
        return {name: params[name] for name in (*attributes, "batch_rank")}

    _lowering.register_handler(primitive, op, told, zeroed)
    return primitive


def _refuse_derivative(op, *_, **__):
    raise NotImplementedError(
        f"{op}: a derivative through FP8 data is asked for, expected none: gmm, grouped_linear and ragged_dot have the first "
        "one, in reverse mode, of arrays of f32, bf16 or f16 with a recipe"
    )


quantize_p = _define(
    "quantize",
    _quantize_aval,
    ("rows", "columns", "mode", "power_of_two", "amax_floor", "grouped"),
    _copies,
)
dequantize_p = _define("dequantize", _dequantize_aval, ("mode", "columns", "grouped"))
amax_p = _define("amax", _amax_aval, ("mode", "grouped"))
_PRODUCT = ("lhs_mode", "rhs_mode", "fast_accumulation")
scaled_gmm_p = _define("scaled_gmm", _gmm_aval, (*_PRODUCT, "transpose_rhs", "has_bias"))
scaled_tgmm_p = _define("scaled_tgmm", _tgmm_aval, (*_PRODUCT, "lhs_columns", "rhs_columns"))


def bind(primitive, *operands, words=None, **params):
    """The primitive's results, after libcadre has looked at the shapes and types of a call. `words`: those that its errors use
    for the library's."""
    operands = unify(*operands)
    params |= {"batch_rank": 0}
    avals = [jax.typeof(x) for x in operands]
    results = [jax.core.ShapedArray(x.shape, x.dtype) for x in _AVALS[primitive](*avals, **params)]
    try:
        _workspace.check(primitive.name, avals, results, params)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise renamed(error, words) if words else error from None
    return primitive.bind(*operands, **params)


class Scales(NamedTuple):
    """What the two operands of a product have beside their data."""

    lhs: jax.Array
    rhs: jax.Array
    params: dict[str, Any]
    words: dict[str, str]

    def gmm(self, lhs, rhs, sizes, offset, bias, **params):
        """The product of the data by scaled_gmm_p."""
        operands = (lhs, self.lhs, rhs, self.rhs, sizes, offset, *bias)
        (out,) = bind(
            scaled_gmm_p,
            *operands,
            words=self.words,
            has_bias=bool(bias),
            lhs_mode=self.params["lhs_mode"],
            rhs_mode=self.params["rhs_mode"],
            **params,
        )
        return out

    def tgmm(self, lhs, rhs, sizes, offset, **params):
        operands = (lhs, self.lhs, rhs, self.rhs, sizes, offset)
        (out,) = bind(scaled_tgmm_p, *operands, words=self.words, **self.params, **params)
        return out


def taken(op, names, lhs, rhs, dims, *, columns=False):
    """(lhs's data, rhs's data, Scales), or None without: of two operands with these dims that are quantised, or neither."""
    if not is_scaled(lhs, rhs):
        arrays = [_arguments.array(op, *each) for each in zip(names, (lhs, rhs), dims)]
        return *arrays, None
    (lhs_data, lhs_scales), (rhs_data, rhs_scales) = (
        operand(op, *each, columns=columns) for each in zip(names, (lhs, rhs), dims)
    )
    params = {
        f"{name}_{what}": value
        for name, array in (("lhs", lhs), ("rhs", rhs))
        for what, value in (("mode", _scaled.MODES[array.mode]), ("columns", array.columns))
    }
    words = {"tgmm" if columns else "gmm": op, "lhs": names[0], "rhs": names[1]}
    return lhs_data, rhs_data, Scales(lhs_scales, rhs_scales, params, words)
