"""quantize, dequantize and amax: between float arrays and FP8 data with scales."""

from __future__ import annotations

from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from .. import _scaled as _modes
from .._errors import wrong_type, wrong_value
from .._types import ScaleMode
from . import _arguments, _named, _scaled
from ._scaled import ScaledArray
from ._types import ArrayLike, DTypeLike, Sizes

_PLAIN = _arguments.FP8_RESULTS


@_named.scope
def quantize(
    x: ArrayLike,
    mode: ScaleMode,
    group_sizes: Sizes | None = None,
    *,
    dtype: DTypeLike = jnp.float8_e4m3fn,
    rows: bool = True,
    columns: bool = False,
    power_of_two: bool = False,
    amax_floor: float = 0.0,
    scale_dtype: DTypeLike | None = None,
) -> Any:
    """FP8 data of x with scales by `mode`, as a ScaledArray; with rows and columns both, the two of them.

    x: rows [m, k] of f32, bf16 or f16, or weights [g, n, k]. `rows` are scaled along k, for gmm; `columns` is the copy
    for tgmm, scaled along the rows of each group of group_sizes (default: one group), or of weights [g, k, n], scaled
    along n: what gmm reads for the gradient of its input. Both are made in one pass.

    Scales are amax / 448 (e5m2: 57344), rounded up to a power of two with power_of_two, and always in "mx" and in
    scale_dtype=jnp.float8_e8m0fnu. amax_floor: the least amax that counts; DeepGEMM's is 1e-4. docs/fp8.md says how scales
    are chosen and what becomes of NaN and infinity. Not differentiable.

    >>> x = jnp.array([[1, 2, -4], [0.5, 0, 0.25]])
    >>> rows = cadre.jax.quantize(x, "row", power_of_two=True)
    >>> rows.scales  # powers of two above 4 / 448 and 0.5 / 448
    Array([0.015625  , 0.00195312], dtype=float32)
    """
    op = "quantize"
    mode_code = _modes.mode_of(op, mode)
    x = _of_rows_or_weights(op, "x", x, _PLAIN)
    default = jnp.float8_e8m0fnu if mode == "mx" else jnp.float32
    if not (_arguments.flag(op, "rows", rows) or _arguments.flag(op, "columns", columns)):
        raise wrong_value(op, "rows", rows, "True, or columns = True")
    made = _scaled.bind(
        _scaled.quantize_p,
        x,
        *_sizes(op, group_sizes),
        rows=bool(rows),
        columns=bool(columns),
        mode=mode_code,
        dtype=_dtype(op, "dtype", dtype, _arguments.FP8),
        scale_dtype=_dtype(op, "scale_dtype", default if scale_dtype is None else scale_dtype, _scaled.SCALES),
        power_of_two=_arguments.flag(op, "power_of_two", power_of_two),
        amax_floor=float(amax_floor),
        grouped=group_sizes is not None,
    )
    copies = [False] * rows + [x.ndim == 2] * columns
    arrays = [
        ScaledArray(data, scales, mode, columns=copy)
        for data, scales, copy in zip(made[::2], made[1::2], copies, strict=True)
    ]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


@_named.scope
def dequantize(
    x: ScaledArray,
    group_sizes: Sizes | None = None,
    *,
    num_rows: SupportsIndex | None = None,
    out_dtype: DTypeLike = jnp.bfloat16,
) -> jax.Array:
    """The values of a ScaledArray, in f32, bf16 or f16: [m, k], or [g, n, k] of weights. Not differentiable.

    group_sizes: of rows, where they aren't one group; rows behind the last group become zero. A column-wise copy needs
    num_rows, the m of the rows that it was made of.

    >>> weights = cadre.jax.quantize(jnp.ones((3, 4, 5)), "tensor")
    >>> cadre.jax.dequantize(weights, out_dtype=jnp.float32).shape
    (3, 4, 5)
    """
    op = "dequantize"
    if not _scaled.is_scaled(x):
        raise wrong_type(op, "x", x, "a ScaledArray")
    if x.columns != (num_rows is not None):
        expected = "the number of rows, because x is a column-wise copy" if x.columns else None
        raise wrong_value(op, "num_rows", num_rows, expected)
    dims = ("g", "n", "k") if getattr(x.data, "ndim", 2) == 3 else ("m", "k")
    data, scales = _scaled.operand(op, "x", x, dims, columns=True)
    shape = (_arguments.count(op, "num_rows", num_rows), data.shape[0]) if x.columns else data.shape
    (out,) = _scaled.bind(
        _scaled.dequantize_p,
        data,
        scales,
        *_sizes(op, group_sizes),
        mode=_modes.MODES[x.mode],
        columns=x.columns,
        shape=shape,
        out_dtype=_dtype(op, "out_dtype", out_dtype, _PLAIN),
        grouped=group_sizes is not None,
    )
    return out


@_named.scope
def amax(x: ArrayLike, mode: ScaleMode, group_sizes: Sizes | None = None) -> jax.Array:
    """The largest finite magnitude that would share each scale of `mode`, in f32 and in the shape of the scales.

    x: rows [m, k] or weights [g, n, k]. group_sizes: of rows, where they aren't one group.

    >>> cadre.jax.amax(jnp.array([[1, -4], [0.5, 0]]), "row")
    Array([4. , 0.5], dtype=float32)
    """
    op = "amax"
    mode_code = _modes.mode_of(op, mode)
    x = _of_rows_or_weights(op, "x", x, _PLAIN)
    sizes = _sizes(op, group_sizes)
    (out,) = _scaled.bind(_scaled.amax_p, x, *sizes, mode=mode_code, grouped=group_sizes is not None)
    return out


def _of_rows_or_weights(op, name, value, types):
    value = _arguments.as_array(op, name, value)
    if value.ndim not in (2, 3):
        raise wrong_value(op, f"{name}.shape", value.shape, "[m, k] or [g, n, k]")
    return _arguments.array(op, name, value, ("m", "k") if value.ndim == 2 else ("g", "n", "k"), types)


def _sizes(op, group_sizes):
    return () if group_sizes is None else (_arguments.group_sizes_vector(op, group_sizes),)


def _dtype(op, name, dtype, types):
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in types:
        received = repr(dtype) if found is None else found.name
        raise TypeError(f"{op}: {name} = {received}, expected {' or '.join(types)}")
    return found
