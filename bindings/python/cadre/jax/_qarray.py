"""Operands quantised by qwix: QArray, and tokamax's AsQArray, which becomes one. Neither package is imported; what has their fields is taken.

A value is (qvalue - zero_point) * scale, with scales broadcast over tiles. Scales that are constant along the dim that is summed
multiply the sums of the codes, in f32; any other operand is dequantised first, as qwix does it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import _arguments, _groups
from ._scaled import ScaledArray

_INTEGERS = ("int8", "int4", "int2")
_CODES = (*_INTEGERS, *_arguments.FP8)


def is_qarray(*values):
    """Whether any of these is a QArray, or will be one."""
    return any(hasattr(x, "as_qarray") or hasattr(x, "qvalue") for x in values)


def opened(op, name, value):
    """A QArray of what is one or an AsQArray, and anything else as it is."""
    if not is_qarray(value):
        return value
    value = value.as_qarray() if hasattr(value, "as_qarray") else value
    codes, scale = value.qvalue.dtype.name, value.scale.dtype.name
    whole = getattr(value, "qtype", None) in (None, value.qvalue.dtype)
    if codes in _CODES and whole and scale in _arguments.FLOATS:
        return value
    # tokamax tries its next implementation.
    qtype = codes if whole else value.qtype
    raise NotImplementedError(
        f"{op}: {name} is quantised to {qtype} with scales of {scale}, "
        f"expected {', '.join(_CODES)} with scales of {', '.join(_arguments.FLOATS)}"
    )


def out_dtype(op, lhs, rhs, preferred):
    """The result's type: a QArray counts as an array of its scales' type."""
    arrays = [jax.ShapeDtypeStruct((), x.scale.dtype) if is_qarray(x) else x for x in (lhs, rhs)]
    return _arguments.lax_out_dtype(op, *arrays, preferred)


def dequantised(value):
    """An array of the scales' type; what isn't a QArray as it is."""
    if not is_qarray(value):
        return value
    array = value.qvalue.astype(value.scale.dtype)
    if value.zero_point is not None:
        array = array - _spread(value.zero_point, array.shape).astype(array.dtype)
    return array * _spread(value.scale, array.shape)


def _spread(scale, shape):
    """A value for each element: each of `scale` stands for a tile."""
    for axis, (tiles, size) in enumerate(zip(scale.shape, shape, strict=True)):
        if tiles not in (1, size):
            scale = jnp.repeat(scale, size // tiles, axis=axis)
    return scale


class Codes(NamedTuple):
    """Operands of a product whose sums want to be multiplied: by lhs_scale [m or 1], and by rhs_scale [g or 1, n or 1]."""

    lhs: Any
    rhs: Any
    lhs_scale: jax.Array | None
    rhs_scale: jax.Array | None

    @property
    def sum_dtype(self):
        if {self.lhs.dtype.name, self.rhs.dtype.name} == {"int8"}:
            return jnp.dtype(jnp.int32)
        return jnp.promote_types(jnp.float32, jnp.promote_types(self.lhs.dtype, self.rhs.dtype))

    def scaled(self, sums, sizes, offset, bias):
        """The values of the sums [m, n], with bias [g, n]; rows of no local group stay zero, whatever scales they have."""
        wide = jnp.promote_types(sums.dtype, jnp.float32) if sums.dtype != jnp.int32 else jnp.float32
        groups, local = _groups.of_rows(sums.shape[0], sizes, offset, self.rhs.shape[0])

        def of_groups(values):
            return values[groups] if values.shape[0] != 1 else values

        out = sums.astype(wide)
        if self.lhs_scale is not None:
            out = out * self.lhs_scale[:, None].astype(wide)
        if self.rhs_scale is not None:
            out = out * of_groups(self.rhs_scale.astype(wide))
        if bias is not None:
            out = out + of_groups(bias.astype(wide))
        return jnp.where(local[:, None], out, jnp.zeros((), wide))


def codes_of(lhs, rhs, transpose_rhs):
    """(lhs, rhs) as gmm multiplies them: ScaledArrays where both are FP8 that multiply, else Codes. lhs [m, k], rhs [g, k, n] or, with
    transpose_rhs, [g, n, k]."""
    inner = 2 if transpose_rhs else 1
    lhs, lhs_scale = _apart(lhs, 1)
    rhs, rhs_scale = _apart(rhs, inner)
    types = lhs.dtype.name, rhs.dtype.name
    fp8 = [name in _arguments.FP8 for name in types]
    if all(fp8) and types != ("float8_e5m2",) * 2:
        (m, _), (g, n) = lhs.shape, (rhs.shape[0], rhs.shape[3 - inner])
        return ScaledArray(lhs, _each(lhs_scale, (m,)), "row"), ScaledArray(rhs, _each(rhs_scale, (g, n)), "row")
    # Every code is exact in bf16.
    lhs, rhs = (x.astype(jnp.bfloat16) if narrow else x for x, narrow in zip((lhs, rhs), fp8))
    return Codes(lhs, rhs, lhs_scale, rhs_scale)


def _each(scale, shape):
    """A scale for each row or column, in f32; of an array that has none, 1."""
    return jnp.broadcast_to(jnp.float32(1) if scale is None else scale, shape).astype(jnp.float32)


def _apart(value, inner):
    """(codes, scales without the dim `inner`) where all values along it share a scale, else (values, None)."""
    if not is_qarray(value):
        return value, None
    if value.zero_point is not None or value.scale.shape[inner] != 1:
        return dequantised(value), None
    codes = value.qvalue
    codes = codes.astype(jnp.int8) if codes.dtype.name in _INTEGERS else codes
    others = [size for axis, size in enumerate(codes.shape) if axis != inner]
    return codes, _spread(value.scale.squeeze(inner), others)
