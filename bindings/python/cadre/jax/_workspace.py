"""How much device workspace a CUDA call needs, asked of libcadre while the call is lowered."""

import ctypes
import math

from .. import _dtypes, _library, _structs

# Only shapes, types and alignment matter: addresses far apart, so that nothing seems to overlap.
_FIRST_ADDRESS = 1 << 46
_ADDRESS_STEP = 1 << 44

_FEW, _VERY_MANY = 64, 1 << 20


def size_bytes(name, operands, results, params):
    """The largest workspace of any batch entry, at least 1."""
    extents = symbolic_extents((*operands, *results), params["batch_rank"])
    return max(1, *(_size(name, operands, results, params, extent) for extent in extents))


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


def _size(name, operands, results, params, extent):
    views = _Views(params["batch_rank"], extent)
    fill = {
        "cadre_gmm": _gmm,
        "cadre_tgmm": _tgmm,
        "cadre_bias_grad": _bias_grad,
        "cadre_route": _route,
        "cadre_moe_mlp": _moe_mlp,
        "cadre_moe_mlp_grad": _moe_mlp_grad,
    }[name]
    args, function_name = fill(views, operands, results, params)
    size = ctypes.c_size_t()
    function = getattr(_library.library, f"{function_name}_workspace_size")
    function.restype = ctypes.c_int32
    _library.check(function(_library.context(), ctypes.byref(args), ctypes.byref(size)))
    return size.value


def _gmm(views, operands, results, params):
    args = _library.new(_structs.GmmArgs)
    lhs, rhs, sizes, offset, *bias = operands
    args.lhs, args.rhs = views.pointer(lhs), views.grouped(rhs)
    args.out = views.grouped(results[0])
    args.transpose_rhs = params["transpose_rhs"]
    if bias:
        args.bias = views.vectors(bias[0])
    views.set_groups(args, sizes, offset)
    return args, "cadre_gmm"


def _tgmm(views, operands, results, params):
    args = _library.new(_structs.TgmmArgs)
    lhs, rhs, sizes, offset = operands
    args.lhs, args.rhs = views.pointer(lhs), views.pointer(rhs)
    args.out = views.grouped(results[0])
    views.set_groups(args, sizes, offset)
    return args, "cadre_tgmm"


def _bias_grad(views, operands, results, params):
    args = _library.new(_structs.BiasGradArgs)
    dy, sizes, offset = operands
    args.dy = views.pointer(dy)
    args.dbias = views.vectors(results[0])
    views.set_groups(args, sizes, offset)
    return args, "cadre_bias_grad"


def _route(views, operands, results, params):
    args = _library.new(_structs.RouteArgs)
    args.expert_ids = views.pointer(operands[0])
    args.group_sizes, args.source_row, args.slot_row = map(views.pointer, results)
    return args, "cadre_route"


def _layer(views, operands, params):
    """A layer's arguments, and the operands behind them."""
    args = _library.new(_structs.MoeMlpArgs)
    x, w13, w2, sizes, offset, *rest = operands
    args.x, args.w13, args.w2 = views.pointer(x), views.grouped(w13), views.grouped(w2)
    views.set_groups(args, sizes, offset)
    for name in params["given"]:
        aval = rest.pop(0)
        setattr(args, name, views.vectors(aval) if name.startswith("bias") else views.pointer(aval))
    args.transposed = params["transposed"]
    args.weights_on_input = params["weights_on_input"]
    args.activation.kind = params["activation"]
    args.activation.layout = int(params["interleaved"])
    return args, rest


def _moe_mlp(views, operands, results, params):
    args, _ = _layer(views, operands, params)
    args.out = views.pointer(results[0])
    if params["keeps_preact"]:
        args.preact = views.pointer(results[1])
    return args, "cadre_moe_mlp_forward"


def _moe_mlp_grad(views, operands, results, params):
    args, (preact, dout) = _layer(views, operands, params)
    args.preact, args.dout = views.pointer(preact), views.pointer(dout)
    for name, aval in zip(params["wanted"], results, strict=True):
        if name.startswith("bias"):
            gradient = views.vectors(aval)
        elif name.startswith("w") and name != "weights":
            gradient = views.grouped(aval)
        else:
            gradient = views.pointer(aval)
        setattr(args, f"d{name}", gradient)
    return args, "cadre_moe_mlp_backward"


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
        view = self.tensor(aval)
        return self._keep(_library.library.cadre_grouped_from_tensor(ctypes.byref(view)))

    def vectors(self, aval):
        view = self.tensor(aval)
        return self._keep(_library.library.cadre_grouped_vectors(ctypes.byref(view)))

    def set_groups(self, args, sizes, offset):
        view = self.tensor(sizes)
        args.group_sizes = _structs.Sizes(view.data, view.dtype, view.device, view.shape[0])
        args.group_offset_on_device = self.tensor(offset).data
        args.group_offset_dtype = _dtypes.code_of(offset.dtype)
