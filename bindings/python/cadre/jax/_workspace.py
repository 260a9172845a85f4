"""How much device workspace a CUDA call needs, asked of libcadre while the call is lowered."""

import ctypes
import math

from .. import _dtypes, _library, _structs

# Only shapes, types and alignment matter: addresses far apart, so that nothing seems to overlap.
_FIRST_ADDRESS = 1 << 46
_ADDRESS_STEP = 1 << 44

_FEW, _VERY_MANY = 64, 1 << 20


def size_bytes(name, operands, result, params):
    """The largest workspace of any batch entry, at least 1."""
    extents = symbolic_extents((*operands, result), params["batch_rank"])
    return max(1, *(_size(name, operands, result, params, extent) for extent in extents))


def symbolic_extents(avals, batch_rank):
    """What a symbolic dim may turn out to be: a few, or very many but no more than keep arrays with several of them apart."""
    many = _VERY_MANY
    while many > _FEW and any(_bytes(aval, batch_rank, many) > _ADDRESS_STEP for aval in avals):
        many //= 2
    return _FEW, many


def _bytes(aval, batch_rank, symbolic_extent):
    return math.prod(_dims(aval, batch_rank, symbolic_extent)) * aval.dtype.itemsize


def _dims(aval, batch_rank, symbolic_extent):
    return [dim if isinstance(dim, int) else symbolic_extent for dim in aval.shape[batch_rank:]]


def _size(name, operands, result, params, extent):
    rank = params["batch_rank"]
    views = _Views(rank, extent)
    out = views.tensor(result)
    if name == "cadre_gmm":
        args = _library.new(_structs.GmmArgs)
        lhs, rhs, sizes, offset, *bias = operands
        args.lhs, args.rhs = views.pointer(lhs), views.grouped(rhs)
        args.out = views.grouped_of(out)
        args.transpose_rhs = params["transpose_rhs"]
        if bias:
            args.bias = views.vectors(bias[0])
    elif name == "cadre_tgmm":
        args = _library.new(_structs.TgmmArgs)
        lhs, rhs, sizes, offset = operands
        args.lhs, args.rhs = views.pointer(lhs), views.pointer(rhs)
        args.out = views.grouped_of(out)
    else:
        args = _library.new(_structs.BiasGradArgs)
        dy, sizes, offset = operands
        args.dy = views.pointer(dy)
        args.dbias = views.vectors_of(out)
    shape = views.tensor(sizes)
    args.group_sizes = _structs.Sizes(shape.data, shape.dtype, shape.device, shape.shape[0])
    args.group_offset_on_device = views.tensor(offset).data
    args.group_offset_dtype = _dtypes.code_of(offset.dtype)
    size = ctypes.c_size_t()
    function = getattr(_library.library, f"{name}_workspace_size")
    function.restype = ctypes.c_int32
    _library.check(function(_library.context(), ctypes.byref(args), ctypes.byref(size)))
    return size.value


class _Views:
    """C views of abstract values; keeps what the args point to alive."""

    def __init__(self, batch_rank, symbolic_extent):
        self._batch_rank = batch_rank
        self._symbolic_extent = symbolic_extent
        self._address = _FIRST_ADDRESS
        self._kept = []

    def tensor(self, aval):
        dims = _dims(aval, self._batch_rank, self._symbolic_extent)
        view = _structs.Tensor()
        view.data = self._address
        self._address += _ADDRESS_STEP
        view.dtype = _dtypes.code_of(aval.dtype)
        view.device = _structs.Device(_structs.CUDA, 0)
        view.rank = len(dims)
        stride = 1
        for axis in reversed(range(len(dims))):
            view.shape[axis], view.strides[axis] = dims[axis], stride
            stride *= dims[axis]
        return view

    def _keep(self, value):
        self._kept.append(value)
        return ctypes.pointer(value)

    def pointer(self, aval):
        return self._keep(self.tensor(aval))

    def grouped(self, aval):
        return self.grouped_of(self.tensor(aval))

    def grouped_of(self, view):
        return self._keep(_library.library.cadre_grouped_from_tensor(ctypes.byref(view)))

    def vectors(self, aval):
        return self.vectors_of(self.tensor(aval))

    def vectors_of(self, view):
        return self._keep(_library.library.cadre_grouped_vectors(ctypes.byref(view)))
