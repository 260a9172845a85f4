"""The exchange over torch's symmetric memory: all_to_all_vdev_2d there, its form with offsets back; counts stay on the device.

Written to the operators' documented behaviour, and not run on several GPUs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..._errors import wrong_type, wrong_value
from .._routing import route
from ._exchange import Flight, Plan
from ._unread import Unread


class SymmetricMemory(Unread):
    """Each rank writes its rows into the memory of the others, who learn how many there are on their devices.

    max_slots: the most choices (tokens * top_k) of a rank in one call. Buffers are for the worst case, that every rank sends
    all of them to one: ranks * max_slots rows, so nothing can overflow. Every rank holds as many experts. The host reads
    nothing, but in the first call with other shapes or types, when it compares what ranks must agree about.

    x [t, h], ids and weights [t, top_k] -> rows [m, h]:

    >>> exchange = SymmetricMemory(num_experts=256, max_slots=8192 * 8)  # doctest: +SKIP
    >>> rows, sizes, handle = exchange.dispatch(x, ids, weights)  # doctest: +SKIP
    """

    def __init__(self, num_experts: int, max_slots: int, *, group: Any = None) -> None:
        self.max_slots = max_slots
        super().__init__(num_experts, group=group)
        self.rows = self.ranks * max_slots + self.local_experts  # an expert without rows takes one
        self._buffers = {}

    def _options(self):
        return {"max_slots": self.max_slots, "symmetric memory": self._lacks() or "is there"}

    def _check_options(self):
        if isinstance(self.max_slots, bool) or not isinstance(self.max_slots, int):
            raise wrong_type(self.op, "max_slots", self.max_slots, "an int: choices of a rank in one call")
        if self.max_slots < 1:
            raise wrong_value(self.op, "max_slots", self.max_slots, "1 or more: choices of a rank in one call")
        if len(set(self.experts_per_rank)) > 1:
            raise wrong_value(self.op, "experts_per_rank", self.experts_per_rank, "as many on every rank")
        if self._lacks():
            raise wrong_value(self.op, "symmetric memory", self._lacks(), "a build and a device that have both")

    def _lacks(self):
        """What of the build or of the device is missing; None if nothing is."""
        if not hasattr(torch.ops.symm_mem, "all_to_all_vdev_2d_offset"):
            return f"torch {torch.__version__} without all_to_all_vdev_2d_offset"
        import torch.distributed._symmetric_memory as symmetric

        return None if symmetric.is_nvshmem_available() else "no NVSHMEM"

    def check_arguments(self, x: Any, expert_ids: Any, weights: Any = None) -> None:
        super().check_arguments(x, expert_ids, weights)
        if expert_ids.numel() > self.max_slots:
            expected = f"max_slots = {self.max_slots} at most"
            raise wrong_value(self.op, "expert_ids.numel()", expert_ids.numel(), expected)

    def _tell(self, told, expert_ids, home):
        everybody = told.new_empty((self.ranks, *told.shape))
        dist.all_gather_into_tensor(everybody.view(-1), told, group=self.group)
        return everybody, home

    def _planned(self, home):
        device = home.group_sizes.device
        # Of the rows that are sent, by rank and expert; a column of nothing travels first, so that places are known.
        sent = self._symmetric("sent", (self.num_experts,), torch.int64, device)
        sent.copy_(home.group_sizes)
        source, target = self._rows(1, device)
        received = self._symmetric("received", (2, self.num_experts), torch.int64, device)
        self._vdev_2d(source, target, sent, received)
        sizes, starts = received.clone()
        # A place belongs to the last block that starts at or before it, if it isn't behind that block's rows.
        places = torch.arange(self.rows, device=device)
        block = torch.searchsorted(starts, places, right=True) - 1
        inside = places < (starts + sizes).index_select(0, block.clamp(min=0))
        ids = torch.where(inside & (block >= 0), block // self.ranks, self.local_experts)
        local = route(ids.view(-1, 1), self.local_experts, dtype=torch.int64)
        return Plan(home, local, home.group_sizes.long(), torch.stack((sizes, starts)))

    def send(self, plan: Plan, *tensors: Tensor) -> Flight:
        return Flight((), [self._travel(each, self.rows, self._there(plan)) for each in tensors])

    def send_back(self, plan: Plan, *tensors: Tensor) -> Flight:
        rows = plan.home.source_row.shape[0]
        return Flight((), [self._travel(each, rows, self._back(plan)) for each in tensors])

    def _there(self, plan):
        def travel(source, target):
            sent = self._symmetric("sent", (self.num_experts,), torch.int64, source.device)
            sent.copy_(plan.sent)
            received = self._symmetric("received", (2, self.num_experts), torch.int64, source.device)
            self._vdev_2d(source, target, sent, received)

        return travel

    def _back(self, plan):
        def travel(source, target):
            held = self._symmetric("held", (2, self.num_experts), torch.int64, source.device)
            held.copy_(plan.received)
            returned = self._symmetric("returned", (2, self.num_experts), torch.int64, source.device)
            self._vdev_2d_offset(source, target, held, returned)

        return travel

    def _travel(self, tensor, rows, travel):
        """The rows that arrive: through buffers that all ranks share, copied out, because the next call writes there again."""
        count, columns = tensor.shape[0], math.prod(tensor.shape[1:])
        source, target = self._rows(columns * tensor.element_size(), tensor.device)
        source[:count].copy_(tensor.contiguous().view(count, columns).view(torch.uint8))
        travel(source, target)
        return target[:rows].clone().view(tensor.dtype).view(rows, *tensor.shape[1:])

    def _rows(self, width, device):
        shape = (self.rows, width)
        return [self._symmetric(name, shape, torch.uint8, device) for name in ("source", "target")]

    def _symmetric(self, name, shape, dtype, device):
        """A buffer of the same size on every rank, made by all of them at once in the first call that needs it."""
        key = (name, shape, device)
        if key not in self._buffers:
            self._buffers[key] = self._allocate(shape, dtype, device)
        return self._buffers[key]

    # ---- what is torch's ------------------------------------------------------------------------

    def _allocate(self, shape, dtype, device):
        import torch.distributed._symmetric_memory as symmetric

        if device.type != "cuda":
            raise wrong_value(self.op, "x.device", device, "cuda: symmetric memory is a GPU's")
        if self.ranks < 2:
            raise wrong_value(self.op, "group", "1 rank", "2 or more: torch's symmetric memory takes no group of one")
        if symmetric.get_backend(device) != "NVSHMEM":
            symmetric.set_backend("NVSHMEM")  # the only one that has these operators; torch refuses it after the first tensor
        tensor = symmetric.empty(shape, dtype=dtype, device=device)
        symmetric.rendezvous(tensor, self.group)
        return tensor.zero_()

    def _vdev_2d(self, source, target, splits, received):
        """Blocks of rows by (rank, expert) become blocks by (expert, rank); received: rows of each block, and where it starts."""
        torch.ops.symm_mem.all_to_all_vdev_2d(source, target, splits, received, self.group.group_name, 1)

    def _vdev_2d_offset(self, source, target, held, returned):
        """Back: the blocks by (expert, rank) that `held` describes become rows by (rank, expert), one behind the other."""
        torch.ops.symm_mem.all_to_all_vdev_2d_offset(source, target, held, returned, self.group.group_name)

