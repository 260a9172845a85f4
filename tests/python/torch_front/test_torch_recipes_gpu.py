"""Layers with a recipe on a GPU: a training step captured once and replayed with other splits or routing and other weights
has the bits of an eager one, and nothing waits for the device."""

import pytest
import torch
from cadre.torch import GroupedLinear, GroupedMLP
from test_torch_grouped_linear_gpu import SPLITS, G, K, N, capture, tensors
from test_torch_linear_recipes import every_recipe
from torch_oracle import equal

pytestmark = pytest.mark.gpu

TOKENS, H, I, E, TOP_K = 96, 144, 80, 6, 2
options_of = pytest.mark.parametrize(
    "options",
    [{}, {"fuse_wgrad_accumulation": True}, {"delay_wgrad_compute": True}],
    ids=["grad", "main_grad", "delayed"],
)


def targets(layer):
    """Where the weights' gradients go."""
    if layer.fuse_wgrad_accumulation:
        return [weight.main_grad for weight in layer.weights()]
    return [weight.grad for weight in layer.weights()]


def with_main_grads(layer):
    if layer.fuse_wgrad_accumulation:
        for weight in layer.weights():
            weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    return layer


def replaces_main_grad(layer):
    """is_first_microbatch: an eager step beside the graph's must not add to what that has written."""
    return True if layer.fuse_wgrad_accumulation else None


def step_of(layer, call, leaves, dout):
    """A step that leaves every gradient at one address; what it computes."""

    def step():
        for each in (*leaves, *layer.parameters()):
            each.grad = None
        y = call()
        y.backward(dout)
        layer.backward_dw()
        others = [each for each in layer.biases() if each is not None]
        return [y.detach(), *(each.grad for each in (*leaves, *others)), *targets(layer)]

    return step


def check_replays(layer, step, cases, change):
    """Captures a step and replays it for each case, with other weights each time; eager steps between use weights that the
    graph has not quantised."""
    eager_before = [each.clone() for each in step()]
    graph, captured = capture(step)
    for mine, theirs in zip(step(), eager_before, strict=True):
        assert equal(mine, theirs), "an eager step before the first replay reads nothing of the graph's"
    for i, case in enumerate(cases):
        change(case)
        with torch.no_grad():
            for weight in layer.weights():
                weight.mul_(-1.5 if i % 2 else 0.75)
        for each in captured:
            each.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        copies = [each.clone() for each in captured]
        for mine, theirs in zip(copies, step(), strict=True):
            assert equal(mine, theirs), case


@every_recipe
@options_of
@pytest.mark.parametrize("single", [False, True], ids=["listed", "single"])
def test_a_linear_layer_replays_with_other_splits(recipe, options, single):
    forms = {"single_grouped_weight": single, "single_grouped_bias": single}
    layer = GroupedLinear(G, K, N, device="cuda", dtype=torch.bfloat16, recipe=recipe, **forms, **options)
    with_main_grads(layer)
    x, dy = tensors(K, N)
    x.requires_grad_()
    splits = torch.tensor(SPLITS[0], device="cuda")
    step = step_of(layer, lambda: layer(x, splits, replaces_main_grad(layer)), [x], dy)
    check_replays(layer, step, SPLITS, lambda sizes: splits.copy_(torch.tensor(sizes)))


@every_recipe
@options_of
def test_experts_replay_with_another_routing(recipe, options):
    layer = GroupedMLP(E, H, I, device="cuda", dtype=torch.bfloat16, bias=True, recipe=recipe, **options)
    with_main_grads(layer)
    x, dout = (torch.randn(TOKENS, H, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weights = torch.rand(TOKENS, TOP_K, device="cuda").requires_grad_()
    x.requires_grad_()

    def routing():
        return torch.stack([torch.randperm(E)[:TOP_K] for _ in range(TOKENS)])

    # The last three: all tokens to one expert, none to any, and half of them dropped.
    to_one, to_none = torch.tensor([[0, -1]] * TOKENS), torch.full((TOKENS, TOP_K), -1)
    halved = torch.where(torch.arange(TOKENS)[:, None] % 2 == 0, routing(), -1)
    cases = [routing(), routing(), to_one, to_none, halved]
    ids = cases[0].cuda()
    step = step_of(layer, lambda: layer(x, ids, weights, replaces_main_grad(layer)), [x, weights], dout)
    check_replays(layer, step, cases, ids.copy_)


@every_recipe
@options_of
def test_no_pass_waits_for_the_device(recipe, options):
    linear = with_main_grads(GroupedLinear(G, K, N, device="cuda", dtype=torch.bfloat16, recipe=recipe, **options))
    experts = with_main_grads(GroupedMLP(E, H, I, device="cuda", dtype=torch.bfloat16, recipe=recipe, **options))
    x, dy = tensors(K, N)
    x.requires_grad_()
    splits = torch.tensor(SPLITS[0], device="cuda")
    tokens, dout = (torch.randn(TOKENS, H, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weights = torch.rand(TOKENS, TOP_K, device="cuda").requires_grad_()
    ids = torch.randint(E, (TOKENS, TOP_K), device="cuda")

    def step():
        for first in (True, False):
            linear(x, splits, first).backward(dy)
            experts(tokens, ids, weights, first).backward(dout)
            linear.backward_dw()
            experts.backward_dw()

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
