"""Swap cadre into an existing PyTorch mixture-of-experts block: router and loop over experts become two lines.

Both blocks share their parameters; outputs and gradients are compared, then the new one is trained for a few steps.
"""

import cadre.torch
import torch
import torch.nn.functional as F
from torch import nn

TOKENS, DIM, HIDDEN, EXPERTS, TOP_K, STEPS = 64, 16, 32, 8, 2, 20


class LoopBlock(nn.Module):
    """What many models have: every expert in turn, rows gathered and scattered, a sync for each."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, DIM) * DIM**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, DIM, HIDDEN) * HIDDEN**-0.5)

    def forward(self, x):
        weights, experts = torch.topk(F.softmax(self.router(x), dim=-1), TOP_K)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            token, slot = torch.where(experts == e)
            hidden = F.silu(F.linear(x[token], self.up[e]))
            out = out.index_add(
                0, token, F.linear(hidden, self.down[e]) * weights[token, slot, None]
            )
        return out


class GroupedBlock(LoopBlock):
    """The same with cadre: one call for the experts, and one for the router; nothing leaves the device."""

    def forward(self, x):
        weights, experts = cadre.torch.select_experts(self.router(x), TOP_K, normalize=False)
        return cadre.torch.moe_mlp(x, experts, weights, self.up, self.down, activation="silu")


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loop, grouped = LoopBlock().to(device), GroupedBlock().to(device)
    grouped.load_state_dict(loop.state_dict())
    x = torch.randn(TOKENS, DIM, device=device)
    target = torch.randn(TOKENS, DIM, device=device)

    outputs = [block(x) for block in (loop, grouped)]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    gradients = [
        torch.autograd.grad(out.square().sum(), block.parameters())
        for out, block in zip(outputs, (loop, grouped), strict=True)
    ]
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    print("the grouped block gives the loop's outputs and gradients")

    optimizer = torch.optim.Adam(grouped.parameters(), lr=0.02)
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(grouped(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps on {device}")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
