"""quantize, dequantize and amax of the NumPy front: between float arrays and FP8 data with scales."""

from __future__ import annotations

from ctypes import byref, pointer
from typing import Any, SupportsIndex

import ml_dtypes
import numpy
from numpy.typing import DTypeLike, NDArray

from . import _dtypes, _options, _scaled, _structs, _views
from ._errors import wrong_type, wrong_value
from ._library import check, context, library, new
from ._scaled import ScaledTensor
from ._types import ActivationName, Array, ScaleMode, Sizes

_PLAIN = (_structs.F32, _structs.BF16, _structs.F16)
_FP8 = (_structs.E4M3, _structs.E5M2)
_INDICES = (_structs.I32, _structs.I64)


def quantize(
    x: Array,
    mode: ScaleMode,
    group_sizes: Sizes | None = None,
    *,
    dtype: DTypeLike = ml_dtypes.float8_e4m3fn,
    rows: bool = True,
    columns: bool = False,
    power_of_two: bool = False,
    amax_floor: float = 0.0,
    scale_dtype: DTypeLike | None = None,
    source_row: Array | None = None,
    row_scale: Array | None = None,
    activation: ActivationName = "none",
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
) -> Any:
    """FP8 data of x with scales by `mode`, as a ScaledTensor; with rows and columns both, the two of them.

    x: rows [m, k] of f32, bf16 or f16, or weights [g, n, k]. `rows` are scaled along k, for gmm; `columns` is the copy
    for tgmm, scaled along the rows of each group of group_sizes (default: one group), or of weights [g, k, n], scaled
    along n. Both are made in one pass.

    Scales are amax / 448 (e5m2: 57344), rounded up to a power of two with power_of_two, and always in "mx" and in
    scale_dtype=ml_dtypes.float8_e8m0fnu. amax_floor: the least amax that counts; DeepGEMM's is 1e-4.

    Rows may be taken by index, row r being row_scale[r] * activation(x[source_row[r]]), with zeros for -1. docs/fp8.md
    says how scales are chosen and what becomes of NaN and infinity.

    >>> x = np.array([[1, 2, -4], [0.5, 0, 0.25]], np.float32)
    >>> rows = cadre.quantize(x, "row", power_of_two=True)
    >>> rows.scales  # powers of two above 4 / 448 and 0.5 / 448
    array([0.015625  , 0.00195312], dtype=float32)
    """
    op = "quantize"
    x_view = _views.tensor(op, "x", x, _PLAIN)
    weights = x_view.rank == 3
    if not weights:
        _views.needs_rank(op, "x", x_view, 2, "[m, k] or [g, n, k]")
    code = _code_of(op, "dtype", dtype, _FP8)
    scale_code = _structs.E8M0 if mode == "mx" else _structs.F32
    if scale_dtype is not None:
        scale_code = _code_of(op, "scale_dtype", scale_dtype, _dtypes.SCALES)
    mode_code = _scaled.mode_of(op, mode)
    if not (_options.flag(op, "rows", rows) or _options.flag(op, "columns", columns)):
        raise wrong_value(op, "rows", rows, "True, or columns = True")

    args = new(_structs.QuantizeArgs)
    if activation not in _options.ACTIVATIONS:
        raise wrong_value(op, "activation", repr(activation), " or ".join(map(repr, _options.ACTIVATIONS)))
    args.activation.kind = _options.ACTIVATIONS[activation]
    args.activation.layout = int(_options.flag(op, "interleaved", interleaved))
    args.activation.alpha, args.activation.limit, args.activation.up_offset = alpha, limit, up_offset
    gated = args.activation.kind >= _structs.SWIGLU
    source = _optional(op, "source_row", source_row, _INDICES)
    scale = _optional(op, "row_scale", row_scale, _PLAIN)
    sizes = None if group_sizes is None else _views.sizes(op, "group_sizes", group_sizes)
    if weights:
        shape = _views.shape_of(x_view)
    else:
        shape = (source.shape[0] if source else x_view.shape[0], x_view.shape[1] // (2 if gated else 1))
    num_groups = sizes.count if sizes else 1

    args.x = pointer(x_view)
    args.source_row = _views.reference(source)
    args.row_scale = _views.reference(scale)
    if sizes:
        args.group_sizes = sizes
    args.power_of_two = _options.flag(op, "power_of_two", power_of_two)
    args.amax_floor = amax_floor
    results = []
    if rows:
        scale_shape = _scaled.scale_shape(mode_code, shape)
        made = _new(code, shape, scale_code, scale_shape, mode)
        args.rows, args.rows_scales = _references(op, "rows", made)
        results.append(made)
    if columns and weights:
        turned = (shape[0], shape[2], shape[1])
        made = _new(code, turned, scale_code, _scaled.scale_shape(mode_code, turned), mode)
    elif columns:
        copy_shape, scale_shape = _scaled.column_shapes(mode_code, shape, num_groups)
        made = _new(code, copy_shape, scale_code, scale_shape, mode, columns=True)
    if columns:
        args.columns, args.columns_scales = _references(op, "columns", made)
        results.append(made)
    check(library.cadre_quantize(context(), byref(args)))
    return results[0] if len(results) == 1 else tuple(results)


def dequantize(
    x: ScaledTensor,
    group_sizes: Sizes | None = None,
    *,
    num_rows: SupportsIndex | None = None,
    out_dtype: DTypeLike = ml_dtypes.bfloat16,
) -> NDArray[Any]:
    """The values of a ScaledTensor, in f32, bf16 or f16: [m, k], or [g, n, k] of weights.

    group_sizes: of rows, where they aren't one group; rows behind the last group become zero. A column-wise copy needs
    num_rows, the m of the rows that it was made of.

    >>> weights = cadre.quantize(np.ones((3, 4, 5), np.float32), "tensor")
    >>> cadre.dequantize(weights, out_dtype=np.float32).shape
    (3, 4, 5)
    """
    op = "dequantize"
    if not isinstance(x, ScaledTensor):
        raise wrong_type(op, "x", x, "a ScaledTensor")
    data = _views.tensor(op, "x.data", x.data, _FP8)
    if x.columns != (num_rows is not None):
        expected = "the number of rows, because x is a column-wise copy" if x.columns else None
        raise wrong_value(op, "num_rows", num_rows, expected)
    shape = _views.shape_of(data)
    if x.columns:
        _views.needs_rank(op, "x.data", data, 2, "[k, capacity]")
        shape = (_views.index(op, "num_rows", num_rows), shape[0])
    out = numpy.empty(shape, _dtypes.numpy_of(_code_of(op, "out_dtype", out_dtype, _PLAIN)))
    scales = _scaled.scales_of(op, "x", x)
    out_view = _views.tensor(op, "out", out, _PLAIN)
    args = new(_structs.DequantizeArgs)
    args.x, args.x_scales, args.out = pointer(data), pointer(scales), pointer(out_view)
    args.x_columns = x.columns
    if group_sizes is not None:
        args.group_sizes = sizes = _views.sizes(op, "group_sizes", group_sizes)  # noqa: F841, keeps them alive
    check(library.cadre_dequantize(context(), byref(args)))
    return out


def amax(x: Array, mode: ScaleMode, group_sizes: Sizes | None = None) -> NDArray[Any]:
    """The largest finite magnitude that would share each scale of `mode`, in f32 and in the shape of the scales.

    x is [m, k], or weights [g, n, k]. group_sizes [g]: of rows, where they aren't one group.

    >>> cadre.amax(np.array([[1, -4], [0.5, 0]], np.float32), "row")
    array([4. , 0.5], dtype=float32)
    """
    op = "amax"
    view = _views.tensor(op, "x", x, _PLAIN)
    if view.rank != 3:
        _views.needs_rank(op, "x", view, 2, "[m, k] or [g, n, k]")
    mode_code = _scaled.mode_of(op, mode)
    out = numpy.empty(_scaled.scale_shape(mode_code, _views.shape_of(view)), numpy.float32)
    out_view = _views.tensor(op, "out", out)
    args = new(_structs.AmaxArgs)
    args.x, args.mode, args.out = pointer(view), mode_code, pointer(out_view)
    if group_sizes is not None:
        args.group_sizes = sizes = _views.sizes(op, "group_sizes", group_sizes)  # noqa: F841, keeps them alive
    check(library.cadre_amax(context(), byref(args)))
    return out


def _optional(op, argument, value, types):
    if value is None:
        return None
    view = _views.tensor(op, argument, value, types)
    _views.needs_rank(op, argument, view, 1, "[m]")
    return view


def _new(code, shape, scale_code, scale_shape, mode, *, columns=False):
    """A result. A column-wise copy has room for more than its rows; what no group needs stays zero."""
    empty = numpy.zeros if columns else numpy.empty
    data = empty(shape, _dtypes.numpy_of(code))
    return ScaledTensor(data, empty(scale_shape, _dtypes.numpy_of(scale_code)), mode, columns=columns)


def _references(op, argument, made):
    """Pointers to the data and the scales of a result; ctypes keeps what a pointer looks at."""
    data = _views.tensor(op, argument, made.data, _FP8)
    return pointer(data), pointer(_scaled.scales_of(op, argument, made))


def _code_of(op, argument, dtype, codes):
    try:
        code = _dtypes.code_of(dtype)
    except TypeError:
        code = 0
    if code not in codes:
        raise TypeError(f"{op}: {argument} = {dtype!r}, expected {_dtypes.numpy_names(codes)}")
    return code
