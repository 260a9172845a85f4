"""GroupedLinear adds weight gradients to main_grad, wherever the framework around it keeps that, or says why it can't."""

import cadre.torch
import pytest
import torch
from linear_oracle import FORM_NAMES, FORMS, SPLITS, K, M, N, give_main_grads, make, poisoned
from torch.utils.checkpoint import checkpoint
from torch_oracle import equal, random

every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
at_once_or_delayed = pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])


def gradients(layer, x, dy, dtype):
    """Of the weights, flat, in their form: what is to be added."""
    stack = cadre.torch.tgmm(dy, x, SPLITS, out_dtype=dtype)
    return [each.flatten() for each in ([stack] if layer.single_grouped_weight else stack)]


def train(layer, x, dy, **options):
    layer(x, SPLITS, **options).backward(dy)
    layer.backward_dw()


@every_form
@at_once_or_delayed
def test_main_grad_is_added_to_in_f32(device, form, delayed):
    options = {"fuse_wgrad_accumulation": True, "delay_wgrad_compute": delayed}
    layer = make(device, form, torch.bfloat16, **options)
    before = give_main_grads(layer, torch.float32)
    x = random(M, K, dtype=torch.bfloat16, device=device)
    dy = random(M, N, dtype=torch.bfloat16, device=device)
    train(layer, x, dy)
    added = gradients(layer, x, dy, torch.float32)
    for weight, start, gradient in zip(layer.weights(), before, added, strict=True):
        assert weight.grad is None
        torch.testing.assert_close(weight.main_grad, start + gradient)


@every_form
@at_once_or_delayed
def test_the_first_microbatch_replaces_main_grad(device, form, delayed):
    options = {"fuse_wgrad_accumulation": True, "delay_wgrad_compute": delayed}
    layer = make(device, form, **options)
    give_main_grads(layer)
    for weight in layer.weights():
        weight.main_grad.fill_(float("nan"))
    x, dy = random(M, K, device=device), random(M, N, device=device)
    train(layer, x, dy, is_first_microbatch=True)
    once = gradients(layer, x, dy, torch.float64)
    for weight, gradient in zip(layer.weights(), once, strict=True):
        assert equal(weight.main_grad, gradient)
    train(layer, x, dy, is_first_microbatch=False)
    for weight, gradient in zip(layer.weights(), once, strict=True):
        torch.testing.assert_close(weight.main_grad, 2 * gradient)


def test_each_weight_says_for_itself_whether_main_grad_is_overwritten(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    for weight in layer.weights():
        weight.main_grad = random(N, K, device=device)
    layer.weight1.overwrite_main_grad = True
    layer.weight2.overwrite_main_grad = True
    layer.weight2.main_grad.fill_(float("nan"))
    kept = layer.weight0.main_grad.clone()
    x, dy = random(M, K, device=device), random(M, N, device=device)
    layer(x, SPLITS).backward(dy)
    torch.testing.assert_close(layer.weight0.main_grad, kept + dy[:3].t() @ x[:3])
    assert (layer.weight1.main_grad == 0).all()
    torch.testing.assert_close(layer.weight2.main_grad, dy[3:8].t() @ x[3:8])


def test_main_grads_of_different_strides(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    for i, weight in enumerate(layer.weights()):
        weight.main_grad = random(N, K + i, device=device)[:, :K]
    before = [weight.main_grad.clone() for weight in layer.weights()]
    x, dy = random(M, K, device=device), random(M, N, device=device)
    layer(x, SPLITS).backward(dy)
    for weight, start, gradient in zip(
        layer.weights(), before, gradients(layer, x, dy, torch.float64), strict=True
    ):
        torch.testing.assert_close(weight.main_grad.flatten(), start.flatten() + gradient)


class Shards:
    """FSDP's side: a parameter's gradient buffer exists only from get_main_grad() on."""

    def __init__(self, layer):
        self.asked = []
        self.buffers = [
            random(*w.shape, dtype=torch.float32, device=w.device) for w in layer.weights()
        ]
        self.before = [buffer.clone() for buffer in self.buffers]

    def wrap(self, weight, i):
        def get_main_grad():
            self.asked.append(i)
            return self.buffers[i]

        weight.get_main_grad = get_main_grad


@every_form
@at_once_or_delayed
@pytest.mark.parametrize("marked", [True, False], ids=["__fsdp_param__", "get_main_grad"])
def test_main_grad_of_a_sharded_parameter_is_asked_for_in_backward(device, form, delayed, marked):
    options = {"fuse_wgrad_accumulation": True, "delay_wgrad_compute": delayed}
    layer = make(device, form, torch.bfloat16, **options)
    shards = Shards(layer)
    for i, weight in enumerate(layer.weights()):
        shards.wrap(weight, i)
        if marked:
            weight.__fsdp_param__ = True
            weight.main_grad = None
    x = random(M, K, dtype=torch.bfloat16, device=device)
    dy = random(M, N, dtype=torch.bfloat16, device=device)
    y = layer(x, SPLITS)
    assert shards.asked == []
    y.backward(dy)
    assert shards.asked == list(range(len(layer.weights())))
    layer.backward_dw()
    added = gradients(layer, x, dy, torch.float32)
    for weight, buffer, start, gradient in zip(
        layer.weights(), shards.buffers, shards.before, added, strict=True
    ):
        assert weight.main_grad is buffer and weight.grad is None
        torch.testing.assert_close(buffer, start + gradient.view_as(start))


def test_a_stale_main_grad_of_a_sharded_parameter_is_not_used(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    shards = Shards(layer)
    stale = give_main_grads(layer, torch.float32)
    held = [weight.main_grad for weight in layer.weights()]
    for i, weight in enumerate(layer.weights()):
        shards.wrap(weight, i)
        weight.__fsdp_param__ = True
    layer(random(M, K, device=device), SPLITS).backward(random(M, N, device=device))
    for buffer, before in zip(held, stale, strict=True):
        assert equal(buffer, before)
    assert not equal(shards.buffers[2], shards.before[2])


def test_hooks_that_wait_for_a_gradient_get_one(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    fired = []
    for i, weight in enumerate(layer.weights()):
        weight.main_grad = torch.zeros_like(weight)
        weight.grad_added_to_main_grad = False
        weight.register_post_accumulate_grad_hook(lambda _, i=i: fired.append(i))
    layer(random(M, K, device=device), SPLITS).backward(random(M, N, device=device))
    assert sorted(fired) == [0, 1, 2]
    assert all(weight.grad_added_to_main_grad for weight in layer.weights())


@at_once_or_delayed
def test_checkpointing_adds_once(device, delayed):
    options = {"fuse_wgrad_accumulation": True, "delay_wgrad_compute": delayed}
    layer = make(device, **options)
    before = give_main_grads(layer)
    x, dy = random(M, K, device=device, requires_grad=True), random(M, N, device=device)
    checkpoint(layer, x, SPLITS, use_reentrant=False).backward(dy)
    layer.backward_dw()
    added = gradients(layer, x.detach(), dy, torch.float64)
    for weight, start, gradient in zip(layer.weights(), before, added, strict=True):
        torch.testing.assert_close(weight.main_grad, start + gradient)


@every_form
@at_once_or_delayed
def test_compiled_code_around_the_layer_adds_the_same(device, form, delayed):
    options = {"fuse_wgrad_accumulation": True, "delay_wgrad_compute": delayed}
    layer = make(device, form, torch.float32, **options)
    before = give_main_grads(layer)
    x, dy = (random(M, each, dtype=torch.float32, device=device) for each in (K, N))
    x.requires_grad_()

    @torch.compile(backend="aot_eager")
    def scaled(x, splits):
        return 2 * layer(x, splits)

    y = scaled(x, torch.tensor(SPLITS, device=device))
    assert equal(y, 2 * layer(x, SPLITS))
    y.backward(dy)
    layer.backward_dw()
    added = gradients(layer, x.detach(), 2 * dy, torch.float32)
    for weight, start, gradient in zip(layer.weights(), before, added, strict=True):
        torch.testing.assert_close(weight.main_grad, start + gradient)


def interleaved(weight):
    return weight.detach().clone().unflatten(-2, (2, N // 2)).transpose(-3, -2)


FAULTS = {
    "missing": (lambda weight: None, ValueError, r"main_grad = missing, expected a tensor that \["),
    "a number": (lambda weight: 3, ValueError, "main_grad = int, expected a tensor"),
    "interleaved": (interleaved, ValueError, r"shape \[.*\] and strides \["),
    "too small": (lambda weight: weight.detach().flatten()[1:], ValueError, "is a view of"),
    "integers": (
        lambda weight: torch.zeros(weight.shape, dtype=torch.int32, device=weight.device),
        TypeError,
        "main_grad.dtype = torch.int32",
    ),
    "one element": (
        lambda weight: weight.new_zeros(()).expand(weight.shape),
        ValueError,
        "expected every element at its own address",
    ),
    "rows that overlap": (
        lambda weight: weight.new_zeros(weight.numel()).as_strided(
            weight.shape, (*weight.stride()[:-2], 2, 1)
        ),
        ValueError,
        r"main_grad.strides = \[.*2, 1\], expected every element at its own address",
    ),
    "elsewhere": (
        lambda weight: torch.empty(weight.shape, device="meta"),
        ValueError,
        "main_grad.device = meta",
    ),
}


@every_form
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_main_grad_is_named_before_any_work(device, form, fault):
    layer = make(device, form, fuse_wgrad_accumulation=True)
    make_fault, kind, message = FAULTS[fault]
    for weight in layer.weights():
        weight.main_grad = make_fault(weight)
    out = poisoned(M, N, device=device)
    with pytest.raises(kind, match=message):
        layer(random(M, K, device=device), SPLITS, out=out)
    assert torch.isnan(out).all()


def test_main_grads_that_share_memory_are_named_before_any_work(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    give_main_grads(layer)
    layer.weight2.main_grad = layer.weight1.main_grad
    out = poisoned(M, N, device=device)
    message = "weight2.main_grad = a tensor that shares memory with weight1.main_grad, expected"
    with pytest.raises(ValueError, match=message):
        layer(random(M, K, device=device), SPLITS, out=out)
    assert torch.isnan(out).all()


def test_main_grads_may_interleave(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    columns = torch.zeros(N, K, len(layer.weights()), dtype=torch.float64, device=device)
    for i, weight in enumerate(layer.weights()):
        weight.main_grad = columns[..., i]
    x, dy = random(M, K, device=device), random(M, N, device=device)
    layer(x, SPLITS).backward(dy)
    expected = gradients(layer, x, dy, torch.float64)
    for weight, gradient in zip(layer.weights(), expected, strict=True):
        torch.testing.assert_close(weight.main_grad.flatten(), gradient)


def test_main_grads_of_one_layer_have_one_type(device):
    layer = make(device, fuse_wgrad_accumulation=True)
    give_main_grads(layer)
    layer.weight1.main_grad = layer.weight1.main_grad.float()
    message = (
        "weight1.main_grad.dtype = torch.float32, expected weight0.main_grad.dtype = torch.float64"
    )
    with pytest.raises(TypeError, match=message):
        layer(random(M, K, device=device), SPLITS)


def test_a_sharded_parameter_without_get_main_grad_is_named():
    layer = make(fuse_wgrad_accumulation=True)
    for weight in layer.weights():
        weight.__fsdp_param__ = True
    with pytest.raises(ValueError, match="weight0.get_main_grad = missing"):
        layer(random(M, K), SPLITS)
