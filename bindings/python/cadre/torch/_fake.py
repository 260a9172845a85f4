"""Shapes and dtypes of the operators' results, for torch.compile, torch.export and tensors on `meta`."""

import functools

import torch
from torch.library import register_fake

from .. import _structs
from .._errors import wrong_value
from . import _arguments, _dtypes

_INTEGERS = ("group_sizes", "group_offset_tensor")


def _fake(name, op):
    """Registers a fake that first looks at the devices. `op`: what errors call the operator."""

    def register(function):
        arguments = getattr(torch.ops.cadre, name).default._schema.arguments
        names = [argument.name for argument in arguments]

        @functools.wraps(function)
        def checked(*args):
            _check_meta(op, names, args)
            return function(*args)

        register_fake(f"cadre::{name}", checked)
        return function

    return register


def _check_meta(op, names, args):
    """Tensors on `meta` have no memory, so all of a call are there or none; sizes beside them may be on the host."""
    first = None
    for name, arg in zip(names, args, strict=True):
        is_list = isinstance(arg, (list, tuple))
        for i, each in enumerate(arg if is_list else (arg,)):
            if not isinstance(each, torch.Tensor):
                continue
            first = first or (name, each.device)
            if each.is_meta == (first[1].type == "meta"):
                continue
            sizes = name in _INTEGERS or name.endswith(("_rows", "_cols", "_offsets"))
            if not (sizes and each.device.type == "cpu"):
                argument = name.removesuffix("_tensor")
                if is_list and len(arg) > 1:
                    argument += f"[{i}]"
                expected = f"{first[0]}.device = {first[1]}"
                raise wrong_value(op, f"{argument}.device", each.device, expected)


def _rank(op, argument, tensor, rank):
    if tensor.dim() != rank:
        raise _arguments.wrong_rank(op, argument, tensor, rank)


@_fake("gmm", "gmm")
def _gmm(
    lhs,
    rhs,
    group_sizes,
    alpha,
    bias,
    bias_scale,
    row_scale,
    group_offset_tensor,
    group_offset,
    transpose_rhs,
    alpha_value,
    tail,
    precision,
    out_dtype,
):
    _rank("gmm", "lhs", lhs, 2)
    _rank("gmm", "rhs", rhs, 3)
    if bias is not None and bias.dim() != 2:
        raise _arguments.wrong_rank("gmm", "bias", bias, "2: [g, n]")
    k, n = (rhs.shape[2], rhs.shape[1]) if transpose_rhs else (rhs.shape[1], rhs.shape[2])
    torch._check(lhs.shape[1] == k, lambda: f"gmm: rhs.k = {k}, expected lhs.k = {lhs.shape[1]}")
    dtype = out_dtype or _dtypes.product("gmm", lhs.dtype, rhs.dtype)
    return lhs.new_empty((lhs.shape[0], n), dtype=dtype)


@_fake("gmm_plain", "gmm")
def _gmm_plain(lhs, rhs, group_sizes, transpose_rhs):
    return _gmm(lhs, rhs, group_sizes, *[None] * 5, 0, transpose_rhs, 1.0, 0, 0, None)


@_fake("gmm_list", "gmm")
def _gmm_list(
    lhs,
    rhs,
    group_sizes,
    alpha,
    bias,
    bias_scale,
    row_scale,
    group_offset_tensor,
    group_offset,
    transpose_rhs,
    alpha_value,
    tail,
    precision,
    out_dtype,
):
    _rank("gmm", "lhs", lhs, 2)
    if len(rhs) > 1 or rhs[0].dim() != 3:  # one tensor of rank 3 is a stack
        for i, each in enumerate(rhs):
            _rank("gmm", f"rhs[{i}]", each, 2)
    n = rhs[0].shape[-2 if transpose_rhs else -1]
    dtype = out_dtype or _dtypes.product("gmm", lhs.dtype, rhs[0].dtype)
    return lhs.new_empty((lhs.shape[0], n), dtype=dtype)


@_fake("tgmm", "tgmm")
def _tgmm(
    lhs,
    rhs,
    group_sizes,
    alpha,
    group_offset_tensor,
    group_offset,
    num_groups,
    alpha_value,
    precision,
    out_dtype,
):
    _rank("tgmm", "lhs", lhs, 2)
    _rank("tgmm", "rhs", rhs, 2)
    dtype = out_dtype or _dtypes.product("tgmm", lhs.dtype, rhs.dtype)
    return lhs.new_empty((num_groups, lhs.shape[1], rhs.shape[1]), dtype=dtype)


@_fake("tgmm_plain", "tgmm")
def _tgmm_plain(lhs, rhs, group_sizes, num_groups):
    return _tgmm(lhs, rhs, group_sizes, None, None, 0, num_groups, 1.0, 0, None)


@_fake("bias_grad", "bias_grad")
def _bias_grad(
    dy, group_sizes, bias_scale, group_offset_tensor, group_offset, num_groups, out_dtype
):
    _rank("bias_grad", "dy", dy, 2)
    return dy.new_empty((num_groups, dy.shape[1]), dtype=out_dtype or dy.dtype)


@_fake("bias_scale_grad", "bias_grad")
def _bias_scale_grad(dy, bias, group_sizes, group_offset_tensor, group_offset, out_dtype):
    _rank("bias_grad", "dy", dy, 2)
    return dy.new_empty((dy.shape[0],), dtype=out_dtype or dy.dtype)


@_fake("grouped_gemm", "grouped_gemm")
def _grouped_gemm(
    a,
    a_rows,
    a_cols,
    a_offsets,
    a_form,
    b,
    b_rows,
    b_cols,
    b_offsets,
    b_form,
    c,
    c_rows,
    c_cols,
    c_offsets,
    c_form,
    d_rows,
    d_cols,
    d_offsets,
    d_form,
    alpha,
    beta,
    alpha_value,
    beta_value,
    transa,
    transb,
    precision,
    out_dtype,
):
    placement, num_groups = d_form[:2]
    if placement == _structs.STACKED:
        shapes = [(num_groups, d_form[2], d_form[3])]
    elif placement == _structs.PACKED:
        shapes = [(d_form[6],)]
    else:
        shapes = [tuple(d_form[2 + 2 * i : 4 + 2 * i]) for i in range(num_groups)]
    return [a[0].new_empty(shape, dtype=out_dtype) for shape in shapes]


def _nothing(*args):
    return None


for _name in ("gmm_out", "tgmm_out", "bias_grad_out", "grouped_gemm_out", "check"):
    _fake(_name, _name.removesuffix("_out"))(_nothing)
