"""GroupedMLP: it is moe_mlp of its parameters; main_grad, delayed gradients, and what it refuses."""

import cadre.torch
import pytest
import torch
from torch_oracle import equal, random

T = cadre.torch
G, H, I, TOKENS, TOP_K = 4, 6, 5, 13, 3


def make(device="cpu", **options):
    layer = T.GroupedMLP(G, H, I, bias=True, dtype=torch.float64, device=device, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return layer


def call_of(device="cpu"):
    ids = torch.randint(-1, G + 1, (TOKENS, TOP_K), device=device)
    x = random(TOKENS, H, device=device, requires_grad=True)
    weights = random(TOKENS, TOP_K, device=device, requires_grad=True)
    return (x, ids, weights), random(TOKENS, H, device=device)


def reference(layer, inputs, dy, **options):
    """The result and the gradients of x, the router weights and every parameter, through moe_mlp."""
    x, ids, weights = inputs
    parameters = {name: each.detach().clone().requires_grad_() for name, each in layer.named_parameters()}
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    out = T.moe_mlp(x, ids, weights, **parameters, **options)
    named = {"x": x, "weights": weights, **parameters}
    return out, dict(zip(named, torch.autograd.grad(out, list(named.values()), dy), strict=True))


@pytest.mark.parametrize("activation", ["swiglu", "relu2", "clamped_swiglu"])
@pytest.mark.parametrize("on_input", [False, True])
def test_it_is_moe_mlp_of_its_parameters(device, activation, on_input):
    layer = make(device, activation=activation, weights_on_input=on_input)
    inputs, dy = call_of(device)
    out = layer(*inputs)
    options = {"activation": activation, "weights_on_input": on_input}
    expected, gradients = reference(layer, inputs, dy, **options)
    assert equal(out, expected)
    out.backward(dy)
    found = {"x": inputs[0].grad, "weights": inputs[2].grad}
    found |= {name: each.grad for name, each in layer.named_parameters()}
    assert all(equal(found[name], gradients[name]) for name in gradients)


def test_tokens_may_have_more_dims_and_be_routed_already(device):
    layer, (x, ids, weights) = make(device), call_of(device)[0]
    out = layer(x, ids, weights, shared=x, residual=x)
    whole = layer(x.view(1, TOKENS, H), T.route(ids, G), weights, shared=x, residual=x)
    assert equal(whole, out.view(1, TOKENS, H))


@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
@pytest.mark.parametrize("first", [None, True], ids=["added", "replaced"])
def test_main_grad_takes_the_gradients_in_f32(device, delayed, first):
    layer = make(device, fuse_wgrad_accumulation=True, delay_wgrad_compute=delayed)
    for weight in layer.weights():
        weight.main_grad = torch.randn(weight.shape, device=device, dtype=torch.float32)
        weight.grad_added_to_main_grad = False
    before = [weight.main_grad.clone() for weight in layer.weights()]
    inputs, dy = call_of(device)
    expected, gradients = reference(layer, inputs, dy)
    out = layer(*inputs, is_first_microbatch=first)
    assert equal(out, expected)
    out.backward(dy)
    if delayed:
        assert all(equal(w.main_grad, b) for w, b in zip(layer.weights(), before, strict=True))
        assert layer.need_backward_dw() and layer.pending_wgrads == 1
        layer.backward_dw()
    for name, weight, start in zip(("w13", "w2"), layer.weights(), before, strict=True):
        added = gradients[name].float()
        torch.testing.assert_close(weight.main_grad, added if first else start + added)
        assert weight.grad_added_to_main_grad
    assert equal(inputs[0].grad, gradients["x"]) and equal(inputs[2].grad, gradients["weights"])
    assert equal(layer.bias13.grad, gradients["bias13"])


def test_one_weight_may_have_its_main_grad_overwritten(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    for weight in layer.weights():
        weight.main_grad = torch.ones_like(weight)
    layer.w2.overwrite_main_grad = True
    inputs, dy = call_of(device)
    _, gradients = reference(layer, inputs, dy)
    layer(*inputs).backward(dy)
    torch.testing.assert_close(layer.w13.main_grad, 1 + gradients["w13"])
    torch.testing.assert_close(layer.w2.main_grad, gradients["w2"])


def test_delayed_gradients_add_to_grad_the_oldest_first(device):
    layer, called = make(device, delay_wgrad_compute=True), []
    layer.register_wgrad_accumulation_and_reduce_hooks(lambda: called.append(True))
    layer.backward_dw()
    assert not called, "there was nothing to do"
    totals = None
    for _ in range(2):
        inputs, dy = call_of(device)
        _, gradients = reference(layer, inputs, dy)
        layer(*inputs).backward(dy)
        each = [gradients["w13"], gradients["w2"]]
        totals = each if totals is None else [a + b for a, b in zip(totals, each, strict=True)]
    assert layer.pending_wgrads == 2 and layer.w13.grad is None
    layer.backward_dw()
    layer.backward_dw()
    assert len(called) == 2 and layer.pending_wgrads == 0
    for weight, total in zip(layer.weights(), totals, strict=True):
        torch.testing.assert_close(weight.grad, total)


def test_a_change_in_place_before_a_delayed_gradient_is_refused(device):
    layer = make(device, delay_wgrad_compute=True)
    (x, ids, weights), dy = call_of(device)
    x = x.detach()
    layer(x, ids, weights).backward(dy)
    x.zero_()
    with pytest.raises(RuntimeError, match="GroupedMLP: the input, .* was changed in place"):
        layer.backward_dw()


def test_compiled_code_around_it_and_a_fused_one_inside(device):
    inputs, _ = call_of(device)
    layer = make(device)
    compiled = torch.compile(lambda *args: 2 * layer(*args), fullgraph=True, backend="aot_eager")
    assert equal(compiled(*inputs), 2 * layer(*inputs))
    delayed = make(device, delay_wgrad_compute=True)
    around = torch.compile(lambda *args: 2 * delayed(*args), backend="aot_eager")
    assert equal(around(*inputs), 2 * delayed(*inputs))


FAULTS = {
    "experts": (lambda: T.GroupedMLP(0, H, I), ValueError, "GroupedMLP: num_gemms = 0, expected 1"),
    "hidden": (lambda: T.GroupedMLP(G, 2.0, I), TypeError, "GroupedMLP: hidden_size is a float"),
    "activation": (
        lambda: T.GroupedMLP(G, H, I, activation="swish"),
        ValueError,
        "GroupedMLP: activation = 'swish'",
    ),
    "a function and delayed gradients": (
        lambda: T.GroupedMLP(G, H, I, activation=torch.tanh, delay_wgrad_compute=True),
        ValueError,
        "GroupedMLP: activation = a function, expected a name",
    ),
    "x": (
        lambda: make()(random(TOKENS, H + 1), torch.zeros(TOKENS, 1).int()),
        ValueError,
        r"GroupedMLP: x.shape = \[13, 7\], expected \[..., hidden_size = 6\]",
    ),
    "ids": (
        lambda: make()(random(TOKENS, H), random(TOKENS, 2)),
        TypeError,
        "GroupedMLP: expert_ids.dtype = torch.float64",
    ),
    "main_grad": (
        lambda: make(fuse_wgrad_accumulation=True)(
            random(TOKENS, H), torch.zeros(TOKENS, 1).int()
        ),
        ValueError,
        r"GroupedMLP: w13.main_grad = missing, expected a tensor that \[4, 10, 6\] is a view of",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named(name):
    call, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        call()
