"""GroupedLinear: against a list of torch.nn.functional.linear, in every form; buffers of the caller's, delayed gradients."""

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


@every_form
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("supply", ["out", "dgrad_out", "both"])
def test_rows_behind_the_last_split_of_a_buffer_are_left_alone(device, form, rank, supply):
    layer = make(device, form)
    shape = (M, K) if rank == 2 else (2, M // 2, K)
    base = random(*shape, device=device)
    dy = random(*shape[:-1], N, device=device)
    expected_x = base.clone().requires_grad_()
    expected = layer(expected_x, SPLITS)
    expected.backward(dy)

    out = random(M, N, device=device) if supply != "dgrad_out" else None
    dgrad = random(M, K, device=device) if supply != "out" else None
    kept = [None if each is None else each[COVERED:].clone() for each in (out, dgrad)]
    x = base.clone().requires_grad_()
    y = layer(x, torch.tensor(SPLITS, device=device), None, out, dgrad)
    assert y.shape == expected.shape and y.requires_grad
    assert equal(y.reshape(M, N)[:COVERED], expected.reshape(M, N)[:COVERED])
    y.backward(dy)
    if out is not None:
        assert y.data_ptr() == out.data_ptr() and not out.requires_grad
        assert equal(out[COVERED:], kept[0])
    if dgrad is not None:
        assert equal(dgrad[COVERED:], kept[1])
        assert equal(dgrad[:COVERED], expected_x.grad.reshape(M, K)[:COVERED])
    assert equal(x.grad.reshape(M, K)[:COVERED], expected_x.grad.reshape(M, K)[:COVERED])


@every_form
@pytest.mark.parametrize("options", [{"out": (M, N)}, {"dgrad_out": (M, K)}], ids=str)
def test_gradients_are_the_same_bits_with_buffers_as_without(device, form, options):
    layer = make(device, form, torch.bfloat16)
    x = random(M, K, dtype=torch.bfloat16, device=device, requires_grad=True)
    scales = random(M, dtype=torch.float32, device=device, requires_grad=True)
    dy = random(M, N, dtype=torch.bfloat16, device=device)
    inputs = [x, scales, *layer.parameters()]
    given = {
        name: torch.zeros(shape, dtype=torch.bfloat16, device=device)
        for name, shape in options.items()
    }
    plain = torch.autograd.grad(layer(x, SPLITS, scales=scales), inputs, dy)
    ours = torch.autograd.grad(layer(x, SPLITS, scales=scales, **given), inputs, dy)
    for mine, expected in zip(ours, plain, strict=True):
        assert equal(mine, expected)


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_a_leaf_add_up_over_one_dgrad_out(device, rank):
    layer = make(device)
    shape = (M, K) if rank == 2 else (2, M // 2, K)
    x = random(*shape, device=device, requires_grad=True)
    dys = [random(*shape[:-1], N, device=device) for _ in range(3)]
    expected = sum(torch.autograd.grad(layer(x, SPLITS), x, dy)[0] for dy in dys)
    buffer = torch.zeros(M, K, dtype=torch.float64, device=device)
    for dy in dys:
        layer(x, SPLITS, dgrad_out=buffer).backward(dy)
    torch.testing.assert_close(x.grad, expected)
    assert x.grad.data_ptr() != buffer.data_ptr()


def test_dgrad_out_may_lie_beside_inp(device):
    layer, both = make(device), random(M, 2 * K, device=device)
    x, buffer = both[:, :K], both[:, K:]
    dy = random(M, N, device=device)
    expected = torch.autograd.grad(reference(layer, x.requires_grad_()), [x, layer.weight2], dy)
    layer(x, SPLITS, dgrad_out=buffer).backward(dy)
    torch.testing.assert_close(buffer[:COVERED], expected[0][:COVERED])
    torch.testing.assert_close(layer.weight2.grad, expected[1])


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


@pytest.mark.parametrize("given", ["out", "dgrad_out", "delayed"])
def test_compiled_code_around_buffers_drops_no_gradient(device, given):
    layer = make(device, dtype=torch.float32, delay_wgrad_compute=given == "delayed")
    x = random(M, K, dtype=torch.float32, device=device, requires_grad=True)
    dy = random(M, N, dtype=torch.float32, device=device)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(2 * reference(layer, x), inputs, dy)
    options = {}
    if given != "delayed":
        width = N if given == "out" else K
        options[given] = torch.zeros(M, width, dtype=torch.float32, device=device)

    def scaled(x, splits):
        return 2 * layer(x, splits, **options)

    splits = torch.tensor(SPLITS, device=device)
    torch.compile(scaled, backend="aot_eager")(x, splits).backward(dy)
    layer.backward_dw()
    for each, gradient in zip(inputs, expected, strict=True):
        torch.testing.assert_close(each.grad, gradient)
    torch.compiler.reset()
    with pytest.raises(Exception, match="torch.compiler.disable|torch._dynamo.disable"):
        torch.compile(scaled, backend="aot_eager", fullgraph=True)(x, splits)


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
    "float splits": (
        lambda layer, x: layer(x, torch.tensor([3.0, 0, 5])),
        TypeError,
        "m_splits.dtype = torch.float32",
    ),
    "a float in a list": (lambda layer, x: layer(x, [3.0, 0, 5]), TypeError, r"m_splits\[0\] is"),
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
