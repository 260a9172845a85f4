"""Shapes and dtypes of the operators' results, for torch.compile and torch.export."""

import torch
from torch.library import register_fake

from .. import _structs
from .._errors import wrong_value
from . import _dtypes


def _rank(op, argument, tensor, rank):
    if tensor.dim() != rank:
        raise wrong_value(op, f"{argument}.rank", tensor.dim(), rank)


@register_fake("cadre::gmm")
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
    k, n = (rhs.shape[2], rhs.shape[1]) if transpose_rhs else (rhs.shape[1], rhs.shape[2])
    torch._check(lhs.shape[1] == k, lambda: f"gmm: rhs.k = {k}, expected lhs.k = {lhs.shape[1]}")
    dtype = out_dtype or _dtypes.product("gmm", lhs.dtype, rhs.dtype)
    return lhs.new_empty((lhs.shape[0], n), dtype=dtype)


@register_fake("cadre::gmm_plain")
def _gmm_plain(lhs, rhs, group_sizes, transpose_rhs):
    return _gmm(lhs, rhs, group_sizes, *[None] * 5, 0, transpose_rhs, 1.0, 0, 0, None)


@register_fake("cadre::gmm_list")
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
    n = rhs[0].shape[-2 if transpose_rhs else -1]
    dtype = out_dtype or _dtypes.product("gmm", lhs.dtype, rhs[0].dtype)
    return lhs.new_empty((lhs.shape[0], n), dtype=dtype)


@register_fake("cadre::tgmm")
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


@register_fake("cadre::tgmm_plain")
def _tgmm_plain(lhs, rhs, group_sizes, num_groups):
    return _tgmm(lhs, rhs, group_sizes, None, None, 0, num_groups, 1.0, 0, None)


@register_fake("cadre::bias_grad")
def _bias_grad(
    dy, group_sizes, bias_scale, group_offset_tensor, group_offset, num_groups, out_dtype
):
    _rank("bias_grad", "dy", dy, 2)
    return dy.new_empty((num_groups, dy.shape[1]), dtype=out_dtype or dy.dtype)


@register_fake("cadre::bias_scale_grad")
def _bias_scale_grad(dy, bias, group_sizes, group_offset_tensor, group_offset, out_dtype):
    _rank("bias_grad", "dy", dy, 2)
    return dy.new_empty((dy.shape[0],), dtype=out_dtype or dy.dtype)


@register_fake("cadre::grouped_gemm")
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
    register_fake(f"cadre::{_name}", _nothing)
