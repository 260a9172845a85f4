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


def tensor(op, argument, array):
    """A cadre_tensor on the memory of an array; nothing is copied."""
    if isinstance(array, numpy.ndarray):
        return _numpy_tensor(op, argument, array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _dlpack.view_of(op, argument, array)
    raise wrong_type(op, argument, array, _ARRAY)


def _numpy_tensor(op, argument, array):
    code = _dtypes.code_of(array.dtype)
    if not code:
        raise TypeError(
            f"{op}: {argument}.dtype = {array.dtype}, expected one of {_dtypes.known_names()}"
        )
    if array.ndim > _structs.MAX_RANK:
        raise wrong_value(op, f"{argument}.rank", array.ndim, f"at most {_structs.MAX_RANK}")
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


def optional_tensor(op, argument, array):
    return None if array is None else tensor(op, argument, array)


def output(op, argument, array):
    """The array, if results may be written into it."""
    if not isinstance(array, numpy.ndarray):
        raise wrong_type(op, argument, array, "a NumPy array")
    if not array.flags.writeable:
        raise wrong_value(op, f"{argument}.flags.writeable", False, "True")
    return array


def grouped(op, argument, value, *, vectors=False):
    """A cadre_grouped_tensor from one array, or from a list with one array for each group."""
    if isinstance(value, (list, tuple)):
        return _grouped_list(op, argument, value)
    view = tensor(op, argument, value)
    ranks = (2,) if vectors else (2, 3)
    if view.rank not in ranks:
        raise wrong_value(op, f"{argument}.rank", view.rank, " or ".join(map(str, ranks)))
    make = library.cadre_grouped_vectors if vectors else library.cadre_grouped_from_tensor
    result = make(byref(view))
    result.owner = view
    return result


def optional_grouped(op, argument, value, *, vectors=False):
    return None if value is None else grouped(op, argument, value, vectors=vectors)


def _grouped_list(op, argument, arrays):
    if not arrays:
        raise wrong_value(op, f"len({argument})", 0, "at least 1")
    views = [tensor(op, f"{argument}[{i}]", array) for i, array in enumerate(arrays)]
    first = views[0]
    for i, view in enumerate(views):
        for part in ("dtype", "rank", "shape", "strides"):
            here, there = (
                tuple(v) if part in ("shape", "strides") else v
                for v in (getattr(view, part), getattr(first, part))
            )
            if part == "dtype" and here != there:
                raise wrong_value(
                    op,
                    f"{argument}[{i}].dtype",
                    _dtypes.name_of(here),
                    f"{argument}[0].dtype = {_dtypes.name_of(there)}",
                )
            if here != there:
                raise wrong_value(
                    op, f"{argument}[{i}].{part}", here, f"{argument}[0].{part} = {there}"
                )
    pointers = (c_void_p * len(views))(*(view.data for view in views))
    result = library.cadre_grouped_list(
        ctypes.cast(pointers, ctypes.POINTER(c_void_p)),
        len(views),
        byref(first),
        _structs.Device(_structs.CPU, 0),
    )
    result.owner = (views, pointers)
    return result


def sizes(op, argument, value):
    """cadre_sizes from integers: an array or DLPack tensor is looked at in place, a list becomes int64."""
    if isinstance(value, (list, tuple)):
        value = numpy.array(
            [_index(op, f"{argument}[{i}]", item) for i, item in enumerate(value)],
            dtype=numpy.int64,
        )
    view = tensor(op, argument, value)
    if view.dtype not in _dtypes.INDICES:
        raise TypeError(
            f"{op}: {argument}.dtype = {_dtypes.name_of(view.dtype)}, expected i32, u32 or i64"
        )
    if view.rank != 1:
        raise wrong_value(op, f"{argument}.rank", view.rank, 1)
    if view.shape[0] > 1 and view.strides[0] != 1:
        raise wrong_value(op, f"{argument}.strides[0]", view.strides[0], 1)
    result = _structs.Sizes(data=view.data, dtype=view.dtype, count=view.shape[0])
    result.owner = view
    return result


def _index(op, argument, value):
    if isinstance(value, bool):
        raise wrong_type(op, argument, value, "an int")
    try:
        return operator.index(value)
    except TypeError as error:
        raise wrong_type(op, argument, value, "an int") from error


def index(op, argument, value):
    """A Python int from any integer: int, NumPy scalar, array of one element."""
    return _index(op, argument, value)


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
    if view.rank != 1:
        raise wrong_value(op, f"{argument}.rank", view.rank, 1)
    return default, view


def reference(view):
    """What a struct's pointer field takes: the address of a view, or NULL. The struct must not outlive the view."""
    return None if view is None else pointer(view)
