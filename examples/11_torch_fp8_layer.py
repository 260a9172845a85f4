"""The experts of a layer in FP8: how far each recipe is from bf16, and a step of training."""

import cadre.torch
import torch

EXPERTS, HIDDEN, INNER, TOKENS, TOP_K = 4, 160, 96, 64, 2


def layer_like(weights, recipe):
    made = cadre.torch.GroupedMLP(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16, recipe=recipe)
    made.load_state_dict(weights)
    return made


def one_pass(layer):
    leaf = x.clone().requires_grad_()
    out = layer(leaf, ids, weights)
    out.backward(dout)
    return out.detach(), leaf.grad, layer.w13.grad, layer.w2.grad


torch.manual_seed(0)
x, dout = (torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16) for _ in range(2))
weights, ids = cadre.torch.select_experts(torch.randn(TOKENS, EXPERTS), TOP_K)
scaled = {"init_method": lambda weight: weight.normal_(std=weight.shape[1] ** -0.5)}
start = cadre.torch.GroupedMLP(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16, **scaled).state_dict()

expected = one_pass(layer_like(start, None))
for recipe in ("block_128", "row", "tensor", "mx"):
    results = one_pass(layer_like(start, recipe))
    errors = [((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in zip(results, expected)]
    shown = ", ".join(f"{name} {error:.3f}" for name, error in zip(("out", "dx", "dw13", "dw2"), errors))
    print(f"{recipe}: relative error of {shown}")

layer = layer_like(start, "block_128")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = layer(x, ids, weights).float().square().mean()
    loss.backward()
    optimizer.step()  # the weights change, so the next forward quantises them again
    losses.append(loss.item())
print("the loss falls:", losses[2] < losses[1] < losses[0])
