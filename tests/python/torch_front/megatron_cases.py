"""What tests of cadre.torch.integrations.megatron do inside Megatron-Core, on one process over gloo."""

import functools
import inspect
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cadre.torch.integrations import megatron as integration
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import experts
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

E, H, FFN, SPLITS = 4, 12, 10, [3, 0, 4, 2]


def started(function):
    def run():
        folder = tempfile.mkdtemp()
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        torch.manual_seed(3)
        function()
        print("held", flush=True)
        os._exit(0)  # torch's threads abort now and then while the interpreter ends

    return run


def config(**changed):
    fields = {
        "num_layers": 1, "hidden_size": H, "num_attention_heads": 2, "num_moe_experts": E,
        "moe_ffn_hidden_size": FFN, "ffn_hidden_size": FFN, "gated_linear_unit": True, "activation_func": F.silu,
        "add_bias_linear": False, "bias_activation_fusion": False, "moe_router_topk": 2, "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "allgather", "use_cpu_initialization": True,
    }  # fmt: skip
    delayed = changed.pop("delay_wgrad_compute", False)
    made = TransformerConfig(**{**fields, **changed})
    made.delay_wgrad_compute = delayed  # the constructor wants a pipeline beside it
    return made


def both(**changed):
    """The experts of a MoELayer that was made with ours, and Megatron's SequentialMLP with the same parameters."""
    made, groups = config(**changed), ProcessGroupCollection.use_mpu_process_groups()
    ours = MoELayer(
        made, MoESubmodules(experts=integration.experts()), layer_number=1, pg_collection=groups
    ).experts
    assert type(ours.linear_fc1) is integration.ColumnParallelGroupedLinear
    assert type(ours.linear_fc2) is integration.RowParallelGroupedLinear
    linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    theirs = experts.SequentialMLP(E, made, linears, pg_collection=groups)
    with torch.no_grad():
        for i, expert in enumerate(theirs.local_experts):
            for layer, own in ((expert.linear_fc1, ours.linear_fc1), (expert.linear_fc2, ours.linear_fc2)):
                layer.weight.copy_(getattr(own, f"weight{i}"))
                if layer.bias is not None:
                    getattr(own, f"bias{i}").normal_()
                    layer.bias.copy_(getattr(own, f"bias{i}"))
    return ours, theirs


def rows(layer, x, probs, dy):
    x, probs = x.clone().requires_grad_(), probs.clone().requires_grad_()
    out, bias = layer(x, torch.tensor(SPLITS), probs)
    assert bias is None
    out.backward(dy)
    return out.detach(), x.grad, probs.grad


@started
def compare():
    for changed in (
        {},
        {"gated_linear_unit": False, "activation_func": F.gelu},
        {"gated_linear_unit": False, "activation_func": F.gelu, "delay_wgrad_compute": True},
    ):
        ours, theirs = both(**changed)
        call = torch.randn(9, H), torch.rand(9), torch.randn(9, H)
        results = rows(ours, *call)
        if ours.linear_fc1.delay_wgrad_compute:
            assert ours.linear_fc2.weight0.grad is None
        ours.backward_dw()  # nothing, unless it was delayed
        for found, expected in zip(results, rows(theirs, *call), strict=True):
            torch.testing.assert_close(found, expected)
        for i, expert in enumerate(theirs.local_experts):
            for name in ("linear_fc1", "linear_fc2"):
                wanted, own = getattr(expert, name), getattr(ours, name)
                found = getattr(own, f"weight{i}").grad
                torch.testing.assert_close(found, wanted.weight.grad if SPLITS[i] else torch.zeros_like(found))
    # With biases SequentialMLP has no gradients of its own: it adds to a view in place.
    ours, _ = both(add_bias_linear=True, bias_dropout_fusion=False)
    call = torch.randn(9, H), torch.rand(9), torch.randn(9, H)
    for found, expected in zip(rows(ours, *call), rows(functools.partial(by_hand, ours), *call), strict=True):
        torch.testing.assert_close(found, expected)
    # Whatever Megatron's own builder passes has a parameter here.
    builder = getattr(experts, "GroupedLinearFc1Builder", None)
    if builder is not None:
        asked = set(inspect.signature(builder.__call__).parameters) - {"self", "num_local_experts"}
        assert asked <= set(inspect.signature(integration.ColumnParallelGroupedLinear).parameters), asked


def by_hand(layer, x, splits, probs):
    outs = []
    for i, (part, weight) in enumerate(zip(x.split(splits.tolist()), probs.split(splits.tolist()), strict=True)):
        fc1, fc2 = ([getattr(each, f"{kind}{i}").detach() for kind in ("weight", "bias")] for each in
                    (layer.linear_fc1, layer.linear_fc2))  # fmt: skip
        gate, up = F.linear(part, *fc1).chunk(2, -1)
        outs.append(F.linear(F.silu(gate) * up * weight[:, None], fc2[0]) + fc2[1] * weight[:, None])
    return torch.cat(outs), None


@started
def checkpoint():
    """Megatron's own writer and reader of files want CUDA: what they are given is compared, values included."""
    for changed in ({}, {"gated_linear_unit": False, "activation_func": F.gelu, "add_bias_linear": True,
                         "bias_dropout_fusion": False}):  # fmt: skip
        ours, theirs = both(**changed)
        for metadata in (None, {"singleton_local_shards": True}):
            found, expected = (each.sharded_state_dict("mlp.experts.", metadata=metadata) for each in (ours, theirs))
            assert described(found) == described(expected)


def described(state):
    """What of a sharded state dict reaches a file: key, type, sizes, where in the whole it lies, which copy it is, numbers."""
    entries = []
    for each in state.values():
        if hasattr(each, "build"):  # the halves of a gate
            built = each.build()
            entries += described(built if isinstance(built, dict) else dict(enumerate(built)))
            continue
        names = ("key", "dtype", "local_shape", "global_shape", "global_offset", "axis_fragmentations", "replica_id")
        numbers = each.data.tolist() if hasattr(each, "local_shape") else None
        entries.append(str([type(each).__name__, *(getattr(each, name, None) for name in names), numbers]))
    return sorted(entries)
