"""GroupedLinear: against a list of torch.nn.functional.linear, in every form; delayed gradients, compiled, checkpointed."""

import gc
import weakref

import cadre.torch
import pytest
import torch
from linear_oracle import (
    COVERED,
    FORM_NAMES,
    FORMS,
    SPLITS,
    G,
    K,
    M,
    N,
    make,
    poisoned,
    reference,
)
from torch.utils.checkpoint import checkpoint
from torch_oracle import equal, random

every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


@every_form
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_backward_are_those_of_linear(device, form, bias):
    layer = make(device, form, bias=bias)
    x = random(M, K, device=device, requires_grad=True)
    scales = random(M, device=device, requires_grad=True) if bias else None
    inputs = [x, *([scales] if bias else []), *layer.parameters()]
    dy = random(M, N, device=device)
    ours = layer(x, torch.tensor(SPLITS, device=device), scales=scales)
    theirs = reference(layer, x, scales)
    torch.testing.assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy), strict=True
    ):
        torch.testing.assert_close(mine, expected)


@every_form
@pytest.mark.parametrize("buffers", [False, True], ids=["own buffers", "given buffers"])
def test_delayed_gradients_are_added(device, form, buffers):
    layer = make(device, form, delay_wgrad_compute=True)
    x = random(M, K, device=device, requires_grad=True)
    scales = random(M, device=device, requires_grad=True)
    dy = random(M, N, device=device)
    expected = torch.autograd.grad(
        reference(layer, x, scales), [x, scales, *layer.parameters()], dy
    )
    given = {}
    if buffers:
        given = {"out": poisoned(M, N, device=device), "dgrad_out": poisoned(M, K, device=device)}
        given["dgrad_out"][COVERED:] = 0
    layer.backward_dw()
    for step in (1, 2):
        y = layer(x * 1, SPLITS, scales=scales, **given)
        assert not buffers or y.data_ptr() == given["out"].data_ptr()
        y.backward(dy)
        assert layer.pending_wgrads == 1
        assert all((weight.grad is None) == (step == 1) for weight in layer.weights())
        layer.backward_dw()
        assert layer.pending_wgrads == 0
        layer.backward_dw()
        for parameter, gradient in zip(layer.parameters(), expected[2:], strict=True):
            torch.testing.assert_close(parameter.grad, step * gradient)
        torch.testing.assert_close(x.grad, step * expected[0])
        torch.testing.assert_close(scales.grad, step * expected[1])
    if buffers:
        torch.testing.assert_close(given["dgrad_out"], expected[0])


def test_activations_are_let_go_after_the_delayed_gradient(device):
    layer = make(device, delay_wgrad_compute=True)
    activation = random(M, K, device=device) * 1
    kept = weakref.ref(activation)
    y = layer(activation, SPLITS)
    y.backward(random(M, N, device=device))
    del activation, y
    gc.collect()
    assert kept() is not None
    layer.backward_dw()
    gc.collect()
    assert kept() is None


def test_several_delayed_gradients_run_oldest_first(device):
    layer = make(device, delay_wgrad_compute=True, bias=False)
    assert layer.need_backward_dw() and not make(device).need_backward_dw()
    calls = []
    layer.register_wgrad_accumulation_and_reduce_hooks(lambda: calls.append(len(calls)))
    xs = [random(M, K, device=device) for _ in range(2)]
    dy = random(M, N, device=device)
    for x in xs:
        layer(x, SPLITS).backward(dy)
    assert layer.pending_wgrads == 2
    layer.backward_dw()
    torch.testing.assert_close(layer.weight2.grad, dy[3:8].t() @ xs[0][3:8])
    layer.backward_dw()
    torch.testing.assert_close(layer.weight2.grad, dy[3:8].t() @ (xs[0] + xs[1])[3:8])
    assert calls == [0, 1]


@pytest.mark.parametrize("changed", ["splits before backward", "splits", "input"])
def test_what_is_changed_in_place_too_early_is_an_error(device, changed):
    layer = make(device, delay_wgrad_compute=True)
    x, splits = random(M, K, device=device), torch.tensor(SPLITS, device=device)
    y = layer(x, splits)
    if changed == "splits before backward":
        splits.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return
    y.sum().backward()
    (splits if changed == "splits" else x).zero_()
    with pytest.raises(RuntimeError, match="changed in place between backward and backward_dw"):
        layer.backward_dw()
    assert all(weight.grad is None for weight in layer.weights())


@every_form
def test_return_bias_leaves_the_bias_to_the_caller(device, form):
    layer = make(device, form, return_bias=True)
    x = random(2, M // 2, K, device=device)
    y, bias = layer(x, SPLITS)
    assert y.shape == (2, M // 2, N)
    if layer.single_grouped_bias:
        assert bias is layer.bias and bias.shape == (G, N)
    else:
        assert [id(each) for each in bias] == [id(each) for each in layer.biases()]
    rhs = layer.weight if layer.single_grouped_weight else layer.weights()
    plain = cadre.torch.gmm(x.reshape(M, K), rhs, SPLITS, transpose_rhs=True)
    assert equal(y.reshape(M, N), plain)


@pytest.mark.parametrize("buffers", [False, True], ids=["own buffers", "given buffers"])
def test_strict_splits_must_cover_every_row(device, buffers):
    layer, x = make(device, strict_splits=True), random(M, K, device=device)
    out = poisoned(M, N, device=device) if buffers else None
    message = r"GroupedLinear: sum of m_splits = 8, expected m = 10 because strict_splits = True"
    with pytest.raises(ValueError, match=message):
        layer(x, SPLITS, out=out)
    assert out is None or out.isnan().all()
    full = [3, 2, 5]
    assert equal(layer(x, full, out=out), make_same(layer)(x, full))


def make_same(layer):
    """The same layer with every default."""
    other = make(layer.weights()[0].device)
    other.load_state_dict(layer.state_dict())
    return other


@every_form
def test_compiles_as_one_graph(device, form):
    layer = make(device, form, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = random(M, K, dtype=torch.float32, device=device, requires_grad=True)
    splits, dy = torch.tensor(SPLITS, device=device), random(M, N, dtype=torch.float32).to(device)
    inputs = [x, *layer.parameters()]
    ours, theirs = compiled(x, splits), layer(x, splits)
    assert equal(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy), strict=True
    ):
        assert equal(mine, expected)


@every_form
@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_checkpointing_recomputes_the_same(device, form, reentrant):
    layer = make(device, form)
    x, dy = random(M, K, device=device, requires_grad=True), random(M, N, device=device)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x, SPLITS), inputs, dy)
    checkpoint(layer, x, SPLITS, use_reentrant=reentrant).backward(dy)
    for each, gradient in zip(inputs, expected, strict=True):
        assert equal(each.grad, gradient)


BAD_CALLS = {
    "inp is a list": (lambda layer, x: layer([1], SPLITS), TypeError, "inp is a list"),
    "k": (lambda layer, x: layer(x[:, 1:], SPLITS), ValueError, r"inp.shape = \[10, 3\]"),
    "splits of one group": (
        lambda layer, x: layer(x, [10]),
        ValueError,
        r"m_splits.shape = \[1\], expected \[3\]",
    ),
    "too many rows": (
        lambda layer, x: layer(x, [3, 0, 8]),
        ValueError,
        r"sum of m_splits\[0..2\] = 3 \+ 8, expected at most m = 10",
    ),
    "negative split": (
        lambda layer, x: layer(x, [3, -1, 2]),
        ValueError,
        r"m_splits\[1\] = -1",
    ),
    "a split beyond 64 bits": (
        lambda layer, x: layer(x, [3, 0, 2**70]),
        ValueError,
        r"m_splits\[2\] = 1180591620717411303424, expected an int of 64 bits",
    ),
    "float splits": (
        lambda layer, x: layer(x, torch.tensor([3.0, 0, 5])),
        TypeError,
        "m_splits.dtype = torch.float32",
    ),
    "a float in a list": (lambda layer, x: layer(x, [3.0, 0, 5]), TypeError, r"m_splits\[0\] is"),
    "integers": (
        lambda layer, x: layer(x.int(), SPLITS),
        TypeError,
        "inp.dtype = torch.int32, expected torch.float64, torch.float32",
    ),
    "another device": (
        lambda layer, x: layer(x.to("meta"), SPLITS),
        ValueError,
        "weight0.device = cpu, expected inp.device = meta",
    ),
    "splits of rank 2": (
        lambda layer, x: layer(x, torch.tensor([SPLITS])),
        ValueError,
        r"m_splits.shape = \[1, 3\], expected \[3\]",
    ),
    "scales of a list": (
        lambda layer, x: layer(x, SPLITS, scales=[1.0]),
        TypeError,
        "scales is a list",
    ),
    "scales too short": (
        lambda layer, x: layer(x, SPLITS, scales=random(M - 1)),
        ValueError,
        r"scales.shape\[0\] = 9, expected inp.m = 10",
    ),
    "scales without bias": (
        lambda layer, x: make(bias=False)(x, SPLITS, scales=random(M)),
        ValueError,
        "scales = given, expected None",
    ),
    "out of another shape": (
        lambda layer, x: layer(x, SPLITS, out=random(M, K)),
        ValueError,
        r"out.shape = \[10, 4\], expected \[10, 6\]",
    ),
    "out with a gradient": (
        lambda layer, x: layer(x, SPLITS, out=random(M, N, requires_grad=True)),
        ValueError,
        "out.requires_grad = True",
    ),
    "out of integers": (
        lambda layer, x: layer(x, SPLITS, out=torch.zeros(M, N, dtype=torch.int32)),
        TypeError,
        "out.dtype = torch.int32, expected",
    ),
    "out that is no tensor": (lambda layer, x: layer(x, SPLITS, out=3), TypeError, "out is an int"),
    "out on another device": (
        lambda layer, x: layer(x, SPLITS, out=torch.empty(M, N, device="meta")),
        ValueError,
        "out.device = meta, expected inp.device = cpu",
    ),
    "out with gaps for a batch": (
        lambda layer, x: layer(x.view(2, 5, K), SPLITS, out=random(M, 2 * N)[:, ::2]),
        ValueError,
        "out.strides = .* expected a contiguous tensor, because inp.rank = 3",
    ),
    "dgrad_out without a gradient": (
        lambda layer, x: layer(x, SPLITS, dgrad_out=random(M, K)),
        ValueError,
        "dgrad_out = given, expected None, because inp wants",
    ),
    "dgrad_out of one row": (
        lambda layer, x: layer(x.requires_grad_(), SPLITS, dgrad_out=random(K).expand(M, K)),
        ValueError,
        r"dgrad_out.strides = \[0, 1\], expected every element at its own address",
    ),
    "dgrad_out that is inp": (
        lambda layer, x: layer(x.requires_grad_(), SPLITS, dgrad_out=x.detach()),
        ValueError,
        "dgrad_out = a tensor that overlaps inp, expected memory of its own",
    ),
    "out in a list": (lambda layer, x: layer(x, SPLITS, out=[x]), TypeError, "out is a list"),
    "is_first_microbatch": (
        lambda layer, x: layer(x, SPLITS, random(M)),
        TypeError,
        "is_first_microbatch is a Tensor, expected a bool or None",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_are_named(case):
    call, kind, message = BAD_CALLS[case]
    with pytest.raises(kind, match=f"GroupedLinear: {message}"):
        call(make(), random(M, K))


def test_weights_want_gradients_together():
    layer = make(delay_wgrad_compute=True)
    layer.weight1.requires_grad_(False)
    with pytest.raises(ValueError, match="weight1.requires_grad = False, expected the same"):
        layer(random(M, K), SPLITS)
