"""The experts of Megatron-Core: linear layers in the place of its TEColumnParallelGroupedLinear and TERowParallelGroupedLinear.

    from cadre.torch.integrations import megatron

    submodules = MoESubmodules(experts=megatron.experts())  # or layer_spec.submodules.mlp.submodules.experts = ...

Both are cadre.torch.GroupedLinear with the constructor, the call, the parameter attributes and the checkpoint names that
Megatron expects. Transformer Engine is not needed. Tokens travel in Megatron's dispatcher: nothing is communicated here.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._errors import wrong_value
from .._grouped_linear import GroupedLinear

_OP = "cadre.torch.integrations.megatron"
#: Fields of the configuration that would have this module do what it can't, and the values that don't ask for it.
_REFUSED = {
    "fp8": (None, False),
    "fp4": (None, False),
    "quant_recipe": (None,),
    "use_transformer_engine_op_fuser": (None, False),
    "expert_gtp_weight_remat_size": (None, 1),
}


class _ExpertLinear(GroupedLinear):
    """The experts of one rank. Sizes are those of all tensor-parallel ranks, as Megatron gives them."""

    _partition_dim: int  #: of a weight [out, in]

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[Tensor], object],
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool,
        tp_comm_buffer_name: str | None = None,
        pg_collection: Any = None,
        name: str | None = None,
    ) -> None:
        """The arguments of the original. With skip_bias_add the biases are returned and not added; tp_comm_buffer_name is
        kept and not used, and neither is what config says of communication: the dispatcher sends, this only computes."""
        if not is_expert:
            raise wrong_value(_OP, "is_expert", is_expert, "True: these are layers of experts")
        _refuse(config)
        if pg_collection is None:
            groups = _megatron("process_groups_config").ProcessGroupCollection
            pg_collection = groups.use_mpu_process_groups()
        tp_size = _size(pg_collection.expt_tp)
        sizes = [output_size, input_size]
        side = ("output_size", "input_size")[self._partition_dim]
        if sizes[self._partition_dim] % tp_size:
            expected = f"a multiple of the {tp_size} ranks of pg_collection.expt_tp"
            raise wrong_value(_OP, side, sizes[self._partition_dim], expected)
        sizes[self._partition_dim] //= tp_size
        overlapped = getattr(config, "overlap_dispatch_backward_with_experts_wgrad", False)
        super().__init__(
            num_gemms,
            in_features=sizes[1],
            out_features=sizes[0],
            sequence_parallel=config.sequence_parallel,
            fuse_wgrad_accumulation=config.gradient_accumulation_fusion,
            init_method=init_method if config.perform_initialization else _leave,
            bias=bias,
            return_bias=skip_bias_add and bias,
            params_dtype=config.params_dtype,
            device=_device(config),
            ub_name=tp_comm_buffer_name,
            delay_wgrad_compute=config.delay_wgrad_compute or overlapped,
            single_grouped_weight=getattr(config, "moe_single_grouped_weight", False),
            single_grouped_bias=getattr(config, "moe_single_grouped_bias", False),
            name=name,
            **_rng_tracker(),
        )
        self.config = config
        self.is_first_microbatch = True  # Megatron sets it again before each step
        self._pg_collection = pg_collection
        self._mark_experts()

    def _mark_experts(self):
        """The attributes by which Megatron reduces and counts gradients."""
        config = self.config
        of_experts = config.expert_model_parallel_size > 1
        of_experts |= config.expert_tensor_parallel_size != config.tensor_model_parallel_size
        for parameter in self.parameters():
            parameter.allreduce = not of_experts
        for weight in self.weights():
            weight.tensor_model_parallel = True
            weight.partition_dim, weight.partition_stride = self._partition_dim, 1
        split = self._partition_dim == 0
        for bias in self.biases():
            bias.tensor_model_parallel = split
            if split:
                bias.partition_dim, bias.partition_stride = 0, 1

    def forward(self, x: Tensor, m_splits: Tensor | Sequence[int]) -> tuple[Tensor, Any]:  # type: ignore[override]
        """x [rows, input size of this rank]; m_splits: rows of each expert. (y, None), or (y, biases) with skip_bias_add."""
        first = None if self.config.disable_parameter_transpose_cache else self.is_first_microbatch
        out = super().forward(x, m_splits, is_first_microbatch=first)
        self.is_first_microbatch = False
        return out if self.return_bias else (out, None)

    # ---- checkpoints ---------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        """What Transformer Engine saves without FP8, so that its layers load a checkpoint of these."""
        return torch.empty(0, dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        # One for each expert in a distributed checkpoint. Quantisers' state has no use here, as in Megatron's own layers.
        for i in range(self.num_gemms):
            state_dict.pop(f"{prefix}_extra_state{i or ''}", None)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Each expert's tensors under the names that SequentialMLP and Transformer Engine's layers give them."""
        transformer = _megatron("transformer.utils")
        replace_prefix = _megatron("dist_checkpointing.utils").replace_prefix_for_sharding
        metadata = transformer.ensure_metadata_has_dp_cp_group(metadata)
        singleton = metadata.get("singleton_local_shards", False)
        groups = self._pg_collection
        experts, first = (each * self.num_gemms for each in (_size(groups.ep), _rank(groups.ep)))
        per_expert = {
            "weight": self.weight if self.single_grouped_weight else self.weights(),
            "bias": self.bias if self.single_grouped_bias and self.use_bias else self.biases(),
        }
        sharded = {}
        for i in range(self.num_gemms):
            tensors = {f"{i}.{kind}": values[i] for kind, values in per_expert.items() if len(values)}
            axes = {f"{i}.weight": self._partition_dim}
            if self._partition_dim == 0:
                axes[f"{i}.bias"] = 0
            offset = () if singleton else ((len(sharded_offsets), first + i, experts),)
            made = transformer.make_sharded_tensors_for_checkpoint(
                {**tensors, f"{i}._extra_state": self.get_extra_state()},
                "",
                axes,
                (*sharded_offsets, *offset),
                tp_group=groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            replace_prefix(made, f"{i}.", f"{first + i}.{prefix}" if singleton else prefix)
            for kind in per_expert:
                if f"{i}.{kind}" in made:
                    sharded[f"{prefix}{kind}{i}"] = made[f"{i}.{kind}"]
            sharded[f"{prefix}_extra_state{i or ''}"] = made[f"{i}._extra_state"]
        for each in sharded.values():
            # Copies are those of the ranks that hold the same experts.
            whole = getattr(each, "is_data_parallel_fully_shard", False)
            each.replica_id = (*each.replica_id[:2], 0 if whole else _rank(groups.expt_dp))
        return sharded


class ColumnParallelGroupedLinear(_ExpertLinear):
    """linear_fc1: with expert tensor parallelism each rank holds output_size / ranks of every expert.

    x [m, input_size], rows sorted by expert, and m_splits -> ([m, output_size / ranks], the biases that weren't added).

    >>> from types import SimpleNamespace
    >>> from cadre.torch.integrations import megatron
    >>> config = SimpleNamespace(  # stands for Megatron's TransformerConfig
    ...     expert_model_parallel_size=1, expert_tensor_parallel_size=1, tensor_model_parallel_size=1,
    ...     sequence_parallel=False, gradient_accumulation_fusion=False, perform_initialization=True,
    ...     params_dtype=torch.float32, use_cpu_initialization=True, delay_wgrad_compute=False,
    ...     disable_parameter_transpose_cache=False)
    >>> options = dict(bias=False, skip_bias_add=False, is_expert=True, init_method=torch.nn.init.ones_)
    >>> groups = SimpleNamespace(expt_tp=None, ep=None, expt_dp=None)  # one rank
    >>> layer = megatron.ColumnParallelGroupedLinear(3, 4, 5, config=config, pg_collection=groups, **options)
    >>> out, bias = layer(torch.ones(6, 4), [2, 0, 4])
    >>> out.shape
    torch.Size([6, 5])
    """

    _partition_dim = 0


class RowParallelGroupedLinear(_ExpertLinear):
    """linear_fc2: with expert tensor parallelism each rank holds input_size / ranks of every expert, and a part of the sum.

    x [m, input_size / ranks], rows sorted by expert, and m_splits -> ([m, output_size], the biases that weren't added).

    >>> from types import SimpleNamespace
    >>> from cadre.torch.integrations import megatron
    >>> config = SimpleNamespace(  # stands for Megatron's TransformerConfig
    ...     expert_model_parallel_size=1, expert_tensor_parallel_size=1, tensor_model_parallel_size=1,
    ...     sequence_parallel=False, gradient_accumulation_fusion=False, perform_initialization=True,
    ...     params_dtype=torch.float32, use_cpu_initialization=True, delay_wgrad_compute=False,
    ...     disable_parameter_transpose_cache=False)
    >>> options = dict(bias=False, skip_bias_add=False, is_expert=True, init_method=torch.nn.init.ones_)
    >>> groups = SimpleNamespace(expt_tp=None, ep=None, expt_dp=None)  # one rank
    >>> layer = megatron.RowParallelGroupedLinear(3, 4, 5, config=config, pg_collection=groups, **options)
    >>> out, bias = layer(torch.ones(6, 4), [2, 0, 4])
    >>> out.shape
    torch.Size([6, 5])
    """

    _partition_dim = 1


def submodules(activation_func: Any = None) -> Any:
    """Megatron's GroupedMLPSubmodules (MLPSubmodules before it had them) with both layers; activation_func is its own.

    >>> from cadre.torch.integrations import megatron
    >>> megatron.submodules().linear_fc1  # doctest: +SKIP
    <class 'cadre.torch.integrations.megatron.ColumnParallelGroupedLinear'>
    """
    kind = getattr(_megatron("transformer.moe.experts"), "GroupedMLPSubmodules", None)
    return (kind or _megatron("transformer.mlp").MLPSubmodules)(
        linear_fc1=ColumnParallelGroupedLinear,
        linear_fc2=RowParallelGroupedLinear,
        activation_func=activation_func,
    )


def experts(activation_func: Any = None) -> Any:
    """What MoESubmodules takes as `experts`: Megatron's TEGroupedMLP over these layers.

    >>> from cadre.torch.integrations import megatron
    >>> submodules = MoESubmodules(experts=megatron.experts())  # doctest: +SKIP
    """
    module = _megatron("transformer.moe.experts")
    if hasattr(module, "GroupedMLPSubmodules"):
        return functools.partial(module.TEGroupedMLP, submodules=submodules(activation_func))
    specs = _megatron("transformer.spec_utils")
    return specs.ModuleSpec(module=module.TEGroupedMLP, submodules=submodules(activation_func))


def _refuse(config):
    for field, fine in _REFUSED.items():
        value = getattr(config, field, None)
        if value not in fine:
            expected = f"{fine[-1]}: cadre's layers compute in the parameters' type, on their own"
            raise wrong_value(_OP, f"config.{field}", repr(value), expected)


def _megatron(name):
    try:
        return importlib.import_module(f"megatron.core.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("megatron"):
            raise
        raise ImportError(f"{_OP}: megatron-core is not installed: pip install megatron-core") from error


def _rng_tracker():
    """The arguments that have weights drawn where Megatron draws those of experts. Nothing that was never imported is set up."""
    random = sys.modules.get("megatron.core.tensor_parallel.random")
    if random is None or not random.get_cuda_rng_tracker().is_initialized():
        return {}
    return {
        "get_rng_state_tracker": random.get_cuda_rng_tracker,
        "rng_tracker_name": random.get_expert_parallel_rng_tracker_name(),
    }


def _device(config):
    if config.use_cpu_initialization:
        return "cpu"
    return "meta" if getattr(config, "init_model_with_meta_device", False) else torch.cuda.current_device()


def _size(group):
    return 1 if group is None else group.size()


def _rank(group):
    return 0 if group is None else group.rank()


def _leave(weight):
    """Megatron asks for it where a checkpoint follows."""
