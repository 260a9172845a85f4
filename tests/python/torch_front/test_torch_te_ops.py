"""compat.transformer_engine_ops.GroupedLinear: the same module under the names of te.ops."""

import math

import pytest
import torch
from cadre.torch.compat import transformer_engine_ops as te_ops
from linear_oracle import COVERED, FORM_NAMES, FORMS, SPLITS, G, K, M, N, make, reference
from torch_oracle import equal, random


def make_op(*args, **options):
    return make(*args, cls=te_ops.GroupedLinear, **options)


@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
@pytest.mark.parametrize("scale_bias", [False, True])
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
def test_results_and_gradients_are_those_of_linear(device, form, scale_bias, delayed):
    op = make_op(device, form, scale_bias=scale_bias, delay_wgrad_compute=delayed)
    assert op.num_groups == G and op.has_bias and op.need_backward_dw() == delayed
    x = random(M, K, device=device, requires_grad=True)
    scales = random(M, device=device, requires_grad=True)
    dy = random(M, N, device=device)
    extra = [
        torch.tensor(SPLITS, dtype=torch.int32, device=device),
        *([scales] if scale_bias else []),
    ]
    inputs = [x, *([scales] if scale_bias else []), *op.parameters()]
    expected = reference(op, x, scales if scale_bias else None)
    gradients = torch.autograd.grad(expected, inputs, dy)
    y = op(x, *extra)
    torch.testing.assert_close(y, expected)
    y.backward(dy)
    op.backward_dw()
    for each, gradient in zip(inputs, gradients, strict=True):
        torch.testing.assert_close(each.grad, gradient)


def test_buffers_are_those_of_the_call(device):
    op, x = make_op(device), random(M, K, device=device, requires_grad=True)
    output, grad_input = random(M, N, device=device), random(M, K, device=device)
    kept = output[COVERED:].clone(), grad_input[COVERED:].clone()
    dy = random(M, N, device=device)
    expected = reference(op, x)
    (gradient,) = torch.autograd.grad(expected, x, dy)
    y = op(x, torch.tensor(SPLITS, device=device), output=output, grad_input=grad_input)
    assert y.data_ptr() == output.data_ptr()
    y.backward(dy)
    torch.testing.assert_close(output[:COVERED], expected[:COVERED])
    torch.testing.assert_close(grad_input[:COVERED], gradient[:COVERED])
    assert equal(output[COVERED:], kept[0]) and equal(grad_input[COVERED:], kept[1])


def test_gradients_go_to_main_grad(device):
    op = make_op(device, accumulate_into_main_grad=True)
    for weight in op.weights():
        weight.main_grad = random(N, K, dtype=torch.float32, device=device)
    before = op.weight2.main_grad.clone()
    x, dy = random(M, K, device=device), random(M, N, device=device)
    op(x, torch.tensor(SPLITS, device=device)).backward(dy)
    torch.testing.assert_close(op.weight2.main_grad, before + (dy[3:8].t() @ x[3:8]).float())
    assert op.weight2.grad is None


def test_weights_start_as_those_of_nn_linear():
    op = te_ops.GroupedLinear(4, 100, 50)
    bound = 1 / math.sqrt(100)
    for weight in op.weights():
        assert 0.95 * bound < weight.abs().max() <= bound
    assert all((bias == 0).all() for bias in op.biases())


def test_init_runs_in_the_tracker():
    class Tracker:
        forks = 0

        def fork(self):
            Tracker.forks += 1
            return torch.random.fork_rng()

    te_ops.GroupedLinear(G, K, N, rng_state_tracker_function=Tracker)
    assert Tracker.forks == 1


def test_state_dicts_are_those_of_the_module():
    op, layer = make_op("cpu", (True, True)), make()
    layer.load_state_dict(op.state_dict())
    x = random(M, K)
    assert equal(layer(x, SPLITS), op(x, torch.tensor(SPLITS)))


def test_scale_bias_without_bias_takes_no_scales():
    op = make_op(bias=False, scale_bias=True)
    assert op.num_extra_inputs == 1 and not op.has_bias
    assert op(random(M, K), torch.tensor(SPLITS)).shape == (M, N)


BAD = {
    "no splits": (
        lambda op, x: op(x),
        ValueError,
        "extra inputs = 0 tensors, expected split_sizes",
    ),
    "scales not asked for": (
        lambda op, x: op(x, torch.tensor(SPLITS), random(M)),
        ValueError,
        "extra inputs = 2 tensors, expected split_sizes",
    ),
    "no scales": (
        lambda op, x: make_op(scale_bias=True)(x, torch.tensor(SPLITS)),
        ValueError,
        "extra inputs = 1 tensors, expected split_sizes and scales",
    ),
    "splits": (
        lambda op, x: op(x, torch.tensor([9, 9, 9])),
        ValueError,
        r"sum of split_sizes\[0..1\]",
    ),
    "input": (lambda op, x: op(x[:, 1:], torch.tensor(SPLITS)), ValueError, r"input.shape = \["),
    "output": (
        lambda op, x: op(x, torch.tensor(SPLITS), output=random(M, K)),
        ValueError,
        r"output.shape = \[10, 4\]",
    ),
    "grad_input": (
        lambda op, x: op(x, torch.tensor(SPLITS), grad_input=random(M, K)),
        ValueError,
        "grad_input = given",
    ),
    "main_grad": (
        lambda op, x: make_op(accumulate_into_main_grad=True)(x, torch.tensor(SPLITS)),
        ValueError,
        "because accumulate_into_main_grad is set",
    ),
    "num_groups": (lambda op, x: te_ops.GroupedLinear(0, K, N), ValueError, "num_groups = 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_have_the_names_of_te_ops(case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call(make_op(), random(M, K))
