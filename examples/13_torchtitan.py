"""torchtitan's experts over cadre: one override, named on torchtitan's command line. Needs torchtitan; no GPU.

    --override.imports cadre.torch.integrations.torchtitan.grouped_experts

Here the override is applied to the routed experts of one layer, which are then trained for some steps.
"""

import sys

import torch
import torch.nn.functional as F

try:
    from torchtitan.config import apply_overrides
except ImportError:
    sys.exit("examples/13_torchtitan.py: this example needs torchtitan: pip install torchtitan")

from torchtitan.config.override import OverrideConfig
from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

EXPERTS, TOP_K, DIM, HIDDEN = 8, 2, 64, 96
torch.manual_seed(0)
config = RoutedExperts.Config(
    inner_experts=GroupedExperts.Config(dim=DIM, hidden_dim=HIDDEN, num_experts=EXPERTS),
    token_dispatcher=LocalTokenDispatcher.Config(num_experts=EXPERTS, top_k=TOP_K),
)
override = OverrideConfig(imports=["cadre.torch.integrations.torchtitan.grouped_experts"])
for line in apply_overrides(override, config):
    print(line)
layer = config.build()
for parameter in layer.parameters():
    torch.nn.init.normal_(parameter, std=0.1)

x, target = torch.randn(2, 16, DIM), torch.randn(2, 16, DIM)
scores, ids = torch.rand(2, 16, EXPERTS).topk(TOP_K, sorted=False)
counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
losses = []
for _ in range(10):
    loss = F.mse_loss(layer(x, scores, ids, counts), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"{type(layer.inner_experts).__name__}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
