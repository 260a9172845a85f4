"""What the experts of a layer compute, as a composition of differentiable ops: for gates that no kernel knows, for torch.func's
transforms, and for gradients of gradients."""

from __future__ import annotations

import functools

from ._functional import gmm
from ._operators import combine, combine_grad, permute


def composed(a, activation):
    """The layer of the operator's arguments `a`, with any function as its activation."""
    rows = permute.call(x=a.x, source_row=a.source_row, slot_row=a.slot_row)
    where = {"slot_row": a.slot_row, "source_row": a.source_row}
    weights = a.weights
    if a.weights_on_input and weights is not None:
        # The weight of each row, as the gradient of a sum of ones.
        ones = weights.new_ones((weights.shape[0], 1))
        (factors,) = combine_grad.call(
            dout=ones, weights=weights, dy_dtype=weights.dtype, **where
        )
        rows, weights = (rows * factors).to(rows.dtype), None
    offset = a.group_offset if a.group_offset_tensor is None else a.group_offset_tensor
    product = functools.partial(gmm, transpose_rhs=not a.transposed, group_offset=offset)
    hidden = product(rows, _given(a.w13, 2), a.group_sizes, bias=_given(a.bias13, 1))
    y = product(activation(hidden), _given(a.w2, 2), a.group_sizes, bias=_given(a.bias2, 1))
    return combine.call(
        y=y,
        weights=weights,
        shared=a.shared,
        residual=a.residual,
        out_dtype=a.out_dtype or a.x.dtype,
        **where,
    )


def _given(tensors, rank):
    """A list of the operator's as gmm takes it: nothing, one stack of tensors of that rank, or a list of them."""
    if not tensors:
        return None
    return tensors[0] if tensors[0].dim() > rank else list(tensors)
