"""GroupedLinear: against a list of torch.nn.functional.linear; delayed and main_grad gradients; nothing silently dropped."""

import gc
import weakref

import cadre.torch
import pytest
import torch
import torch.nn.functional as F
from torch_oracle import equal, random

G, K, N = 3, 4, 6
SPLITS = [3, 0, 5]
M = 10
FORMS = [False, True]
FORM_NAMES = ["listed", "stacked"]


def make(device, stacked=False, dtype=torch.float64, **options):
    layer = cadre.torch.GroupedLinear(
        G, K, N, device=device, params_dtype=dtype, stacked=stacked, **options
    )
    with torch.no_grad():
        for bias in layer.biases():
            bias.normal_()
    return layer


def matrices(tensors):
    return list(tensors[0]) if len(tensors) == 1 else list(tensors)


def reference(layer, x, scales=None):
    """The same by F.linear, with the tail at zero."""
    rows, start = [], 0
    weights, biases = (
        matrices(layer.weights()),
        matrices(layer.biases()) if layer.use_bias else [None] * G,
    )
    for i, size in enumerate(SPLITS):
        part = F.linear(x[start : start + size], weights[i])
        if layer.use_bias:
            part = (
                part + (1.0 if scales is None else scales[start : start + size, None]) * biases[i]
            )
        rows.append(part)
        start += size
    return torch.cat([*rows, x.new_zeros(M - start, N)])


def gradients_of(layer):
    return torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])


@pytest.mark.parametrize("stacked", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_backward_are_those_of_linear(device, stacked, bias):
    layer = make(device, stacked, bias=bias)
    x = random(M, K, device=device, requires_grad=True)
    scales = random(M, device=device, requires_grad=True) if bias else None
    inputs = [x, *([scales] if bias else []), *layer.parameters()]
    dy = random(M, N, device=device)
    ours = layer(x, torch.tensor(SPLITS, device=device), scales)
    theirs = reference(layer, x, scales)
    torch.testing.assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy), strict=True
    ):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("stacked", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("buffers", [False, True], ids=["own buffers", "given buffers"])
def test_delayed_gradients_are_added(device, stacked, buffers):
    layer = make(device, stacked, delay_wgrad_compute=True)
    x = random(M, K, device=device, requires_grad=True)
    scales = random(M, device=device, requires_grad=True)
    dy = random(M, N, device=device)
    expected = torch.autograd.grad(
        reference(layer, x, scales), [x, scales, *layer.parameters()], dy
    )
    given = (
        {"out": random(M, N, device=device), "grad_input": random(M, K, device=device)}
        if buffers
        else {}
    )
    layer.backward_dw()
    for step in (1, 2):
        y = layer(x * 1, SPLITS, scales, **given)
        assert not buffers or y.data_ptr() == given["out"].data_ptr()
        y.backward(dy)
        assert layer.pending_wgrads == 1
        before = [
            None if weight.grad is None else weight.grad.clone() for weight in layer.weights()
        ]
        assert (before[0] is None) == (step == 1)
        layer.backward_dw()
        assert layer.pending_wgrads == 0
        layer.backward_dw()
        for parameter, gradient in zip(layer.parameters(), expected[2:], strict=True):
            torch.testing.assert_close(parameter.grad, step * gradient)
        torch.testing.assert_close(x.grad, step * expected[0])
        torch.testing.assert_close(scales.grad, step * expected[1])
    if buffers:
        torch.testing.assert_close(given["grad_input"], expected[0])


@pytest.mark.parametrize("stacked", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
def test_main_grad_is_added_to_in_f32(device, stacked, delayed):
    layer = make(
        device, stacked, torch.bfloat16, fuse_wgrad_accumulation=True, delay_wgrad_compute=delayed
    )
    for weight in layer.weights():
        # Flat buffers, as a distributed optimizer has them: the weight's shape is a view of each.
        weight.main_grad = random(weight.numel(), dtype=torch.float32, device=device)
    before = [weight.main_grad.clone() for weight in layer.weights()]
    x = random(M, K, dtype=torch.bfloat16, device=device)
    dy = random(M, N, dtype=torch.bfloat16, device=device)
    layer(x, SPLITS).backward(dy)
    layer.backward_dw()
    wide = cadre.torch.tgmm(dy, x, SPLITS, out_dtype=torch.float32)
    for weight, start, gradient in zip(
        layer.weights(), before, [wide] if stacked else wide, strict=True
    ):
        assert weight.grad is None
        torch.testing.assert_close(weight.main_grad, start + gradient.flatten())


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


@pytest.mark.parametrize("stacked", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("fault", ["missing", "interleaved"])
def test_bad_main_grad_is_named_before_any_work(device, stacked, fault):
    layer = make(device, stacked, fuse_wgrad_accumulation=True)
    if fault == "interleaved":
        for weight in layer.weights():
            halves = weight.detach().clone().unflatten(-2, (2, N // 2))
            weight.main_grad = halves.transpose(-3, -2)
    expected = (
        r"main_grad = missing, expected a tensor that \("
        if fault == "missing"
        else r"shape \(.*\) and strides \("
    )
    out = torch.full((M, N), float("nan"), dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match=expected):
        layer(random(M, K, device=device), SPLITS, out=out)
    assert torch.isnan(out).all()


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


def test_return_bias_leaves_the_bias_to_the_caller(device):
    layer = make(device, return_bias=True)
    x = random(2, M // 2, K, device=device)
    y, biases = layer(x, SPLITS)
    assert y.shape == (2, M // 2, N)
    assert [id(bias) for bias in biases] == [id(bias) for bias in layer.biases()]
    plain = cadre.torch.gmm(x.reshape(M, K), layer.weights(), SPLITS, transpose_rhs=True)
    assert equal(y.reshape(M, N), plain)


def test_state_dict_has_the_names_of_transformer_engine():
    layer = make("cpu")
    assert list(layer.state_dict()) == ["weight0", "weight1", "weight2", "bias0", "bias1", "bias2"]
    other = make("cpu")
    other.load_state_dict(layer.state_dict())
    x = random(M, K)
    assert equal(layer(x, SPLITS), other(x, SPLITS))
    assert {
        name: tuple(value.shape) for name, value in make("cpu", stacked=True).state_dict().items()
    } == {
        "weight": (G, N, K),
        "bias": (G, N),
    }


def test_init_runs_in_the_tracker_that_was_given():
    entered = []

    class Tracker:
        def fork(self, name="default"):
            entered.append(name)
            return torch.random.fork_rng()

    options = {"get_rng_state_tracker": Tracker, "rng_tracker_name": "experts"}
    cadre.torch.GroupedLinear(2, 3, 4, init_method=lambda weight: weight.fill_(7), **options)
    layer = cadre.torch.GroupedLinear(
        2, 3, 4, init_method=lambda weight: weight.fill_(7), **options
    )
    assert entered == ["experts", "experts"]
    assert (layer.weight1 == 7).all() and (layer.bias1 == 0).all()


REFUSED = {
    "sequence_parallel": ({"sequence_parallel": True}, "sequence_parallel = True, expected False"),
    "tp_size": ({"tp_size": 2}, "tp_size = 2, expected 1"),
    "parallel_mode": ({"parallel_mode": "column"}, "parallel_mode = 'column', expected None"),
    "ub_overlap_rs": ({"ub_overlap_rs": True}, "ub_overlap_rs = True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make("cpu", **options)


def test_bad_calls_are_named():
    layer, x = make("cpu"), random(M, K)
    cases = [
        (lambda: layer(x[:, 1:], SPLITS), r"inp.shape = \(10, 3\)"),
        (lambda: layer(x, [10]), r"m_splits.shape = \(1,\), expected \(3,\)"),
        (lambda: layer(x, [3, 0, 8]), "sum of group_sizes"),
        (lambda: make("cpu", bias=False)(x, SPLITS, random(M)), "scales = given, expected None"),
        (lambda: layer(x, SPLITS, out=random(M, K)), r"out.shape = \(10, 4\), expected \(10, 6\)"),
        (
            lambda: layer(x, SPLITS, out=random(M, N, requires_grad=True)),
            "out.requires_grad = True",
        ),
        (
            lambda: layer(x, SPLITS, grad_input=random(M, K)),
            "given, expected None, because inp wants",
        ),
        (
            lambda: layer(x.clone().requires_grad_(), SPLITS, grad_input=random(M, K)),
            "given, expected None, because inp is a leaf",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    layer.weight1.requires_grad_(False)
    layer.delay_wgrad_compute = True
    with pytest.raises(ValueError, match="weight1.requires_grad = False, expected the same"):
        layer(x, SPLITS)


def test_compiles_as_one_graph(device):
    layer = make(device, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = random(M, K, dtype=torch.float32, device=device)
    splits = torch.tensor(SPLITS, device=device)
    assert equal(compiled(x, splits), layer(x, splits))
