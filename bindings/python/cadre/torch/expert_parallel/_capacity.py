"""The capacity exchange: as many rows for every rank, whatever the router chose, so that the host needs to know nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._errors import wrong_type, wrong_value
from .._routing import Routing, route
from . import _agreement
from ._exchange import Plan
from ._unread import Unread

_DROPPED = len(_agreement.FACTS)  # the column behind the facts


class Capacity(Unread):
    """Each rank sends `capacity` rows to each rank; room that isn't used travels as zeros.

    Choices beyond the capacity of a pair of ranks, the last tokens' first, get no row. `overflow` says what becomes of them:
    "drop" leaves them out of the token's sum; "error" makes them an error on every rank, on a CPU at once, on a GPU by the
    next check(), which waits for the device. `dropped` counts them.

    On a GPU nothing is read by the host, and a call can be captured in a CUDA graph, but for the first call with other
    shapes or types, in which the host compares what ranks must agree about. On a CPU it does so in every call.

    >>> exchange = cadre.torch.expert_parallel.Capacity(num_experts=3, capacity=12)
    >>> rows, sizes, handle = exchange.dispatch(torch.ones(6, 4), torch.tensor([[0, 2]] * 6))  # x [t, h], ids [t, top_k]
    >>> rows.shape, sizes.tolist(), exchange.collect(rows, handle).shape
    (torch.Size([12, 4]), [6, 0, 6], torch.Size([6, 4]))
    """

    def __init__(
        self, num_experts: int, capacity: int, *, overflow: Literal["error", "drop"] = "error", group: Any = None, experts_per_rank: Sequence[int] | None = None
    ) -> None:
        self.capacity, self.overflow = capacity, overflow
        super().__init__(num_experts, group=group, experts_per_rank=experts_per_rank)
        self._constants = {}

    def _options(self):
        return {"capacity": self.capacity, "overflow": self.overflow}

    def _check_options(self):
        if isinstance(self.capacity, bool) or not isinstance(self.capacity, int):
            raise wrong_type(self.op, "capacity", self.capacity, "an int: rows from a rank to a rank")
        if self.capacity < 1:
            expected = "1 or more: rows from each rank to each rank"
            raise wrong_value(self.op, "capacity", self.capacity, expected)
        if self.overflow not in ("drop", "error"):
            raise wrong_value(self.op, "overflow", repr(self.overflow), "'drop' or 'error'")

    def _tell(self, told, expert_ids, home):
        constants = self._constants_on(home.group_sizes.device)
        home, dropped = self._with_capacity(expert_ids, home, constants)
        counts = self.counts_by_rank(home.group_sizes)
        mine = told.expand(self.ranks, -1), dropped.expand(self.ranks, 1), counts
        received = self._exchange_numbers(torch.cat(mine, 1))
        return received[:, :_DROPPED], (home, received[:, _DROPPED:], constants)

    def _planned(self, answer):
        home, received, constants = answer
        constants["dropped"].add_(received[:, 0])
        if self.overflow == "error" and received.device.type == "cpu":
            self.check()
        # The rows of a rank lie expert by expert: a row's expert is the first whose rows end behind it.
        ends = received[:, 1 : 1 + self.local_experts].cumsum(1)
        ids = torch.searchsorted(ends, constants["places"], right=True)
        local = route(ids.view(-1, 1), self.local_experts, dtype=torch.int64)
        return Plan(home, local, None, None)

    def _with_capacity(self, expert_ids, home, constants):
        """The Routing with `capacity` rows for each rank, and how many choices found no room, as a tensor [1]."""
        slots = expert_ids.numel()
        exists = (expert_ids >= 0) & (expert_ids < self.num_experts)
        ids = torch.where(exists, expert_ids, self.num_experts).view(-1)
        rank = constants["rank_of"].index_select(0, ids)
        dropped = constants["zero"]
        if slots > self.capacity:
            # The choices of each rank in the order of the tokens: those from `capacity` on stay here.
            by_rank = route(rank.view(-1, 1), self.ranks, dtype=torch.int64)
            place = by_rank.slot_row.view(-1) - _starts(by_rank.group_sizes).index_select(0, rank)
            stays = (place < self.capacity) & (rank < self.ranks)
            dropped = (exists.view(-1) & ~stays).sum().view(1)
            ids = torch.where(stays, ids, self.num_experts)
            home = route(ids.view(expert_ids.shape), self.num_experts, dtype=torch.int64)
        # From rows one behind the other to a block of `capacity` rows for each rank.
        starts = _starts(self.counts_by_rank(home.group_sizes).sum(1)).index_select(0, rank)
        row = home.slot_row.view(-1)
        block_row = row - starts + rank * self.capacity
        has_row = row >= 0
        nowhere = self.ranks * self.capacity
        token = constants["count"](slots) // expert_ids.shape[1]
        source_row = torch.full((nowhere + 1,), -1, dtype=torch.int64, device=row.device)
        source_row.scatter_(0, torch.where(has_row, block_row, nowhere), token)
        slot_row = torch.where(has_row, block_row, -1).view(expert_ids.shape)
        return Routing(home.group_sizes, source_row[:nowhere], slot_row), dropped

    def _constants_on(self, device):
        if device not in self._constants:
            rank_of = torch.repeat_interleave(
                torch.arange(self.ranks + 1), torch.tensor([*self.experts_per_rank, 1])
            )
            places = torch.arange(self.capacity).repeat(self.ranks, 1)
            self._constants[device] = {
                "rank_of": rank_of.to(device),
                "places": places.to(device),
                "zero": torch.zeros(1, dtype=torch.int64, device=device),
                "dropped": torch.zeros(self.ranks, dtype=torch.int64, device=device),
                "count": lambda n: torch.arange(n, device=device),
            }
        return self._constants[device]

    @property
    def dropped(self) -> Tensor:
        """[ranks] of int64: the choices of each rank's tokens that found no room, since the last check(); on the device."""
        for constants in self._constants.values():
            return constants["dropped"]
        return torch.zeros(self.ranks, dtype=torch.int64)

    def check(self) -> None:
        """Raises, on every rank, if choices have found no room since the last check. Waits for the device."""
        dropped = self.dropped
        by_rank = dropped.tolist()
        dropped.zero_()
        for rank, count in enumerate(by_rank):
            if count:
                expected = f"0: capacity = {self.capacity} rows from a rank to a rank is too small"
                raise wrong_value(self.op, f"choices without a row on rank {rank}", count, expected)


def _starts(sizes):
    """[n + 1]: the sum of the sizes before each, and 0 for what is nowhere."""
    return F.pad(sizes.cumsum(0) - sizes, (0, 1))
