"""From NumPy arrays, DLPack tensors, lists and numbers to the structs of the C ABI. A view keeps what it looks at alive."""

import ctypes
import operator
from ctypes import byref, c_void_p, pointer

import numpy

from . import _dlpack, _dtypes, _structs
from ._errors import wrong_type, wrong_value
from ._library import library

_ARRAY = "a NumPy array or a DLPack tensor on the CPU"


def shape_of(view):
    return tuple(view.shape[: view.rank])


def tensor(op, argument, array, types=_dtypes.OPERANDS):
    """A cadre_tensor on the memory of an array of one of these types; nothing is copied."""
    if isinstance(array, numpy.ndarray):
        _check_type(op, argument, array.dtype, _dtypes.code_of(array.dtype), types)
        return _numpy_tensor(op, argument, array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        view = _dlpack.view_of(op, argument, array)
        _check_type(op, argument, _dtypes.numpy_of(view.dtype), view.dtype, types)
        return view
    raise wrong_type(op, argument, array, _ARRAY)


def _check_type(op, argument, dtype, code, types):
    if code not in types:
        expected = _dtypes.numpy_names(types)
        raise TypeError(f"{op}: {argument}.dtype = {dtype}, expected {expected}")


def _numpy_tensor(op, argument, array):
    code = _dtypes.code_of(array.dtype)
    if array.ndim > _structs.MAX_RANK:
        raise wrong_value(
            op, f"{argument}.shape", array.shape, f"at most {_structs.MAX_RANK} dimensions"
        )
    view = _structs.Tensor(data=array.ctypes.data, dtype=code, rank=array.ndim)
    for i, (dim, stride) in enumerate(zip(array.shape, array.strides)):
        if stride % array.itemsize:
            raise wrong_value(
                op,
                f"{argument}.strides[{i}]",
                f"{stride} bytes",
                f"a multiple of {array.itemsize}, the item's size",
            )
        view.shape[i] = dim
        view.strides[i] = stride // array.itemsize
    view.owner = array
    return view


def needs_rank(op, argument, view, rank, dims):
    """`dims` is the expected shape in the caller's words: "[m, k]"."""
    if view.rank != rank:
        raise wrong_value(op, f"{argument}.shape", shape_of(view), dims)


def vector(op, argument, array):
    """A cadre_tensor [m] of floats, or None."""
    if array is None:
        return None
    view = tensor(op, argument, array, _dtypes.FLOATS)
    needs_rank(op, argument, view, 1, "[m]")
    return view


def output(op, argument, array):
    """The array, if results may be written into it."""
    if not isinstance(array, numpy.ndarray):
        raise wrong_type(op, argument, array, "a NumPy array")
    if not array.flags.writeable:
        raise wrong_value(op, f"{argument}.flags.writeable", False, "True")
    return array


def grouped(op, argument, value, dims, types=_dtypes.OPERANDS, *, vectors=False):
    """A cadre_grouped_tensor from one array, or from a list with one array for each group.

    `dims` is the expected shape of one array, in the caller's words: "[g, k, n]".
    """
    if isinstance(value, (list, tuple)):
        return _grouped_list(op, argument, value, types, vectors)
    view = tensor(op, argument, value, types)
    needs_rank(op, argument, view, dims.count(",") + 1, dims)
    make = library.cadre_grouped_vectors if vectors else library.cadre_grouped_from_tensor
    result = make(byref(view))
    result.owner = view
    return result


def optional_grouped(op, argument, value, dims, types, *, vectors=False):
    return None if value is None else grouped(op, argument, value, dims, types, vectors=vectors)


def outputs(op, argument, value):
    """Checks that results may be written into the array, or into each one of a list."""
    if isinstance(value, (list, tuple)):
        for i, array in enumerate(value):
            output(op, f"{argument}[{i}]", array)
    else:
        output(op, argument, value)


def _views_of_list(op, argument, arrays, types, vectors=False):
    views = _views_of_one_type(op, argument, arrays, types)
    for i, view in enumerate(views):
        rank, dims = (1, "a vector") if vectors else (2, "a matrix, one for each group")
        needs_rank(op, f"{argument}[{i}]", view, rank, dims)
    return views


def _views_of_one_type(op, argument, arrays, types):
    if not arrays:
        raise wrong_value(op, f"len({argument})", 0, "at least 1")
    views = [tensor(op, f"{argument}[{i}]", array, types) for i, array in enumerate(arrays)]
    for i, view in enumerate(views):
        if view.dtype != views[0].dtype:
            raise TypeError(
                f"{op}: {argument}[{i}].dtype = {_dtypes.numpy_of(view.dtype)}, "
                f"expected {argument}[0].dtype = {_dtypes.numpy_of(views[0].dtype)}"
            )
    return views


def _pointers(views):
    pointers = (c_void_p * len(views))(*(view.data for view in views))
    return ctypes.cast(pointers, ctypes.POINTER(c_void_p))


def _list_of(views, like):
    pointers = _pointers(views)
    result = library.cadre_grouped_list(
        pointers,
        len(views),
        byref(like),
        _structs.Device(_structs.CPU, 0),
    )
    result.owner = (views, pointers)
    return result


def _grouped_list(op, argument, arrays, types, vectors):
    views = _views_of_list(op, argument, arrays, types, vectors)
    _expect_one_form(op, argument, views)
    return _list_of(views, views[0])


def _expect_one_form(op, argument, views):
    for i, view in enumerate(views):
        for part in ("shape", "strides"):
            here, there = (tuple(getattr(v, part)[: v.rank]) for v in (view, views[0]))
            if here != there:
                raise wrong_value(
                    op, f"{argument}[{i}].{part}", here, f"{argument}[0].{part} = {there}"
                )


def list_of_one_form(op, argument, arrays, types):
    """(cadre_tensors of one type, shape and strides, an array of their addresses)."""
    views = _views_of_one_type(op, argument, arrays, types)
    _expect_one_form(op, argument, views)
    return views, _pointers(views)


def matrices(op, argument, value, types=_dtypes.OPERANDS, *, written=False):
    """A cadre_grouped_tensor from a [g, rows, cols] array or a list of matrices, each of its own shape.

    Matrices of a list share their strides, or each is row-major without gaps. Any other is copied, unless it is written.
    """
    if not isinstance(value, (list, tuple)):
        return grouped(op, argument, value, "[g, rows, cols] or a list of matrices", types)
    views = _views_of_list(op, argument, value, types)
    if len({tuple(view.strides[:2]) for view in views}) > 1:
        for i, array in enumerate(value):
            if _is_contiguous(views[i]):
                continue
            if written or not isinstance(array, numpy.ndarray):
                raise wrong_value(
                    op,
                    f"{argument}[{i}].strides",
                    tuple(views[i].strides[:2]),
                    f"a matrix without gaps, or the same strides in every matrix of {argument}",
                )
            views[i] = tensor(op, f"{argument}[{i}]", numpy.ascontiguousarray(array), types)
        result = _list_of(views, views[0])
        result.contiguous, result.row_stride, result.col_stride = 1, 0, 1
    else:
        result = _list_of(views, views[0])
    for extent, dim in ((result.rows, 0), (result.cols, 1)):
        values = numpy.array([view.shape[dim] for view in views], dtype=numpy.int64)
        extent.per_group = _structs.Sizes(
            data=values.ctypes.data, dtype=_structs.I64, count=len(values)
        )
        extent.max = int(values.max())
        result.owner = (result.owner, values)
    return result


def _is_contiguous(view):
    (rows, cols), (row_stride, col_stride) = view.shape[:2], view.strides[:2]
    if rows == 0 or cols == 0:
        return True
    return (cols == 1 or col_stride == 1) and (rows == 1 or row_stride == cols)


_INTEGERS = "int8, int16, int32, int64, uint8, uint16, uint32 or uint64"
_IN_PLACE = (numpy.dtype(numpy.int32), numpy.dtype(numpy.uint32), numpy.dtype(numpy.int64))


def sizes(op, argument, value):
    """cadre_sizes from integers of any type, a list, an array or a DLPack tensor.

    int32, uint32 and int64 without gaps are looked at in place; there are few of them, so any other is copied to int64.
    """
    if isinstance(value, (list, tuple)):
        array = numpy.array(
            [index(op, f"{argument}[{i}]", item) for i, item in enumerate(value)],
            dtype=numpy.int64,
        )
    elif isinstance(value, numpy.ndarray):
        array = value
    elif hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        array = _dlpack.array_of(op, argument, value)
    else:
        raise wrong_type(op, argument, value, f"a list of ints, or {_ARRAY}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{op}: {argument}.dtype = {array.dtype}, expected {_INTEGERS}")
    if array.ndim != 1:
        raise wrong_value(op, f"{argument}.shape", array.shape, "[number of groups]")
    if array.dtype not in _IN_PLACE or not (array.flags.c_contiguous and array.flags.aligned):
        if array.dtype.itemsize == 8 and array.dtype.kind == "u":
            for i in numpy.flatnonzero(array > _INT64_MAX)[:1]:
                raise wrong_value(op, f"{argument}[{i}]", array[i], f"at most {_INT64_MAX}")
        array = array.astype(numpy.int64)
    result = _structs.Sizes(
        data=array.ctypes.data, dtype=_dtypes.code_of(array.dtype), count=len(array)
    )
    result.owner = array
    return result


_INT64_MAX = 2**63 - 1


def index(op, argument, value):
    """A Python int from any integer that fits into 64 bits: int, NumPy scalar, array of one element."""
    if isinstance(value, bool):
        raise wrong_type(op, argument, value, "an int")
    try:
        result = operator.index(value)
    except TypeError as error:
        raise wrong_type(op, argument, value, "an int") from error
    if not -_INT64_MAX <= result <= _INT64_MAX:
        raise wrong_value(op, argument, result, "a number that fits into int64")
    return result


def scalars(op, argument, value, default):
    """alpha or beta as (number for all groups, None) or (default, cadre_tensor of one number for each group)."""
    if value is None:
        return default, None
    if isinstance(value, (list, tuple)) or (
        isinstance(value, numpy.ndarray) and value.dtype not in (numpy.float32, numpy.float64)
    ):
        value = numpy.asarray(value).astype(numpy.float64)
    if isinstance(value, (int, float)) or (
        not hasattr(value, "__dlpack__") and hasattr(value, "__float__")
    ):
        return float(value), None
    view = tensor(op, argument, value)
    needs_rank(op, argument, view, 1, "a number or [g]")
    return default, view


def reference(view):
    """What a struct's pointer field takes: the address of a view, or NULL. The struct must not outlive the view."""
    return None if view is None else pointer(view)
