"""A model's experts sharded in one line, and their parameters as DTensors: for parallelize_module and for checkpoints."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from ..._errors import wrong_type, wrong_value
from .._grouped_mlp import GroupedMLP

_OP = "ExpertParallel"


def local(parameter):
    """The part of a parameter that this rank holds."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def shard_local(layer, mesh):
    """Makes DTensors of a layer's local parameters, sharded by expert over the mesh."""
    exchange = layer.exchange
    held = list(exchange.experts_per_rank)
    whole = torch.empty(exchange.num_experts, device="meta")
    chunks = [len(each) for each in whole.chunk(exchange.ranks)]
    if held != chunks + [0] * (exchange.ranks - len(chunks)):
        expected = f"{chunks}, as DTensor shards them, or the mesh's ProcessGroup as group"
        raise wrong_value(_OP, "experts_per_rank", held, expected)
    for name, parameter in list(layer.named_parameters()):
        shape = torch.Size((exchange.num_experts, *parameter.shape[1:]))
        sharded = DTensor.from_local(
            parameter.detach(), mesh, [Shard(0)], run_check=False,
            shape=shape, stride=torch.empty(shape, device="meta").stride(),
        )  # fmt: skip
        setattr(layer, name, torch.nn.Parameter(sharded))


class ExpertParallel(ParallelStyle):
    """Spreads the experts of a GroupedMLP over a mesh dimension, in place:

        parallelize_module(model, mesh["expert"], {"layers.*.experts": ExpertParallel()})

    exchange, capacity, overflow and chunks are those of ExpertParallelMLP, which the module becomes. Its parameters become
    DTensors, each rank's part of what rank 0 holds.

    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from torch.distributed.tensor.parallel import parallelize_module
    >>> mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("expert",))
    >>> experts, style = cadre.torch.GroupedMLP(3, 4, 8), cadre.torch.expert_parallel.ExpertParallel()
    >>> experts = parallelize_module(experts, mesh["expert"], style)
    >>> experts(torch.ones(6, 4), torch.tensor([[0, 2]] * 6), torch.full((6, 2), 0.5)).shape  # [t, h]
    torch.Size([6, 4])
    """

    def __init__(
        self,
        *,
        exchange: Literal["all_to_all", "capacity"] = "all_to_all",
        capacity: int | None = None,
        overflow: Literal["error", "drop"] = "error",
        chunks: int = 1,
    ) -> None:
        super().__init__()
        self.options = {"exchange": exchange, "capacity": capacity, "overflow": overflow}
        self.chunks = chunks

    def _apply(self, module, device_mesh):
        from ._layer import ExpertParallelMLP, exchange_of

        is_mlp = type(module) is GroupedMLP
        refused = None if is_mlp else wrong_type(_OP, "module", module, "a cadre.torch.GroupedMLP")
        experts = module.num_gemms if is_mlp else None
        exchange = exchange_of(experts, device_mesh, experts_per_rank=None, refused=refused, **self.options)
        ExpertParallelMLP._join(module, exchange, self.chunks)
        module.__class__ = ExpertParallelMLP
        for name, parameter in list(module.named_parameters()):
            sharded = distribute_tensor(parameter.detach(), device_mesh, [Shard(0)])
            setattr(module, name, torch.nn.Parameter(sharded, requires_grad=parameter.requires_grad))
        return module
