"""The operators of cadre_torch.so, with shapes and dtypes of their results for torch.compile, torch.export and `meta`. Their
derivatives are in _autograd.py and _grouped_gemm.py."""

import torch

from .. import _scaled, _structs
from . import _arguments, _dtypes
from ._schema import Operator

gmm = Operator("gmm", plain="gmm_plain")
gmm_list = Operator("gmm_list", op="gmm")
gmm_out = Operator("gmm_out", op="gmm")
gmm_activated = Operator("gmm_activated", op="gmm")
tgmm = Operator("tgmm", plain="tgmm_plain")
tgmm_out = Operator("tgmm_out", op="tgmm")
bias_grad = Operator("bias_grad")
bias_grad_out = Operator("bias_grad_out", op="bias_grad")
bias_scale_grad = Operator("bias_scale_grad", op="bias_grad")
grouped_gemm = Operator("grouped_gemm")
grouped_gemm_out = Operator("grouped_gemm_out", op="grouped_gemm")
select_experts = Operator("select_experts")
select_experts_grad = Operator("select_experts_grad", op="select_experts")
route = Operator("route")
permute = Operator("permute")
combine = Operator("combine")
combine_grad = Operator("combine_grad", op="combine")
quantize = Operator("quantize")
dequantize = Operator("dequantize")
amax = Operator("amax")
weighted_activate_grad = Operator("weighted_activate_grad")
moe_mlp = Operator("moe_mlp")
moe_mlp_grad = Operator("moe_mlp_grad", op="moe_mlp")
moe_mlp_grad_into = Operator("moe_mlp_grad_into", op="moe_mlp")
check = Operator("check")


def _rank(op, argument, tensor, rank):
    if tensor.dim() != rank:
        raise _arguments.wrong_rank(op, argument, tensor, rank)


def _rows(op, a):
    """Rows of a product: of its lhs, or of the index into it."""
    if a.lhs_rows is None:
        return a.lhs.shape[0]
    _rank(op, "lhs_rows", a.lhs_rows, 1)
    return a.lhs_rows.shape[0]


@gmm.fake
def _(a):
    _rank("gmm", "lhs", a.lhs, 2)
    _rank("gmm", "rhs", a.rhs, 3)
    if a.bias is not None and a.bias.dim() != 2:
        raise _arguments.wrong_rank("gmm", "bias", a.bias, "2: [g, n]")
    n, k = a.rhs.shape[1:] if a.transpose_rhs else reversed(a.rhs.shape[1:])
    lhs_k = a.lhs.shape[1]
    torch._check(lhs_k == k, lambda: f"gmm: rhs.k = {k}, expected lhs.k = {lhs_k}")
    dtype = a.out_dtype or _dtypes.product("gmm", a.lhs.dtype, a.rhs.dtype)
    return a.lhs.new_empty((_rows("gmm", a), n), dtype=dtype)


@gmm_list.fake
def _(a):
    return _listed_product(a)


def _listed_product(a):
    """A tensor for the result of gmm_list."""
    _rank("gmm", "lhs", a.lhs, 2)
    first = a.rhs[0]
    if len(a.rhs) > 1 or first.dim() != 3:  # one tensor of rank 3 is a stack
        for i, each in enumerate(a.rhs):
            _rank("gmm", f"rhs[{i}]", each, 2)
    n = first.shape[-2 if a.transpose_rhs else -1]
    dtype = a.out_dtype or _dtypes.product("gmm", a.lhs.dtype, first.dtype)
    return a.lhs.new_empty((_rows("gmm", a), n), dtype=dtype)


@gmm_activated.fake
def _(a):
    preact = _listed_product(a)
    m, n = preact.shape
    is_gated = a.activation >= _structs.SWIGLU
    kept = preact if a.keeps_preact else preact.new_empty((0, n))
    return preact.new_empty((m, n // 2 if is_gated else n)), kept


@tgmm.fake
def _(a):
    _rank("tgmm", "lhs", a.lhs, 2)
    _rank("tgmm", "rhs", a.rhs, 2)
    dtype = a.out_dtype or _dtypes.product("tgmm", a.lhs.dtype, a.rhs.dtype)
    k = a.lhs.shape[0 if a.lhs_columns else 1]
    n = a.rhs.shape[0 if a.rhs_columns else 1]
    return a.lhs.new_empty((a.num_groups, k, n), dtype=dtype)


@bias_grad.fake
def _(a):
    _rank("bias_grad", "dy", a.dy, 2)
    return a.dy.new_empty((a.num_groups, a.dy.shape[1]), dtype=a.out_dtype or a.dy.dtype)


@bias_scale_grad.fake
def _(a):
    _rank("bias_grad", "dy", a.dy, 2)
    return a.dy.new_empty((a.dy.shape[0],), dtype=a.out_dtype or a.dy.dtype)


@grouped_gemm.fake
def _(a):
    placement, num_groups, *dims = a.d_form
    if placement == _structs.STACKED:
        shapes = [(num_groups, *dims)]
    elif placement == _structs.PACKED:
        shapes = [(dims[-1],)]
    else:
        shapes = [tuple(dims[2 * i : 2 * i + 2]) for i in range(num_groups)]
    return [a.a[0].new_empty(shape, dtype=a.out_dtype) for shape in shapes]


@select_experts.fake
def _(a):
    _rank("select_experts", "logits", a.logits, 2)
    shape = (a.logits.shape[0], a.top_k)
    weights = a.logits.new_empty(shape, dtype=a.out_dtype or a.logits.dtype)
    return weights, a.logits.new_empty(shape, dtype=a.ids_dtype)


@select_experts_grad.fake
def _(a):
    return torch.empty_like(a.logits, memory_format=torch.contiguous_format)


@route.fake
def _(a):
    _rank("route", "expert_ids", a.expert_ids, 2)
    tokens, top_k = a.expert_ids.shape
    shapes = ((a.num_experts,), (tokens * top_k,), (tokens, top_k))
    return tuple(a.expert_ids.new_empty(shape, dtype=a.dtype) for shape in shapes)


@permute.fake
def _(a):
    _rank("permute", "x", a.x, 2)
    return a.x.new_empty((a.source_row.shape[0], a.x.shape[1]))


@combine.fake
def _(a):
    _rank("combine", "y", a.y, 2)
    shape = (a.slot_row.shape[0], a.y.shape[1])
    return a.y.new_empty(shape, dtype=a.out_dtype or a.y.dtype)


@combine_grad.fake
def _(a):
    results = []
    if a.dy_dtype is not None:
        shape = (a.source_row.shape[0], a.dout.shape[1])
        results.append(a.dout.new_empty(shape, dtype=a.dy_dtype))
    if a.dweights_dtype is not None:
        results.append(a.dout.new_empty(a.slot_row.shape, dtype=a.dweights_dtype))
    return results


def _blocks(size, mode):
    """How many scales a mode with blocks has along a dim of this size."""
    return -(-size // _scaled.BLOCKS[mode])


def _scales_of_weights(mode, groups, n, k):
    if mode == _scaled.MODES["tensor"]:
        return (groups,)
    if mode == _scaled.MODES["row"]:
        return (groups, n)
    return groups, n if mode == _scaled.MODES["mx"] else _blocks(n, mode), _blocks(k, mode)


def _scales_of_rows(mode, m, k):
    if mode == _scaled.MODES["tensor"]:
        return (1,)
    return (m,) if mode == _scaled.MODES["row"] else (m, _blocks(k, mode))


def _column_shapes(mode, groups, m, k):
    """Data and scales of a column-wise copy."""

    def capacity(block):
        with_rows = torch.sym_min(m, groups)
        return (m + with_rows * (block - 1)) // block * block

    if mode == _scaled.MODES["tensor"]:
        scales = (1,)
    elif mode == _scaled.MODES["row"]:
        scales = (groups, k)
    else:
        block = _scaled.BLOCKS[mode]
        scales = (capacity(block) // block, k)
    return (k, capacity(_scaled.COLUMN_ALIGNMENT)), scales


@quantize.fake
def _(a):
    groups = 1 if a.group_sizes is None else a.group_sizes.shape[0]
    k = a.x.shape[-1] // (2 if a.activation >= _structs.SWIGLU else 1)
    if a.x.dim() == 3:
        groups, n, _ = a.x.shape
        rows = (groups, n, k), _scales_of_weights(a.mode, groups, n, k)
        columns = (groups, k, n), _scales_of_weights(a.mode, groups, k, n)
    else:
        _rank("quantize", "x", a.x, 2)
        m = a.x.shape[0] if a.source_row is None else a.source_row.shape[0]
        rows = (m, k), _scales_of_rows(a.mode, m, k)
        columns = _column_shapes(a.mode, groups, m, k)
    results = []
    for wanted, (data, scales) in ((a.wants_rows, rows), (a.wants_columns, columns)):
        if wanted:
            results.append(a.x.new_empty(data, dtype=a.dtype))
            results.append(a.x.new_empty(scales, dtype=a.scale_dtype))
    return results


@dequantize.fake
def _(a):
    shape = (a.num_rows, a.x.shape[0]) if a.columns else a.x.shape
    return a.x.new_empty(shape, dtype=a.out_dtype)


@amax.fake
def _(a):
    if a.x.dim() == 3:
        shape = _scales_of_weights(a.mode, *a.x.shape)
    else:
        shape = _scales_of_rows(a.mode, *a.x.shape)
    return a.x.new_empty(shape, dtype=torch.float32)


@weighted_activate_grad.fake
def _(a):
    d_preact = torch.empty_like(a.preact, memory_format=torch.contiguous_format)
    row_dot = [a.preact.new_empty(a.preact.shape[0], dtype=torch.float32)] if a.wants_row_dot else []
    return [d_preact, *row_dot]


def _preact_columns(a):
    return a.w13[0].shape[-1 if a.transposed else -2]


@moe_mlp.fake
def _(a):
    _rank("moe_mlp", "x", a.x, 2)
    out = a.x.new_empty(a.x.shape, dtype=a.out_dtype or a.x.dtype)
    return out, a.x.new_empty((a.source_row.shape[0] if a.keeps_preact else 0, _preact_columns(a)))


@moe_mlp_grad.fake
def moe_mlp_gradients(a):
    """Tensors for the gradients that moe_mlp_grad's arguments want, in its order."""
    num_groups = a.w13[0].shape[0] if a.w13[0].dim() == 3 else len(a.w13)
    columns = _preact_columns(a)

    def like(tensors, *shape):
        return shape, tensors[0].dtype if tensors else a.x.dtype

    results = (
        like([a.x], *a.x.shape),
        like([] if a.weights is None else [a.weights], *a.slot_row.shape),
        like(a.w13, num_groups, *a.w13[0].shape[-2:]),
        like(a.w2, num_groups, *a.w2[0].shape[-2:]),
        like(a.bias13, num_groups, columns),
        like(a.bias2, num_groups, a.x.shape[1]),
    )
    pairs = zip(results, a.wanted, strict=True)
    return [a.x.new_empty(shape, dtype=dtype) for (shape, dtype), wanted in pairs if wanted]


for _written in (
    gmm_out,
    tgmm_out,
    bias_grad_out,
    grouped_gemm_out,
    moe_mlp_grad_into,
    check,
):
    _written.fake(lambda arguments: None)
