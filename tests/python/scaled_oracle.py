"""Quantised operands made with NumPy and ml_dtypes alone, group by group, each with the f64 values that it stands for."""

import ml_dtypes
import numpy

E4M3 = numpy.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = numpy.dtype(ml_dtypes.float8_e5m2)
E8M0 = numpy.dtype(ml_dtypes.float8_e8m0fnu)
#: Inner values that share a scale.
BLOCK = {"block_128": 128, "mx": 32}
MODES = ("tensor", "row", "block_128", "mx")


def _scale(values, dtype, exact_power):
    """One scale for all of `values`, in f32, rounded up to a power of two where that is asked for."""
    amax = numpy.float32(abs(values).max(initial=0))
    scale = amax / numpy.float32(ml_dtypes.finfo(dtype).max) if amax else numpy.float32(1)
    return numpy.float32(2.0 ** numpy.ceil(numpy.log2(scale))) if exact_power else scale


def _blocks(count, block):
    return [slice(start, min(start + block, count)) for start in range(0, count, block)]


def rows(x, mode, dtype=E4M3, *, outer=1, e8m0=None):
    """(data, scales, values) of one matrix [rows, inner]. `outer`: rows that share the scales of a block."""
    e8m0 = mode == "mx" if e8m0 is None else e8m0
    x = numpy.asarray(x, numpy.float32)
    inner = BLOCK.get(mode, max(x.shape[1], 1))
    outer = max(x.shape[0], 1) if mode == "tensor" else outer
    down, along = _blocks(x.shape[0], outer), _blocks(x.shape[1], inner)
    scales = numpy.array([[_scale(x[r, c], dtype, e8m0) for c in along] for r in down], numpy.float32)
    scales = scales.reshape(len(down), len(along))
    data, values = numpy.empty(x.shape, dtype), numpy.empty(x.shape)
    for i, r in enumerate(down):
        for j, c in enumerate(along):
            data[r, c] = (x[r, c] / scales[i, j]).astype(dtype)
            values[r, c] = data[r, c].astype("f8") * numpy.float64(scales[i, j])
    if mode in ("tensor", "row"):
        scales = scales[:, 0] if scales.size else numpy.ones(len(down) if mode == "row" else 1, "f4")
    return data, scales.astype(E8M0) if e8m0 else scales, values


def weights(w, mode, dtype=E4M3, *, e8m0=None):
    """The same of weights [g, n, k], scaled along k."""
    outer = 128 if mode == "block_128" else 1
    each = [rows(matrix, mode, dtype, outer=outer, e8m0=e8m0) for matrix in w]
    data, scales, values = (numpy.stack(parts) for parts in zip(*each))
    return data, scales[:, 0] if mode == "tensor" else scales, values


def columns(x, sizes, mode, dtype=E4M3):
    """(data [k, capacity], scales, values [rows, k]): the column-wise copy, as cadre/scaled_tensor.h lays it out.

    Room that no group covers holds NaN, in the data and in the scales: it must not be read.
    """
    k = x.shape[1]
    capacity = 32 * (sum(-(-size // 32) for size in sizes) + 1)
    nan = numpy.array(numpy.nan).astype(dtype)
    data = numpy.full((k, capacity), nan, dtype)
    values = numpy.zeros(x.shape)
    lines, row, column = [], 0, 0
    whole = rows(numpy.asarray(x)[: sum(sizes)].T, "tensor", dtype) if mode == "tensor" else None
    for size in sizes:
        part = slice(row, row + size)
        if whole is not None:
            codes, scales, each = whole[0][:, part], None, whole[2][:, part]
        else:
            codes, scales, each = rows(numpy.asarray(x)[part].T, mode, dtype)
        data[:, column : column + size] = codes
        column_end = column + -(-size // 32) * 32
        data[:, column + size : column_end] = 0
        values[part] = each.T
        if scales is not None:
            lines.append(scales[None] if mode == "row" else scales.T)
        row, column = row + size, column_end
    if whole is not None:
        return data, whole[1], values
    scales = numpy.concatenate(lines)
    if mode != "row":
        unused = numpy.full((1, k), numpy.nan, "f4").astype(scales.dtype)
        scales = numpy.concatenate([scales, unused])
    return data, scales, values
