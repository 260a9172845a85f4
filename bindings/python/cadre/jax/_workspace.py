"""Calls as libcadre would see them, of abstract values: how much device workspace a CUDA call needs, asked while it is lowered,
and whether the library takes what was given, asked while an FP8 call is traced."""

import ctypes
import math

import numpy

from .. import _dtypes, _library, _scaled, _structs

# Only shapes, types and alignment matter: addresses far apart, so that nothing seems to overlap.
_FIRST_ADDRESS = 1 << 46
_ADDRESS_STEP = 1 << 44

_FEW, _VERY_MANY = 64, 1 << 20


def size_bytes(name, operands, results, params):
    """The largest workspace of any batch entry, at least 1."""
    extents = symbolic_extents((*operands, *results), params["batch_rank"])
    return max(1, *(_size(name, operands, results, params, extent) for extent in extents))


def check(name, operands, results, params):
    """Raises what libcadre has to say about these shapes and types. Of symbolic ones it is asked when the call runs."""
    if _is_whole(*operands, *results):
        _size(name, operands, results, params, 0, on_host=True)


def _is_whole(*avals):
    return all(isinstance(dim, int) for aval in avals for dim in aval.shape)


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


def _size(name, operands, results, params, extent, on_host=False):
    views = _Views(params["batch_rank"], extent, on_host)
    fill = {
        "cadre_gmm": _gmm,
        "cadre_tgmm": _tgmm,
        "cadre_bias_grad": _bias_grad,
        "cadre_route": _route,
        "cadre_moe_mlp": _moe_mlp,
        "cadre_moe_mlp_grad": _moe_mlp_grad,
        "cadre_quantize": _quantize,
        "cadre_dequantize": _dequantize,
        "cadre_amax": _amax,
        "cadre_scaled_gmm": _scaled_gmm,
        "cadre_scaled_tgmm": _scaled_tgmm,
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


def _quantize(views, operands, results, params):
    args = _library.new(_structs.QuantizeArgs)
    x, *sizes = operands
    args.x = views.pointer(x)
    views.set_sizes(args, *sizes)
    args.power_of_two, args.amax_floor = params["power_of_two"], params["amax_floor"]
    results = list(results)
    if params["rows"]:
        args.rows, args.rows_scales = views.scaled(*results[:2], params["mode"])
    if params["columns"]:
        rows = (x, *sizes) if len(x.shape) == params["batch_rank"] + 2 else None
        args.columns, args.columns_scales = views.scaled(*results[-2:], params["mode"], copy_of=rows)
    return args, "cadre_quantize"


def _dequantize(views, operands, results, params):
    args = _library.new(_structs.DequantizeArgs)
    x, scales, *sizes = operands
    rows = (results[0], *sizes) if params["columns"] else None
    args.x, args.x_scales = views.scaled(x, scales, params["mode"], copy_of=rows)
    args.x_columns = params["columns"]
    views.set_sizes(args, *sizes)
    args.out = views.pointer(results[0])
    return args, "cadre_dequantize"


def _amax(views, operands, results, params):
    args = _library.new(_structs.AmaxArgs)
    x, *sizes = operands
    args.x, args.out, args.mode = views.pointer(x), views.pointer(results[0]), params["mode"]
    views.set_sizes(args, *sizes)
    return args, "cadre_amax"


def _scaled_gmm(views, operands, results, params):
    lhs, lhs_scales, rhs, rhs_scales, *rest = operands
    args, function = _gmm(views, (lhs, rhs, *rest), results, params)
    turned = not params["transpose_rhs"]
    _, args.lhs_scales = views.scaled(lhs, lhs_scales, params["lhs_mode"])
    _, args.rhs_scales = views.scaled(rhs, rhs_scales, params["rhs_mode"], turned=turned)
    return args, function


def _scaled_tgmm(views, operands, results, params):
    lhs, lhs_scales, rhs, rhs_scales, *rest = operands
    args, function = _tgmm(views, (lhs, rhs, *rest), results, params)
    args.lhs_scales = views.scales(lhs_scales, params["lhs_mode"])
    args.rhs_scales = views.scales(rhs_scales, params["rhs_mode"])
    args.lhs_columns, args.rhs_columns = params["lhs_columns"], params["rhs_columns"]
    return args, function


class _Views:
    """C views of abstract values; keeps what the args point to alive. On the host sizes are zeros, for the library reads them."""

    def __init__(self, batch_rank, symbolic_extent, on_host):
        self._batch_rank = batch_rank
        self._symbolic_extent = symbolic_extent
        self._on_host = on_host
        self._address = _FIRST_ADDRESS
        self._kept = []

    def dims(self, aval):
        return _dims(aval, self._batch_rank, self._symbolic_extent)

    def tensor(self, aval, dims=None):
        dims = self.dims(aval) if dims is None else dims
        view = _structs.Tensor()
        view.data = self._address
        self._address += _ADDRESS_STEP
        view.dtype = _dtypes.code_of(aval.dtype)
        view.device = _structs.Device(_structs.CPU if self._on_host else _structs.CUDA, 0)
        view.rank = len(dims)
        stride = 1
        for axis in reversed(range(len(dims))):
            view.shape[axis], view.strides[axis] = dims[axis], stride
            stride *= dims[axis]
        return view

    def _keep(self, value):
        self._kept.append(value)
        return ctypes.pointer(value)

    def pointer(self, aval, dims=None):
        return self._keep(self.tensor(aval, dims))

    def scales(self, aval, mode, dims=None):
        return self._keep(_structs.Scales(mode=mode, values=self.tensor(aval, dims)))

    def scaled(self, data, scales, mode, *, copy_of=None, turned=False):
        """Pointers to data and to their scales. Where a dim is symbolic, dims of the scales follow from those of the data: of weights
        that are `turned`, or of the rows (and sizes) that a copy was made of."""
        dims = self.dims(data), self.dims(scales)
        if copy_of is not None and not _is_whole(data, scales):
            rows, *sizes = copy_of
            dims = _scaled.column_shapes(mode, self.dims(rows), self.dims(*sizes)[0] if sizes else 1)
        elif not _is_whole(data, scales):
            *outer, n, k = dims[0]
            shape = _scaled.scale_shape(mode, (*outer, k, n) if turned else dims[0])
            blocks = len(shape) == 3 and turned
            dims = dims[0], (shape[0], shape[2], shape[1]) if blocks else shape
        return self.pointer(data, dims[0]), self.scales(scales, mode, dims[1])

    def grouped(self, aval):
        view = self.tensor(aval)
        return self._keep(_library.library.cadre_grouped_from_tensor(ctypes.byref(view)))

    def vectors(self, aval):
        view = self.tensor(aval)
        return self._keep(_library.library.cadre_grouped_vectors(ctypes.byref(view)))

    def set_sizes(self, args, sizes=None):
        """Without sizes all rows are one group."""
        if sizes is None:
            return
        view = self.tensor(sizes)
        if self._on_host:
            zeros = numpy.zeros(view.shape[0], sizes.dtype)
            self._kept.append(zeros)
            view.data = zeros.ctypes.data
        args.group_sizes = _structs.Sizes(view.data, view.dtype, view.device, view.shape[0])

    def set_groups(self, args, sizes, offset):
        self.set_sizes(args, sizes)
        if not self._on_host:
            args.group_offset_on_device = self.tensor(offset).data
            args.group_offset_dtype = _dtypes.code_of(offset.dtype)
