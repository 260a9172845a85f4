"""Megatron-Core's experts over cadre: one argument of MoESubmodules. Needs megatron-core; no GPU, no Transformer Engine.

The layer is compared with Megatron's SequentialMLP, which has the same parameters. A whole MoELayer wants a GPU for its
router, so the experts that it holds are called here as it calls them: with rows sorted by expert, and their weights.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F

try:
    from megatron.core import parallel_state
except ImportError:
    sys.exit("examples/12_megatron.py: this example needs Megatron-Core: pip install megatron-core")

from cadre.torch.integrations import megatron as cadre_megatron
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
torch.manual_seed(0)
config = TransformerConfig(
    num_layers=1,
    hidden_size=64,
    num_attention_heads=4,
    num_moe_experts=8,
    moe_ffn_hidden_size=96,
    moe_grouped_gemm=True,
    moe_token_dispatcher_type="allgather",
    gated_linear_unit=True,
    activation_func=F.silu,
    bias_activation_fusion=False,
    add_bias_linear=False,
    use_cpu_initialization=True,
)
groups = ProcessGroupCollection.use_mpu_process_groups()
submodules = MoESubmodules(experts=cadre_megatron.experts())
grouped = MoELayer(config, submodules, layer_number=1, pg_collection=groups).experts
linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
sequential = SequentialMLP(8, config, linears, pg_collection=groups)
with torch.no_grad():
    for i, expert in enumerate(sequential.local_experts):
        expert.linear_fc1.weight.copy_(getattr(grouped.linear_fc1, f"weight{i}"))
        expert.linear_fc2.weight.copy_(getattr(grouped.linear_fc2, f"weight{i}"))

tokens_per_expert = torch.tensor([5, 0, 9, 1, 3, 7, 2, 5])
x, probs, dout = torch.randn(32, 64), torch.rand(32), torch.randn(32, 64)
gradients = []
for experts in (grouped, sequential):
    rows = x.clone().requires_grad_()
    out, _ = experts(rows, tokens_per_expert, probs)
    out.backward(dout)
    gradients.append(rows.grad)
print(type(grouped).__name__, "of", type(grouped.linear_fc1).__name__)
print("the same gradients as SequentialMLP:", torch.allclose(*gradients, atol=1e-5))
sys.stdout.flush()
os._exit(0)  # torch's threads abort now and then while the interpreter ends
