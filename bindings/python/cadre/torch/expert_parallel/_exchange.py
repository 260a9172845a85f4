"""Exchanges: what brings tokens to the ranks of their experts and results back.

An exchange makes a Plan of a call, and sends rows both ways along it. Everything else is the library's: sorting (route), the
gather into the order in which rows are sent (permute) and the weighted sum of what comes back (combine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..._errors import wrong_type, wrong_value
from ..._scaled import MODES, ScaledTensor, data_of, scale_shape
from .. import _dtypes
from .._errors import renamed
from .._routing import Routing, combine, permute, route
from .._scaled import refuse_gradients
from . import _agreement


#: Whether x, weights and the parameters want gradients.
NO_GRADIENTS = (False, False, False)


class Plan(NamedTuple):
    """Where the rows of one call go."""

    home: Routing  #: of this rank's tokens: rows in the order in which they are sent
    local: Routing  #: of the rows that arrived, over the experts of this rank
    sent: list | None  #: rows for each rank; None if all are of one number
    received: list | None  #: rows from each rank
    unheard: Any = None  #: why this rank can't go on, and the facts of those that do because they can't know (_unread.py)


class Dispatched(NamedTuple):
    """What dispatch gives: rows for the experts of this rank, and the way back.

    >>> exchange = cadre.torch.expert_parallel.AllToAll(num_experts=3)
    >>> dispatched = exchange.dispatch(torch.ones(6, 4), torch.tensor([[0, 2]] * 6))
    >>> dispatched.rows.shape, dispatched.group_sizes.tolist()
    (torch.Size([12, 4]), [6, 0, 6])
    """

    rows: torch.Tensor | ScaledTensor  #: [m, h], sorted by local expert; rows behind the last expert's are zero
    group_sizes: torch.Tensor  #: [local experts], on the device of the rows
    handle: object  #: for collect


class _Handle(NamedTuple):
    plan: Plan
    weights: torch.Tensor | None


class Flight:
    """Rows on their way. wait() gives what arrived, in the order of the tensors that were sent."""

    def __init__(self, works: list[Any], tensors: list[Tensor]) -> None:
        self._works, self._tensors = works, tensors

    def wait(self) -> list[Tensor]:
        for work in self._works:
            work.wait()
        return self._tensors


class Exchange:
    """The interface. A subclass has plan(), and send() and send_back() if rows don't travel by all_to_all_single.

    dispatch(x [t, h], ids [t, top_k], weights [t, top_k]) and collect(rows [m, h], handle) -> [t, h] are the same in all.

    >>> ep = cadre.torch.expert_parallel
    >>> class Traced(ep.AllToAll):
    ...     def send(self, plan, *rows):
    ...         print("sent", tuple(rows[0].shape))
    ...         return super().send(plan, *rows)
    >>> _ = Traced(num_experts=3).dispatch(torch.ones(6, 4), torch.tensor([[0, 2]] * 6))
    sent (12, 4)
    """

    #: What errors call it.
    op = "expert_parallel"

    def __init__(self, num_experts: int, *, group: Any = None, experts_per_rank: Sequence[int] | None = None) -> None:
        self.group = _agreement.group_of(self.op, group)
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.num_experts = num_experts
        self.experts_per_rank = None
        refused = None
        try:
            self.experts_per_rank = _agreement.experts_of_ranks(
                self.op, num_experts, experts_per_rank, self.ranks
            )
            self._check_options()
        except Exception as error:
            refused = error
        facts = {"exchange": type(self).__name__, "num_experts": num_experts}
        facts |= {"experts_per_rank": self.experts_per_rank, **self._options()}
        _agreement.agree(self.op, self.group, facts, refused)
        self.local_experts = self.experts_per_rank[self.rank]
        self.first_expert = sum(self.experts_per_rank[: self.rank])
        self._tables = {}

    def _options(self):
        """What else must be the same on every rank."""
        return {}

    def _check_options(self):
        pass

    def tables(self, device: torch.device) -> Tensor:
        """[ranks, widest]: the expert that stands at each place of each rank's list, num_experts for none. Made once."""
        if device not in self._tables:
            widest = max(self.experts_per_rank)
            table = torch.full((self.ranks, widest), self.num_experts)
            start = 0
            for rank, held in enumerate(self.experts_per_rank):
                table[rank, :held] = torch.arange(start, start + held)
                start += held
            self._tables[device] = table.to(device)
        return self._tables[device]

    def counts_by_rank(self, group_sizes: Tensor) -> Tensor:
        """[ranks, widest] of int64: rows for each expert of each rank, from those of all experts."""
        table = self.tables(group_sizes.device)
        padded = torch.nn.functional.pad(group_sizes.long(), (0, 1))
        return padded.index_select(0, table.view(-1)).view(table.shape)

    def plan(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor | None = None,
        needs: Sequence[bool] = NO_GRADIENTS,
        refused: Exception | None = None,
    ) -> Plan:
        """The Plan of a call. `needs`: whether x, weights and the parameters want gradients; `refused`: why the caller can't
        go on, for the other ranks to hear of before it is raised."""
        raise NotImplementedError

    def send(self, plan: Plan, *tensors: Tensor) -> Flight:
        """Starts to send rows in the order of plan.home, [m, ...] of any type; the Flight of what arrives for plan.local."""
        return self._all_to_all(tensors, plan.sent, plan.received)

    def send_back(self, plan: Plan, *tensors: Tensor) -> Flight:
        """The way back: from the order of plan.local's tokens to that of plan.home's rows."""
        return self._all_to_all(tensors, plan.received, plan.sent)

    def _all_to_all(self, tensors, sent, received):
        works, arrived = [], []
        for tensor in tensors:
            rows = tensor.shape[0] if received is None else sum(received)
            out = tensor.new_empty((rows, *tensor.shape[1:]))
            # As bytes: gloo knows no float8, and what travels is nobody's number.
            work = dist.all_to_all_single(
                out.view(torch.uint8),
                tensor.contiguous().view(torch.uint8),
                received,
                sent,
                group=self.group,
                async_op=True,
            )
            works.append(work)
            arrived.append(out)
        return Flight(works, arrived)

    def dispatch(self, x: Tensor | ScaledTensor, expert_ids: Tensor, weights: Tensor | None = None) -> Dispatched:
        """x [t, h] and the router's choices [t, top_k] -> Dispatched: the rows of all ranks for the experts of this one.

        x is differentiable; weights, for collect's sum, too. x may be a ScaledTensor: the rows are one then, with the scales
        of the ranks they come from, so that mode "tensor" becomes "row".
        """
        needs = [
            isinstance(each, torch.Tensor) and each.requires_grad and torch.is_grad_enabled()
            for each in (x, weights)
        ]
        plan = self.plan(x, expert_ids, weights, (*needs, False))
        if plan.unheard:
            raise plan.unheard[0]
        if isinstance(x, ScaledTensor):
            rows = self._scaled_rows(x, plan)
        else:
            rows = permute(_Send.apply(self, plan, permute(x, plan.home)), plan.local)
        return Dispatched(rows, plan.local.group_sizes, _Handle(plan, weights))

    def _scaled_rows(self, x, plan):
        """FP8 rows and their scales, side by side to the experts of this rank."""
        tokens = x.data.shape[0]
        scales = x.scales.expand(tokens) if x.mode == "tensor" else x.scales
        flight = self.send(plan, *(permute(each, plan.home) for each in (x.data, scales.reshape(tokens, -1))))
        data, scales = (permute(each, plan.local) for each in flight.wait())
        if x.mode in ("tensor", "row"):
            return ScaledTensor(data, scales.view(-1), "row")
        return ScaledTensor(data, scales, x.mode)

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
        plan = handle.plan
        back = _SendBack.apply(self, plan, combine(rows, plan.local))
        return combine(
            back, plan.home, handle.weights, shared=shared, residual=residual, out_dtype=out_dtype
        )

    def check_arguments(self, x: Any, expert_ids: Any, weights: Any = None) -> None:
        """Raises what is wrong with the arguments of a call on this rank. For plan, which lets the others know."""
        if isinstance(x, ScaledTensor):
            _check_scaled(self.op, x)
            x = x.data
        for name, each in (("x", x), ("expert_ids", expert_ids)):
            if not isinstance(each, torch.Tensor):
                raise wrong_type(self.op, name, each, "a torch.Tensor")
            if each.dim() != 2:
                raise wrong_value(self.op, f"{name}.shape", list(each.shape), "two dimensions")
        if weights is not None and not isinstance(weights, torch.Tensor):
            raise wrong_type(self.op, "weights", weights, "a torch.Tensor or None")
        served = _agreement.devices_of(self.group)
        if x.device.type not in served:
            raise wrong_value(self.op, "x.device", x.device, f"{' or '.join(served)}, as the group's backend takes it")
        if x.dtype not in _agreement.DTYPES:
            raise _dtypes.wrong_dtype(self.op, "x", x.dtype, _agreement.DTYPES)
        if expert_ids.shape[0] != x.shape[0]:
            expected = f"x.shape[0] = {x.shape[0]}"
            raise wrong_value(self.op, "expert_ids.shape[0]", expert_ids.shape[0], expected)
        if weights is not None and weights.shape != expert_ids.shape:
            expected = f"that of expert_ids, {list(expert_ids.shape)}"
            raise wrong_value(self.op, "weights.shape", list(weights.shape), expected)
        if weights is not None and weights.dtype not in _dtypes.FLOATS:
            raise _dtypes.wrong_dtype(self.op, "weights", weights.dtype, _dtypes.FLOATS)
        for name, each in (("expert_ids", expert_ids), ("weights", weights)):
            if each is not None and each.device != x.device:
                raise wrong_value(self.op, f"{name}.device", each.device, f"x.device = {x.device}")

    def _routed(self, x, expert_ids, weights, refused):
        """(expert_ids, their Routing over all experts, None), or those of no tokens and why this rank can't go on."""
        if refused is None:
            try:
                self.check_arguments(x, expert_ids, weights)
                return expert_ids, route(expert_ids, self.num_experts, dtype=torch.int64), None
            except (TypeError, ValueError, NotImplementedError) as error:
                refused = renamed(error, {"route": self.op})
            except Exception as error:
                refused = error
        device = _agreement.device_of(x, self.group)
        nothing = torch.zeros((0, 1), dtype=torch.int64, device=device)
        return nothing, route(nothing, self.num_experts, dtype=torch.int64), refused

    def _exchange_numbers(self, numbers):
        """[ranks, w] of int64, a row for each rank -> the rows that they sent to this one."""
        received = torch.empty_like(numbers)
        dist.all_to_all_single(received, numbers, group=self.group)
        return received


def _check_scaled(op, x):
    data = data_of(op, "x", x)
    for name, each, types in (("data", data, _agreement.FP8), ("scales", x.scales, _dtypes.SCALES)):
        if not isinstance(each, torch.Tensor):
            raise wrong_type(op, f"x.{name}", each, "a torch.Tensor")
        if each.dtype not in types:
            raise _dtypes.wrong_dtype(op, f"x.{name}", each.dtype, types)
    if data.dim() == 2 and tuple(x.scales.shape) != scale_shape(MODES[x.mode], data.shape):
        expected = f"{list(scale_shape(MODES[x.mode], data.shape))}, for mode {x.mode!r}"
        raise wrong_value(op, "x.scales.shape", list(x.scales.shape), expected)
    if x.scales.device != data.device:
        raise wrong_value(op, "x.scales.device", x.scales.device, f"x.data.device = {data.device}")
    refuse_gradients(op, {"x.data": data, "x.scales": x.scales})


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, plan, rows):
        ctx.exchange, ctx.plan = exchange, plan
        return exchange.send(plan, rows).wait()[0]

    @staticmethod
    def backward(ctx, grad):
        return None, None, _SendBack.apply(ctx.exchange, ctx.plan, grad)


class _SendBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, plan, rows):
        ctx.exchange, ctx.plan = exchange, plan
        return exchange.send_back(plan, rows).wait()[0]

    @staticmethod
    def backward(ctx, grad):
        return None, None, _Send.apply(ctx.exchange, ctx.plan, grad)


class AllToAll(Exchange):
    """all_to_all_single with as many rows as there are for each rank: nothing is padded and nothing dropped.

    The host reads the counts once a call, so it can't be captured in a CUDA graph. What ranks must agree about is compared
    with every call.

    x [t, h], ids and weights [t, top_k] -> rows [m, h], sorted by this rank's experts, and back:

    >>> exchange = cadre.torch.expert_parallel.AllToAll(num_experts=3)
    >>> ids, weights = torch.tensor([[0, 2]] * 6), torch.full((6, 2), 0.5)
    >>> rows, sizes, handle = exchange.dispatch(torch.ones(6, 4), ids, weights)
    >>> exchange.collect(rows, handle)[0]  # each token's sum of 0.5 times its two rows
    tensor([1., 1., 1., 1.])
    """

    def plan(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor | None = None,
        needs: Sequence[bool] = NO_GRADIENTS,
        refused: Exception | None = None,
    ) -> Plan:
        expert_ids, home, refused = self._routed(x, expert_ids, weights, refused)
        facts = _agreement.facts_of(x, expert_ids, weights, needs, refused is not None)
        counts = self.counts_by_rank(home.group_sizes)
        numbers = torch.cat([counts.new_tensor(facts).expand(self.ranks, -1), counts], 1)
        received = self._exchange_numbers(numbers)
        # The only time that the host waits for the device: rows to send, and all that the others sent.
        sums = counts.sum(1, keepdim=True)
        *host, sent = torch.cat([received, sums], 1).T.tolist()
        everybody = list(zip(*host[: len(facts)], strict=True))
        refused = refused or _agreement.difference(self.op, everybody, self.rank)
        if refused is not None:
            raise refused
        local_counts = received[:, len(facts) : len(facts) + self.local_experts]
        by_rank = [sum(each) for each in zip(*host[len(facts) :], strict=True)]
        places = torch.arange(self.local_experts, device=counts.device).repeat(self.ranks)
        ids = torch.repeat_interleave(places, local_counts.reshape(-1), output_size=sum(by_rank))
        local = route(ids.view(-1, 1), self.local_experts, dtype=torch.int64)
        # Rows of choices that no expert has stand behind the others, and stay here.
        home = home._replace(source_row=home.source_row[: sum(sent)])
        return Plan(home, local, sent, by_rank)
