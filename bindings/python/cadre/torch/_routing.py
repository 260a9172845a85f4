"""The ops around the products of a mixture-of-experts layer: which experts a token goes to, its rows sorted by expert, and
the weighted sum of what the experts made of them. Differentiable; nothing is read by the host."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _options
from .._errors import wrong_type
from .._types import GroupScore, Score
from . import _routing_autograd  # noqa: F401 (completes the operators)
from . import _arguments, _operators
from ._errors import translated
from ._types import Tensor

_INDICES = (torch.int32, torch.int64)


class Routing(NamedTuple):
    """Where the rows of each token are, once they are sorted by expert."""

    group_sizes: torch.Tensor  #: [num_experts]: rows of each expert
    source_row: torch.Tensor  #: [tokens * top_k]: the token of each row; -1 for rows behind the last expert's
    slot_row: torch.Tensor  #: [tokens, top_k]: the row of each choice; -1 for one that was dropped


def select_experts(
    logits: Tensor,
    top_k: int,
    *,
    score: Score = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    correction_bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_score: GroupScore = "top_two",
    ids_dtype: torch.dtype = torch.int64,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """(weights, expert_ids), both [tokens, top_k]: the experts with the highest scores of each token, best first.

    logits [tokens, num_experts]; score: "softmax" over a token's experts, or "sigmoid". weights = scale * score, divided by
    the sum of the chosen scores if `normalize`. correction_bias [num_experts] is added for the choice alone. Experts are
    chosen from the best top_groups of num_groups groups of neighbours, each of which counts as its best expert
    (group_score="max") or as the sum of its best two ("top_two"). logits are differentiable through the weights.

    >>> weights, ids = cadre.torch.select_experts(torch.tensor([[0.0, 2.0, 1.0]]), top_k=2)
    >>> ids, weights.sum()
    (tensor([[1, 2]]), tensor(1.))
    """
    op = "select_experts"
    try:
        return _operators.select_experts.call(
            logits=logits,
            correction_bias=correction_bias,
            top_k=_arguments.whole_number(op, "top_k", top_k),
            score=_options.expert_score(op, score),
            normalize=_options.flag(op, "normalize", normalize),
            scale=float(scale),
            num_groups=_arguments.whole_number(op, "num_groups", num_groups),
            top_groups=_arguments.whole_number(op, "top_groups", top_groups),
            group_score=_options.expert_group_score(op, group_score),
            ids_dtype=_index_dtype(op, "ids_dtype", ids_dtype),
            out_dtype=out_dtype,
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {"logits": logits, "correction_bias": correction_bias}
        raise translated(op, error, tensors, out_dtype) from None


def route(expert_ids: Tensor, num_experts: int, *, dtype: torch.dtype = torch.int32) -> Routing:
    """Sorts the choices of all tokens by expert: a Routing whose tensors have that dtype, int32 or int64.

    expert_ids [tokens, top_k] of any integer type; ids outside 0 ... num_experts - 1 are dropped. Choices of one expert keep
    their order.

    >>> routing = cadre.torch.route(torch.tensor([[2, 0], [0, 1]]), num_experts=3)
    >>> routing.group_sizes
    tensor([2, 1, 1], dtype=torch.int32)
    >>> routing.source_row  # rows 0 and 1 are tokens 0 and 1, for expert 0
    tensor([0, 1, 1, 0], dtype=torch.int32)
    """
    op = "route"
    try:
        return Routing(
            *_operators.route.call(
                expert_ids=expert_ids,
                num_experts=_arguments.whole_number(op, "num_experts", num_experts),
                dtype=_index_dtype(op, "dtype", dtype),
            )
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise translated(op, error, {"expert_ids": expert_ids}) from None


def permute(x: Tensor, routing: Routing) -> Tensor:
    """[tokens * top_k, h]: the rows of x [tokens, h] sorted by expert. Rows behind the last expert's are zero.

    >>> routing = cadre.torch.route(torch.tensor([[2], [0], [2]]), num_experts=3)
    >>> cadre.torch.permute(torch.tensor([[0.0], [1.0], [2.0]]), routing).T
    tensor([[1., 0., 2.]])
    """
    op = "permute"
    _check_routing(op, routing)
    try:
        return _operators.permute.call(
            x=x, source_row=routing.source_row, slot_row=routing.slot_row
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise translated(op, error, {"x": x}) from None


def combine(
    y: Tensor,
    routing: Routing,
    weights: Tensor | None = None,
    *,
    shared: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """[tokens, h]: for each token the sum of weights[t, j] * y[its row for choice j], then of shared and residual [tokens, h].

    y [tokens * top_k, h] are rows sorted by expert; weights [tokens, top_k], default 1. Summed in f32 in the order of a
    token's choices, and rounded once: a token's bits don't depend on the others. y, weights, shared and residual are
    differentiable.

    >>> routing = cadre.torch.route(torch.tensor([[2, 0], [0, 1]]), num_experts=3)
    >>> y = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])  # rows sorted by expert
    >>> cadre.torch.combine(y, routing, torch.full((2, 2), 0.5))
    tensor([[500.5000],
            [ 55.0000]])
    """
    op = "combine"
    _check_routing(op, routing)
    try:
        return _operators.combine.call(
            y=y,
            slot_row=routing.slot_row,
            source_row=routing.source_row,
            weights=weights,
            shared=shared,
            residual=residual,
            out_dtype=out_dtype,
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {"y": y, "weights": weights, "shared": shared, "residual": residual}
        raise translated(op, error, tensors, out_dtype) from None


def _check_routing(op, routing):
    if not isinstance(routing, Routing):
        raise wrong_type(op, "routing", routing, "what cadre.torch.route returns")


def _index_dtype(op, argument, dtype):
    if dtype not in _INDICES:
        raise TypeError(f"{op}: {argument} = {dtype}, expected torch.int32 or torch.int64")
    return dtype
