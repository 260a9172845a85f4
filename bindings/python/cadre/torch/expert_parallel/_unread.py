"""Exchanges in whose calls the host reads nothing on a GPU, and how their ranks still agree about what a call is.

Every rank tells the others about every call, beside the sizes that it sends. On a CPU all ranks compare. On a GPU those
compare for whom the kind of call is new, and those that refuse their arguments; the others go on and don't look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _agreement
from ._exchange import NO_GRADIENTS, Exchange, Plan


class Unread(Exchange):
    """The base of Capacity and SymmetricMemory, which have _tell() and _planned()."""

    def __init__(self, num_experts: int, *, group: Any = None, experts_per_rank: Sequence[int] | None = None) -> None:
        super().__init__(num_experts, group=group, experts_per_rank=experts_per_rank)
        self._agreed = {}

    def _compares_always(self, device):
        """Whether the host may read what the others told: on a CPU it costs nothing."""
        return device.type == "cpu"

    def plan(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor | None = None,
        needs: Sequence[bool] = NO_GRADIENTS,
        refused: Exception | None = None,
    ) -> Plan:
        expert_ids, home, refused = self._routed(x, expert_ids, weights, refused)
        device = home.group_sizes.device
        facts = tuple(_agreement.facts_of(x, expert_ids, weights, needs, refused is not None))
        known = self._agreed.get((device, facts))
        if known is None and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise refused or RuntimeError(
                f"{self.op}: the first call with these shapes and types is captured, expected one "
                "before the capture: the ranks compare them on the host"
            )
        state = _agreement.REFUSED if refused else _agreement.NEW
        told = torch.tensor((state, *facts[1:]), device=device) if known is None else known
        everybody, answer = self._tell(told, expert_ids, home)
        if known is not None and not self._compares_always(device):
            return self._planned(answer)
        everybody = everybody.tolist()
        error = refused or _agreement.difference(self.op, everybody, self.rank)
        if error is None:
            self._agreed[device, facts] = torch.tensor(facts, device=device)
            return self._planned(answer)
        going_on = [theirs for theirs in everybody if theirs[0] == _agreement.KNOWN]
        if self._compares_always(device) or not going_on:
            raise error
        return self._planned(answer)._replace(unheard=(error, going_on[0]))

    def _tell(self, told, expert_ids, home):
        """(what each rank told, [ranks, ...] on the device; what _planned needs) for this rank's ids and their Routing."""
        raise NotImplementedError

    def _planned(self, answer):
        """The Plan of a call that goes on."""
        raise NotImplementedError
