"""DeepEP's buffer as an exchange: it sends a token once to each rank, and adds up there and on the way back.

Written to the signatures of deep_ep.Buffer (dd758ca, July 2026), and not run with it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._errors import wrong_type, wrong_value
from .._routing import Routing, combine, permute, route
from . import _agreement
from ._exchange import Dispatched


#: hidden_int4 % 2 == 0 and num_topk <= 32 in csrc/kernels/legacy/intranode.cu.
_WIDTH, _MOST_CHOICES = 16, 32


def _ids_dtype():
    """topk_idx_t: a build of DeepEP may have 32 bits."""
    return getattr(sys.modules.get("deep_ep"), "topk_idx_t", torch.int64)


class _Handle(NamedTuple):
    local: Routing
    weights: Tensor | None
    sent: object  #: DeepEP's own


class DeepEP:
    """dispatch() and collect() over a deep_ep.Buffer of the caller's.

    Tokens are bf16. A token's rows on one rank are added up there in f32, in the order of its choices, and rounded to bf16;
    DeepEP adds those of its ranks. So results are not the bits of one process, and ExpertParallelMLP, which promises them,
    doesn't take it. num_worst_tokens: tokens that may arrive; with it the host reads nothing (within one node).

    x [t, h], ids and weights [t, top_k] -> rows [m, h]:

    >>> exchange = DeepEP(256, deep_ep.Buffer(group, 1 << 30), group=group)  # doctest: +SKIP
    >>> rows, sizes, handle = exchange.dispatch(x, ids, weights)  # doctest: +SKIP
    """

    op = "expert_parallel"

    def __init__(self, num_experts: int, buffer: Any, *, group: Any = None, num_worst_tokens: int = 0) -> None:
        self.group = _agreement.group_of(self.op, group)
        ranks, self.rank = torch.distributed.get_world_size(self.group), torch.distributed.get_rank(self.group)
        held, refused = None, None
        try:
            for name in ("get_dispatch_layout", "dispatch", "combine"):
                if not callable(getattr(buffer, name, None)):
                    raise wrong_type(self.op, "buffer", buffer, f"a deep_ep.Buffer: it has no {name}")
            held = _agreement.experts_of_ranks(self.op, num_experts, None, ranks)
        except Exception as error:
            refused = error
        facts = {"exchange": "DeepEP", "num_experts": num_experts, "num_worst_tokens": num_worst_tokens}
        _agreement.agree(self.op, self.group, facts, refused)
        self.buffer, self.num_experts, self.ranks = buffer, num_experts, ranks
        self.local_experts, self.num_worst_tokens = held[0], num_worst_tokens

    def dispatch(self, x: Tensor, expert_ids: Tensor, weights: Tensor | None = None) -> Dispatched:
        """x [t, h] of bf16, expert_ids and weights [t, top_k] -> Dispatched, as Exchange.dispatch gives it."""
        for name, each in (("x", x), ("expert_ids", expert_ids)):
            if not isinstance(each, torch.Tensor):
                raise wrong_type(self.op, name, each, "a torch.Tensor")
            if each.dim() != 2:
                raise wrong_value(self.op, f"{name}.shape", list(each.shape), "two dimensions")
        if x.dtype != torch.bfloat16:
            raise TypeError(f"{self.op}: x.dtype = {x.dtype}, expected torch.bfloat16: DeepEP sends no other")
        # What DeepEP asserts instead: in its kernels, where it ends the process.
        if x.shape[1] % _WIDTH:
            raise wrong_value(self.op, "x.shape[1]", x.shape[1], f"a multiple of {_WIDTH}: DeepEP sends halves of 16 bytes")
        if expert_ids.shape[1] > _MOST_CHOICES:
            raise wrong_value(self.op, "expert_ids.shape[1]", expert_ids.shape[1], f"{_MOST_CHOICES} at most, for DeepEP")
        exists = (expert_ids >= 0) & (expert_ids < self.num_experts)
        ids = torch.where(exists, expert_ids, -1).to(_ids_dtype())
        wide = torch.ones_like(ids, dtype=torch.float32) if weights is None else weights.float()
        # It wants them without gaps, which torch.where and a transposed input don't promise.
        packed = x.contiguous(), ids.contiguous(), wide.contiguous()
        received, local_weights, local_ids, sent = _Dispatch.apply(self, *packed)
        local = route(local_ids, self.local_experts)
        return Dispatched(permute(received, local), local.group_sizes, _Handle(local, local_weights, sent.handle))

    def collect(
        self,
        rows: Tensor,
        handle: Any,
        *,
        shared: Tensor | None = None,
        residual: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """The results for dispatched rows -> [t, h]: the weighted sum of each token's, then of shared and residual."""
        if not isinstance(handle, _Handle):
            raise wrong_type(self.op, "handle", handle, "what dispatch gave")
        summed = combine(rows, handle.local, handle.weights, out_dtype=torch.bfloat16)
        out = _Combine.apply(self, _Sent(handle.sent), summed)
        for each in (shared, residual):
            out = out if each is None else out + each
        return out if out_dtype is None else out.to(out_dtype)


class _Sent:
    """DeepEP's handle, a tuple of tensors, which autograd is not to look into."""

    def __init__(self, handle):
        self.handle = handle


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, x, ids, weights):
        per_rank, per_node, per_expert, in_rank, _ = exchange.buffer.get_dispatch_layout(ids, exchange.num_experts)
        received, local_ids, local_weights, _, handle, _ = exchange.buffer.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
            num_worst_tokens=exchange.num_worst_tokens,
        )
        ctx.exchange, ctx.handle = exchange, handle
        ctx.mark_non_differentiable(local_ids)
        return received, local_weights, local_ids, _Sent(handle)

    @staticmethod
    def backward(ctx, grad, weights_grad, *_):
        dx, dweights, _ = ctx.exchange.buffer.combine(
            grad.contiguous(), ctx.handle, topk_weights=weights_grad.float().contiguous()
        )
        return None, dx, None, dweights


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, sent, rows):
        ctx.exchange, ctx.sent = exchange, sent
        return exchange.buffer.combine(rows, sent.handle)[0]

    @staticmethod
    def backward(ctx, grad):
        received, *_ = ctx.exchange.buffer.dispatch(grad.contiguous(), handle=ctx.sent.handle)
        return None, None, received
