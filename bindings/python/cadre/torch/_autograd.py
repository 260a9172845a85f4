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

Where rows are taken by an index, the gradient of each row is added to that of the row it was taken from: combine, in slot
order.
"""

from .._errors import wrong_value
from . import _dtypes
from ._operators import bias_grad, bias_scale_grad, combine, gmm, gmm_list, tgmm
from ._transforms import Derivatives


def _groups(a):
    """The arguments that say which rows are whose."""
    return {
        "group_sizes": a.group_sizes,
        "ends": a.ends,
        "group_offset_tensor": a.group_offset_tensor,
        "group_offset": a.group_offset,
    }


def _asked(dtype, lhs, rhs):
    """dtype as out_dtype of a product of these types: None where it is theirs anyway, which lets a call be plain."""
    return None if _dtypes.PRODUCTS.get((lhs, rhs)) is dtype else dtype


def _product(
    a,
    lhs,
    rhs,
    out_dtype,
    *,
    alpha=None,
    alpha_value=1.0,
    transpose_rhs=False,
    bias=None,
    bias_scale=None,
    row_scale=None,
    lhs_rows=None,
    slot_row=None,
    precision=0,
):
    """gmm with the groups of the arguments `a`, for one rhs tensor or a list of matrices; bias likewise."""
    first, call = rhs, gmm.call
    if isinstance(rhs, list) or isinstance(bias, list):
        rhs, bias, call = _as_list(rhs), _as_list(bias), gmm_list.call
        first = rhs[0]
    return call(
        lhs=lhs,
        rhs=rhs,
        group_sizes=a.group_sizes,
        ends=a.ends,
        alpha=alpha,
        bias=bias,
        bias_scale=bias_scale,
        row_scale=row_scale,
        lhs_rows=lhs_rows,
        slot_row=slot_row,
        group_offset_tensor=a.group_offset_tensor,
        group_offset=a.group_offset,
        transpose_rhs=transpose_rhs,
        alpha_value=alpha_value,
        precision=precision,
        out_dtype=_asked(out_dtype, lhs.dtype, first.dtype),
    )


def _as_list(tensors):
    return tensors if isinstance(tensors, list) else [] if tensors is None else [tensors]


def _first(tensors):
    return tensors[0] if isinstance(tensors, list) else tensors


def _count(tensors, rank):
    """How many groups one stack, a list of it alone, or a list of tensors of rank `rank` has."""
    first = _first(tensors)
    return first.shape[0] if first.dim() > rank else len(tensors)


def _as_given(stack, tensors, rank):
    """A gradient of all groups in the form of the argument: one tensor, a list of one stack, or a list."""
    if not isinstance(tensors, list):
        return stack
    return [stack] if tensors[0].dim() > rank else list(stack.unbind(0))


def _local_rows(a, column, num_groups, row_scale=None):
    """row_scale[r] * column[r] where a local group covers row r, else zero whatever column holds there: a gmm with k = 1."""
    ones = column.new_ones((num_groups, 1, 1))
    return _product(a, column.unsqueeze(1), ones, column.dtype, row_scale=row_scale).squeeze(1)


def _to_their_rows(op, a, gradient, rows, dtype):
    """The gradient of an operand from that of its rows in the product: the same, or with an index the sums of its rows'."""
    if rows is None:
        return gradient
    if a.slot_row is None:
        operand = "lhs" if rows is a.lhs_rows else "rhs"
        expected = f"that of route, because {operand} wants a gradient through {operand}_rows"
        raise wrong_value(op, "slot_row", None, expected)
    return combine.call(y=gradient, slot_row=a.slot_row, source_row=rows, out_dtype=dtype)


def _times(first, second):
    return second if first is None else first if second is None else first * second


def _dot(dy, rows):
    dtype = _dtypes.accumulator(rows.dtype)
    return (dy.to(dtype) * rows.to(dtype)).sum(1)


_OF_GROUPS = (
    *("group_sizes", "group_offset_tensor", "alpha", "bias_scale", "row_scale"),
    *("lhs_rows", "rhs_rows", "slot_row"),
)


def _gmm_kept(needs):
    kept = [*_OF_GROUPS]
    product_again = needs.alpha or needs.row_scale
    if needs.rhs or product_again:
        kept.append("lhs")
    if needs.lhs or product_again:
        kept.append("rhs")
    if needs.bias_scale or needs.row_scale:
        kept.append("bias")
    return kept


def gmm_backward(a, needs, dy):
    rhs, gradients = a.rhs, {}
    is_list = isinstance(rhs, list)
    num_groups = _count(rhs, 2) if is_list else rhs.shape[0]
    rhs_dtype = rhs[0].dtype if is_list else rhs.dtype
    if needs.lhs:
        call = gmm_list.call if is_list else gmm.call
        rows = call(
            lhs=dy,
            rhs=rhs,
            group_sizes=a.group_sizes,
            ends=a.ends,
            alpha=a.alpha,
            row_scale=a.row_scale,
            group_offset_tensor=a.group_offset_tensor,
            group_offset=a.group_offset,
            transpose_rhs=not a.transpose_rhs,
            alpha_value=a.alpha_value,
            precision=a.precision,
            out_dtype=_asked(a.lhs.dtype, dy.dtype, rhs_dtype),
        )
        gradients["lhs"] = _to_their_rows("gmm", a, rows, a.lhs_rows, a.lhs.dtype)
    if needs.rhs:
        scaled = dy if a.row_scale is None else (dy * a.row_scale.unsqueeze(1)).to(dy.dtype)
        # rhs is [g, k, n], or [g, n, k] with transpose_rhs; its gradient is written in that same layout.
        first, second = (scaled, a.lhs) if a.transpose_rhs else (a.lhs, scaled)
        index = "rhs_rows" if a.transpose_rhs else "lhs_rows"
        stack = tgmm.call(
            lhs=first,
            rhs=second,
            **{index: a.lhs_rows},
            slot_row=a.slot_row,
            group_sizes=a.group_sizes,
            ends=a.ends,
            alpha=a.alpha,
            group_offset_tensor=a.group_offset_tensor,
            group_offset=a.group_offset,
            num_groups=num_groups,
            alpha_value=a.alpha_value,
            precision=a.precision,
            out_dtype=_asked(rhs_dtype, first.dtype, second.dtype),
        )
        gradients["rhs"] = _as_given(stack, rhs, 2) if is_list else stack
    if needs.bias:
        stack = bias_grad.call(
            dy=dy,
            bias_scale=_times(a.bias_scale, a.row_scale),
            num_groups=num_groups,
            out_dtype=_first(a.bias).dtype,
            **_groups(a),
        )
        gradients["bias"] = _as_given(stack, a.bias, 1)
    if needs.alpha or needs.bias_scale or needs.row_scale:
        gradients.update(_gmm_scale_gradients(a, needs, dy, num_groups))
    return gradients


def _gmm_scale_gradients(a, needs, dy, num_groups):
    """Those of alpha, bias_scale and row_scale, which are sums over rows."""
    wide = _dtypes.accumulator(dy.dtype)
    forward = {
        "transpose_rhs": a.transpose_rhs,
        "precision": a.precision,
        "lhs_rows": a.lhs_rows,
        "slot_row": a.slot_row,
    }
    gradients = {}
    if needs.alpha:
        column = _dot(dy, _product(a, a.lhs, a.rhs, wide, **forward)).unsqueeze(1)
        gradients["alpha"] = bias_grad.call(
            dy=column,
            bias_scale=a.row_scale,
            num_groups=num_groups,
            out_dtype=a.alpha.dtype,
            **_groups(a),
        ).squeeze(1)
    if needs.bias_scale:
        column = bias_scale_grad.call(
            dy=dy, bias=_as_list(a.bias), out_dtype=wide, **_groups(a)
        )
        if a.row_scale is not None:
            column = _local_rows(a, column, num_groups, a.row_scale)
        gradients["bias_scale"] = column.to(a.bias_scale.dtype)
    if needs.row_scale:
        unscaled = _product(
            a,
            a.lhs,
            a.rhs,
            wide,
            alpha=a.alpha,
            alpha_value=a.alpha_value,
            bias=a.bias,
            bias_scale=a.bias_scale,
            **forward,
        )
        column = _local_rows(a, _dot(dy, unscaled), num_groups)
        gradients["row_scale"] = column.to(a.row_scale.dtype)
    return gradients


def _tgmm_kept(needs):
    kept = [*_OF_GROUPS]
    if needs.rhs or needs.alpha:
        kept.append("lhs")
    if needs.lhs or needs.alpha:
        kept.append("rhs")
    return kept


def _tgmm_backward(a, needs, dout):
    scalars = {
        "alpha": a.alpha,
        "alpha_value": a.alpha_value,
        "precision": a.precision,
        "slot_row": a.slot_row,
    }
    gradients = {}
    if needs.lhs:
        rows = _product(
            a, a.rhs, dout, a.lhs.dtype, transpose_rhs=True, lhs_rows=a.rhs_rows, **scalars
        )
        gradients["lhs"] = _to_their_rows("tgmm", a, rows, a.lhs_rows, a.lhs.dtype)
    if needs.rhs:
        rows = _product(a, a.lhs, dout, a.rhs.dtype, lhs_rows=a.lhs_rows, **scalars)
        gradients["rhs"] = _to_their_rows("tgmm", a, rows, a.rhs_rows, a.rhs.dtype)
    if needs.alpha:
        dtype = _dtypes.accumulator(dout.dtype)
        again = tgmm.call(
            lhs=a.lhs,
            rhs=a.rhs,
            lhs_rows=a.lhs_rows,
            rhs_rows=a.rhs_rows,
            slot_row=a.slot_row,
            num_groups=a.num_groups,
            precision=a.precision,
            out_dtype=dtype,
            **_groups(a),
        )
        gradients["alpha"] = (again * dout.to(dtype)).sum((1, 2)).to(a.alpha.dtype)
    return gradients


def _spread(a, vectors, row_factors):
    """row_factors[r] * vectors[g] in every row r of group g, zero elsewhere, as a.dy is: a gmm with k = 0 and a bias."""
    first = _first(vectors)
    m, n = a.dy.shape
    return _product(
        a,
        first.new_empty((m, 0)),
        first.new_empty((_count(vectors, 1), 0, n)),
        a.dy.dtype,
        bias=vectors,
        bias_scale=row_factors,
    )


def _bias_grad_kept(needs):
    return [*_OF_GROUPS, "dy"] if needs.bias_scale else _OF_GROUPS


def _bias_grad_backward(a, needs, dout):
    gradients = {}
    if needs.dy:
        gradients["dy"] = _spread(a, dout, a.bias_scale)
    if needs.bias_scale:
        gradients["bias_scale"] = bias_scale_grad.call(
            dy=a.dy, bias=[dout], out_dtype=a.bias_scale.dtype, **_groups(a)
        )
    return gradients


def _bias_scale_grad_kept(needs):
    kept = [*_OF_GROUPS]
    if needs.bias:
        kept.append("dy")
    if needs.dy:
        kept.append("bias")
    return kept


def _bias_scale_grad_backward(a, needs, dout):
    gradients = {}
    if needs.dy:
        gradients["dy"] = _spread(a, a.bias, dout)
    if needs.bias:
        stack = bias_grad.call(
            dy=a.dy,
            bias_scale=dout,
            num_groups=_count(a.bias, 1),
            out_dtype=a.bias[0].dtype,
            **_groups(a),
        )
        gradients["bias"] = _as_given(stack, a.bias, 1)
    return gradients


def _sum_of(operator, arguments, replacements, dtype):
    """The sum of the operator with each of `replacements` ({name: value}) in turn, rounded once."""
    wide = _dtypes.accumulator(dtype) if len(replacements) > 1 else dtype
    total = None
    for replaced in replacements:
        part = operator.call(**{**arguments._asdict(), **replaced, "out_dtype": wide})
        total = part if total is None else total + part
    return total.to(dtype)


def _gmm_tangent(operator, a, tangents):
    product_alone = {"bias": operator.defaults["bias"], "bias_scale": None}

    def without_k(each):
        return each.narrow(-1 if a.transpose_rhs else -2, 0, 0)

    no_product = {
        "lhs": a.lhs[:, :0],
        "rhs": [without_k(each) for each in a.rhs] if isinstance(a.rhs, list) else without_k(a.rhs),
    }
    others = {
        **dict.fromkeys(("lhs", "rhs", "alpha"), product_alone),
        **dict.fromkeys(("bias", "bias_scale"), no_product),
        "row_scale": {},
    }
    replacements = [
        {**rest, name: tangent}
        for name, rest in others.items()
        if (tangent := getattr(tangents, name)) is not None
    ]
    dtype = a.out_dtype or _dtypes.product("gmm", a.lhs.dtype, _first(a.rhs).dtype)
    return _sum_of(operator, a, replacements, dtype)


def _multilinear_tangent(default_dtype):
    """For ops with one term; default_dtype(arguments): of the result unless out_dtype is given."""

    def tangent(operator, a, tangents):
        given = tangents._asdict().items()
        replacements = [{name: each} for name, each in given if each is not None]
        return _sum_of(operator, a, replacements, a.out_dtype or default_dtype(a))

    return tangent


_tgmm_tangent = _multilinear_tangent(
    lambda a: _dtypes.product("tgmm", a.lhs.dtype, a.rhs.dtype)
)
_dy_tangent = _multilinear_tangent(lambda a: a.dy.dtype)

for _operator in (gmm, gmm_list):
    _operator.differentiable(Derivatives(_gmm_kept, gmm_backward, _gmm_tangent))
tgmm.differentiable(Derivatives(_tgmm_kept, _tgmm_backward, _tgmm_tangent))
bias_grad.differentiable(Derivatives(_bias_grad_kept, _bias_grad_backward, _dy_tangent))
bias_scale_grad.differentiable(
    Derivatives(_bias_scale_grad_kept, _bias_scale_grad_backward, _dy_tangent)
)
