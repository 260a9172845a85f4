"""Gradients of gmm, tgmm, bias_grad and bias_scale_grad, each made of these same four operators.

Each op is linear in every input that has a gradient, so its forward derivative is a sum of the op itself, with one input
after the other replaced by its tangent and the terms without that input left out.

So all can be differentiated again, to any order; nothing is transposed in memory; and rows that no local group covers
are neither read nor given anything but zeros. With y[r] = row_scale[r] * (alpha_g * lhs[r] @ rhs_g + bias_scale[r] *
bias_g), and dy its gradient:

    dlhs[r]        = row_scale[r] * alpha_g * dy[r] @ rhs_g^T                  gmm with the other layout of rhs
    drhs_g         = alpha_g * lhs^T @ (row_scale * dy), over rows of g        tgmm
    dbias_g        = sum of row_scale[r] * bias_scale[r] * dy[r]               bias_grad
    dbias_scale[r] = row_scale[r] * dot(dy[r], bias_g)                         bias_scale_grad
    dalpha_g       = sum of row_scale[r] * dot(dy[r], lhs[r] @ rhs_g)          gmm, then bias_grad of one column
    drow_scale[r]  = dot(dy[r], y[r] without row_scale)                        gmm
"""

import torch

from . import _dtypes
from ._calls import call, differentiable

_gmm = torch.ops.cadre.gmm.default
_gmm_list = torch.ops.cadre.gmm_list.default
_tgmm = torch.ops.cadre.tgmm.default
_bias_grad = torch.ops.cadre.bias_grad.default
_bias_scale_grad = torch.ops.cadre.bias_scale_grad.default


def _product(
    lhs,
    rhs,
    sizes,
    *,
    alpha=None,
    bias=(),
    bias_scale=None,
    row_scale=None,
    where,
    transpose_rhs=False,
    alpha_value=1.0,
    precision=0,
    out_dtype=None,
):
    """gmm for one rhs tensor, or for a list of matrices. `where`: (group offset tensor or None, group offset)."""
    common = (bias_scale, row_scale, *where, transpose_rhs, alpha_value, 0, precision, out_dtype)
    if isinstance(rhs, torch.Tensor) and not isinstance(bias, list):
        return call(_gmm, lhs, rhs, sizes, alpha, bias[0] if bias else None, *common)
    return call(
        _gmm_list,
        lhs,
        [rhs] if isinstance(rhs, torch.Tensor) else rhs,
        sizes,
        alpha,
        list(bias),
        *common,
    )


def _num_groups(rhs):
    first = _first(rhs)
    return first.shape[0] if first.dim() == 3 else len(rhs)


def _first(rhs):
    return rhs if isinstance(rhs, torch.Tensor) else rhs[0]


def _local_rows(column, sizes, num_groups, where, row_scale=None):
    """row_scale[r] * column[r] where a local group covers row r, else zero whatever column holds there: a gmm with k = 1."""
    ones = column.new_ones((num_groups, 1, 1))
    return _product(
        column.unsqueeze(1), ones, sizes, row_scale=row_scale, where=where, out_dtype=column.dtype
    ).squeeze(1)


def _scaled_rows(dy, row_scale):
    return dy if row_scale is None else (dy * row_scale.unsqueeze(1)).to(dy.dtype)


def _times(first, second):
    return second if first is None else first if second is None else first * second


def _dot(dy, rows):
    dtype = _dtypes.accumulator(rows.dtype)
    return (dy.to(dtype) * rows.to(dtype)).sum(1)


class _Wanted:
    """Which gradients of gmm are wanted, and so which inputs must be kept for them."""

    def __init__(self, needs):
        each = [any(need) if isinstance(need, (list, tuple)) else need for need in needs[:7]]
        self.lhs, self.rhs, _, self.alpha, self.bias, self.bias_scale, self.row_scale = each
        self.product_again = self.alpha or self.row_scale

    @property
    def keep_lhs(self):
        return self.rhs or self.product_again

    @property
    def keep_rhs(self):
        return self.lhs or self.product_again

    @property
    def keep_bias(self):
        return self.bias_scale or self.row_scale


def _gmm_setup(ctx, inputs, output):
    lhs, rhs, sizes, alpha, bias, bias_scale, row_scale, offset_tensor = inputs[:8]
    wanted = _Wanted(ctx.needs)
    # Lists are saved as their tensors, one after the other.
    rhs_list = rhs if isinstance(rhs, (list, tuple)) else None
    bias_list = bias if isinstance(bias, (list, tuple)) else None
    ctx.rhs_count = None if rhs_list is None else len(rhs_list)
    ctx.bias_count = None if bias_list is None else len(bias_list)
    ctx.rhs_groups = _num_groups(rhs)
    ctx.rhs_dtype = _first(rhs).dtype
    ctx.rhs_stacked = isinstance(rhs, torch.Tensor) or rhs[0].dim() == 3
    ctx.lhs_dtype = lhs.dtype
    some_bias = bias if bias_list is None else (bias_list[0] if bias_list else None)
    ctx.bias_dtype = None if some_bias is None else some_bias.dtype
    ctx.bias_stacked = some_bias is None or some_bias.dim() == 2
    ctx.alpha_dtype = None if alpha is None else alpha.dtype
    ctx.bias_scale_dtype = None if bias_scale is None else bias_scale.dtype
    ctx.group_offset, ctx.transpose_rhs, ctx.alpha_value, _, ctx.precision = inputs[8:13]
    ctx.save_for_backward(
        lhs if wanted.keep_lhs else None,
        sizes,
        alpha,
        bias_scale,
        row_scale,
        offset_tensor,
        *(rhs_list or [rhs] if wanted.keep_rhs else []),
        *((bias_list if bias_list is not None else [bias]) if wanted.keep_bias else []),
    )


def _saved_list(tensors, count):
    """(what was saved as `rhs` or `bias`, the rest): one tensor where count is None."""
    if count is None:
        return (tensors[0] if tensors else None), tensors[1:]
    return list(tensors[:count]), tensors[count:]


def _gmm_backward(ctx, dy):
    wanted = _Wanted(ctx.needs)
    lhs, sizes, alpha, bias_scale, row_scale, offset_tensor, *rest = ctx.saved_tensors
    rhs, rest = _saved_list(rest, ctx.rhs_count) if wanted.keep_rhs else (None, rest)
    bias, _ = _saved_list(rest, ctx.bias_count) if wanted.keep_bias else (None, rest)
    where = (offset_tensor, ctx.group_offset)
    groups = ctx.rhs_groups
    scalars = {"alpha": alpha, "alpha_value": ctx.alpha_value, "precision": ctx.precision}
    forward = {"where": where, "transpose_rhs": ctx.transpose_rhs, "precision": ctx.precision}
    dlhs = drhs = dalpha = dbias = dbias_scale = drow_scale = None

    if wanted.lhs:
        dlhs = _product(
            dy,
            rhs,
            sizes,
            row_scale=row_scale,
            where=where,
            transpose_rhs=not ctx.transpose_rhs,
            out_dtype=ctx.lhs_dtype,
            **scalars,
        )
    if wanted.rhs:
        scaled = _scaled_rows(dy, row_scale)
        # rhs is [g, k, n], or [g, n, k] with transpose_rhs; its gradient is written in that same layout.
        first, second = (scaled, lhs) if ctx.transpose_rhs else (lhs, scaled)
        drhs = call(
            _tgmm,
            first,
            second,
            sizes,
            alpha,
            *where,
            groups,
            ctx.alpha_value,
            ctx.precision,
            ctx.rhs_dtype,
        )
        if ctx.rhs_count is not None:
            drhs = [drhs] if ctx.rhs_stacked else list(drhs.unbind(0))
    if wanted.alpha:
        dtype = _dtypes.accumulator(dy.dtype)
        column = _dot(dy, _product(lhs, rhs, sizes, out_dtype=dtype, **forward))
        dalpha = call(
            _bias_grad, column.unsqueeze(1), sizes, row_scale, *where, groups, ctx.alpha_dtype
        ).squeeze(1)
    if wanted.bias:
        dbias = call(
            _bias_grad, dy, sizes, _times(bias_scale, row_scale), *where, groups, ctx.bias_dtype
        )
        if ctx.bias_count is not None:
            dbias = [dbias] if ctx.bias_stacked else list(dbias.unbind(0))
    if wanted.bias_scale:
        vectors = bias if isinstance(bias, list) else [bias]
        column = call(_bias_scale_grad, dy, vectors, sizes, *where, _dtypes.accumulator(dy.dtype))
        if row_scale is not None:
            column = _local_rows(column, sizes, groups, where, row_scale)
        dbias_scale = column.to(ctx.bias_scale_dtype)
    if wanted.row_scale:
        vectors = bias if isinstance(bias, list) else () if bias is None else (bias,)
        unscaled = _product(
            lhs,
            rhs,
            sizes,
            alpha=alpha,
            bias=vectors,
            bias_scale=bias_scale,
            alpha_value=ctx.alpha_value,
            out_dtype=_dtypes.accumulator(dy.dtype),
            **forward,
        )
        drow_scale = _local_rows(_dot(dy, unscaled), sizes, groups, where).to(row_scale.dtype)
    if ctx.bias_count is not None and dbias is None:
        dbias = [None] * ctx.bias_count
    if ctx.rhs_count is not None and drhs is None:
        drhs = [None] * ctx.rhs_count
    return (
        dlhs,
        drhs,
        None,
        dalpha,
        dbias,
        dbias_scale,
        drow_scale,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
    )


def _tgmm_setup(ctx, inputs, output):
    (
        lhs,
        rhs,
        sizes,
        alpha,
        offset_tensor,
        ctx.group_offset,
        ctx.num_groups,
        ctx.alpha_value,
        ctx.precision,
        _,
    ) = inputs
    need_lhs, need_rhs, _, need_alpha = ctx.needs[:4]
    ctx.dtypes = lhs.dtype, rhs.dtype
    kept = (lhs if need_rhs or need_alpha else None, rhs if need_lhs or need_alpha else None)
    ctx.save_for_backward(*kept, sizes, alpha, offset_tensor)


def _tgmm_backward(ctx, dout):
    lhs, rhs, sizes, alpha, offset_tensor = ctx.saved_tensors
    need_lhs, need_rhs, _, need_alpha = ctx.needs[:4]
    where = (offset_tensor, ctx.group_offset)
    common = {
        "alpha": alpha,
        "alpha_value": ctx.alpha_value,
        "precision": ctx.precision,
        "where": where,
    }
    dlhs = drhs = dalpha = None
    if need_lhs:
        dlhs = _product(rhs, dout, sizes, transpose_rhs=True, out_dtype=ctx.dtypes[0], **common)
    if need_rhs:
        drhs = _product(lhs, dout, sizes, out_dtype=ctx.dtypes[1], **common)
    if need_alpha:
        dtype = _dtypes.accumulator(dout.dtype)
        again = call(
            _tgmm, lhs, rhs, sizes, None, *where, ctx.num_groups, 1.0, ctx.precision, dtype
        )
        dalpha = (again * dout.to(dtype)).sum((1, 2)).to(alpha.dtype)
    return dlhs, drhs, None, dalpha, None, None, None, None, None, None


def _spread(vectors, row_factors, sizes, where, dtype, m):
    """row_factors[r] * vectors[g] in every row r of group g, zero elsewhere: a gmm with k = 0 and a bias."""
    first = vectors[0]
    groups, n = first.shape if first.dim() == 2 else (len(vectors), first.shape[0])
    empty = first.new_empty((m, 0))
    bias = (first,) if first.dim() == 2 else list(vectors)
    return _product(
        empty,
        first.new_empty((groups, 0, n)),
        sizes,
        bias=bias,
        bias_scale=row_factors,
        where=where,
        out_dtype=dtype,
    )


def _bias_grad_setup(ctx, inputs, output):
    dy, sizes, bias_scale, offset_tensor, ctx.group_offset, _, _ = inputs
    ctx.m, ctx.dy_dtype = dy.shape[0], dy.dtype
    ctx.save_for_backward(dy if ctx.needs[2] else None, sizes, bias_scale, offset_tensor)


def _bias_grad_backward(ctx, dout):
    dy, sizes, bias_scale, offset_tensor = ctx.saved_tensors
    where = (offset_tensor, ctx.group_offset)
    ddy = dscale = None
    if ctx.needs[0]:
        ddy = _spread((dout,), bias_scale, sizes, where, ctx.dy_dtype, ctx.m)
    if ctx.needs[2]:
        dscale = call(_bias_scale_grad, dy, [dout], sizes, *where, bias_scale.dtype)
    return ddy, None, dscale, None, None, None, None


def _bias_scale_grad_setup(ctx, inputs, output):
    dy, bias, sizes, offset_tensor, ctx.group_offset, _ = inputs
    need_dy, need_bias = ctx.needs[0], any(ctx.needs[1])
    ctx.bias_count, ctx.bias_stacked, ctx.bias_dtype = len(bias), bias[0].dim() == 2, bias[0].dtype
    ctx.groups = bias[0].shape[0] if ctx.bias_stacked else len(bias)
    ctx.m, ctx.dy_dtype = dy.shape[0], dy.dtype
    ctx.save_for_backward(
        dy if need_bias else None, sizes, offset_tensor, *(bias if need_dy else ())
    )


def _bias_scale_grad_backward(ctx, dout):
    dy, sizes, offset_tensor, *bias = ctx.saved_tensors
    where = (offset_tensor, ctx.group_offset)
    ddy, dbias = None, [None] * ctx.bias_count
    if ctx.needs[0]:
        ddy = _spread(bias, dout, sizes, where, ctx.dy_dtype, ctx.m)
    if any(ctx.needs[1]):
        stack = call(_bias_grad, dy, sizes, dout, *where, ctx.groups, ctx.bias_dtype)
        dbias = [stack] if ctx.bias_stacked else list(stack.unbind(0))
    return ddy, dbias, None, None, None, None


def _sum_of(op, inputs, replacements, dtype):
    """The sum of op(inputs) with each of `replacements` ({place: value}) in turn, rounded once; the last input is out_dtype."""
    several = len(replacements) > 1
    total = None
    for replaced in replacements:
        arguments = [replaced.get(place, value) for place, value in enumerate(inputs)]
        arguments[-1] = _dtypes.accumulator(dtype) if several else dtype
        part = call(op, *arguments)
        total = part if total is None else total + part
    return total.to(dtype)


def _gmm_tangent(op, inputs, tangents):
    lhs, rhs, bias, transpose_rhs = inputs[0], inputs[1], inputs[4], inputs[9]
    product_alone = {4: [] if isinstance(bias, list) else None, 5: None}

    def without_k(each):
        return each.narrow(-1 if transpose_rhs else -2, 0, 0)

    replacements = []
    for place in (0, 1, 3, 4, 5, 6):
        if tangents[place] is None:
            continue
        replaced = {place: tangents[place]}
        if place in (0, 1, 3):
            replaced.update(product_alone)
        elif place in (4, 5):
            no_rhs = [without_k(each) for each in rhs] if isinstance(rhs, list) else without_k(rhs)
            replaced.update({0: lhs[:, :0], 1: no_rhs})
        replacements.append(replaced)
    dtype = inputs[13] or _dtypes.product("gmm", lhs.dtype, _first(rhs).dtype)
    return _sum_of(op, inputs, replacements, dtype)


def _multilinear_tangent(default_dtype):
    """For ops with one term; default_dtype(inputs): of the result unless out_dtype is given."""

    def tangent(op, inputs, tangents):
        replacements = [{i: each} for i, each in enumerate(tangents) if each is not None]
        return _sum_of(op, inputs, replacements, inputs[-1] or default_dtype(inputs))

    return tangent


_tgmm_tangent = _multilinear_tangent(
    lambda inputs: _dtypes.product("tgmm", inputs[0].dtype, inputs[1].dtype)
)
_dy_tangent = _multilinear_tangent(lambda inputs: inputs[0].dtype)

differentiable(_gmm, _gmm_setup, _gmm_backward, _gmm_tangent)
differentiable(_gmm_list, _gmm_setup, _gmm_backward, _gmm_tangent)
differentiable(_tgmm, _tgmm_setup, _tgmm_backward, _tgmm_tangent)
differentiable(_bias_grad, _bias_grad_setup, _bias_grad_backward, _dy_tangent)
differentiable(_bias_scale_grad, _bias_scale_grad_setup, _bias_scale_grad_backward, _dy_tangent)
