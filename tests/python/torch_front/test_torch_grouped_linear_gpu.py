"""GroupedLinear on a GPU: graphs captured once and replayed with other splits, in every form; nothing waits for the device."""

import cadre.torch
import pytest
import torch
from cadre.torch.compat import grouped_gemm
from cadre.torch.compat import transformer_engine_ops as te_ops
from linear_oracle import FORM_NAMES, FORMS, matrices, poisoned
from torch_oracle import equal, random

pytestmark = pytest.mark.gpu

G, K, N, M = 4, 72, 136, 300
SPLITS = [[70, 80, 90, 60], [0, 300, 0, 0], [1, 0, 17, 128], [0, 0, 0, 0], [64, 64, 64, 64]]
every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


def make(form, dtype=torch.bfloat16, cls=cadre.torch.GroupedLinear, **options):
    weight, bias = form
    options |= {"single_grouped_weight": weight, "single_grouped_bias": bias}
    layer = cls(G, K, N, device="cuda", dtype=dtype, **options)
    with torch.no_grad():
        for each in layer.biases():
            each.normal_()
    return layer


def tensors(*widths, dtype=torch.bfloat16):
    return [random(M, width, dtype=dtype, device="cuda") for width in widths]


def capture(function):
    """(graph, result) after a warm-up on another stream."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@every_form
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
def test_a_training_step_with_buffers_replays_with_other_splits(form, delayed):
    layer = make(form, fuse_wgrad_accumulation=True, delay_wgrad_compute=delayed)
    for weight in layer.weights():
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    x, dy = tensors(K, N)
    x.requires_grad_()
    scales = random(M, dtype=torch.float32, device="cuda", requires_grad=True)
    splits = torch.tensor(SPLITS[0], device="cuda")
    out, dgrad = poisoned(M, N, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
    wanted = [x, scales, *layer.biases()]

    def step():
        for each in wanted:
            each.grad = None
        layer(x, splits, None, out, dgrad, scales=scales).backward(dy)
        layer.backward_dw()
        return [each.grad for each in wanted]

    graph, grads = capture(step)
    plain = make(form)
    plain.load_state_dict(layer.state_dict())
    for sizes in SPLITS:
        splits.copy_(torch.tensor(sizes))
        rows = sum(sizes)
        out.fill_(7.0)
        dgrad.fill_(7.0)
        for weight in layer.weights():
            weight.main_grad.fill_(1.0)
        graph.replay()

        other_x = x.detach().clone().requires_grad_()
        other_scales = scales.detach().clone().requires_grad_()
        expected = plain(other_x, sizes, scales=other_scales)
        inputs = [other_x, other_scales, *plain.biases()]
        gradients = torch.autograd.grad(expected, inputs, dy)
        torch.cuda.synchronize()
        assert equal(out[:rows], expected[:rows]) and (out[rows:] == 7.0).all()
        assert equal(dgrad[:rows], gradients[0][:rows]) and (dgrad[rows:] == 7.0).all()
        assert equal(grads[0][:rows], gradients[0][:rows])
        for mine, theirs in zip(grads[1:], gradients[1:], strict=True):
            assert equal(mine, theirs)
        weights = 1.0 + cadre.torch.tgmm(dy, x.detach(), sizes, out_dtype=torch.float32)
        for mine, theirs in zip(
            matrices([weight.main_grad for weight in layer.weights()]), weights, strict=True
        ):
            torch.testing.assert_close(mine, theirs)


@every_form
def test_te_ops_replays_with_other_splits(form):
    op = make(form, torch.float32, cls=te_ops.GroupedLinear, scale_bias=True)
    x, dy = tensors(K, N, dtype=torch.float32)
    scales = random(M, dtype=torch.float32, device="cuda")
    splits = torch.tensor(SPLITS[0], device="cuda", dtype=torch.int32)

    def step():
        for parameter in op.parameters():
            parameter.grad = None
        y = op(x, splits, scales)
        y.backward(dy)
        return [y, *(parameter.grad for parameter in op.parameters())]

    graph, captured = capture(step)
    for sizes in SPLITS:
        splits.copy_(torch.tensor(sizes))
        for each in captured:
            with torch.no_grad():
                each.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        copies = [each.detach().clone() for each in captured]
        for mine, theirs in zip(copies, step(), strict=True):
            assert equal(mine, theirs)


def test_no_pass_waits_for_the_device():
    layer = make((True, False), fuse_wgrad_accumulation=True, delay_wgrad_compute=True)
    layer.weight.main_grad = torch.zeros_like(layer.weight, dtype=torch.float32)
    x, dy = tensors(K, N)
    x.requires_grad_()
    splits = torch.tensor(SPLITS[0], device="cuda")
    buffers = {"out": torch.empty_like(dy), "dgrad_out": torch.empty_like(x)}

    def step(first):
        layer(x, splits, first, **buffers).backward(dy)
        layer.backward_dw()

    step(True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(True)
        step(False)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_strict_splits_on_the_device_are_reported_by_check():
    layer = make((False, False), strict_splits=True)
    (x,) = tensors(K)
    layer(x, torch.tensor(SPLITS[0], device="cuda"))
    cadre.torch.check("cuda")
    layer(x, torch.tensor(SPLITS[2], device="cuda"))
    with pytest.raises(ValueError, match="check: on cuda:0 the sum of the group sizes was not m"):
        cadre.torch.check("cuda")


@pytest.mark.parametrize("trans_b", [False, True])
def test_grouped_gemm_backend_replays_into_c(trans_b):
    a, grad = tensors(K, N)
    b = random(G, *((N, K) if trans_b else (K, N)), dtype=torch.bfloat16, device="cuda")
    sizes = torch.tensor(SPLITS[0], device="cuda")
    c = poisoned(M, N, device="cuda", dtype=torch.bfloat16)
    weights = poisoned(G, K, N, device="cuda", dtype=torch.bfloat16)

    def products():
        grouped_gemm.backend.gmm(a, b, sizes, trans_b=trans_b, c=c)
        grouped_gemm.backend.gmm(a, grad, sizes, trans_a=True, c=weights)

    graph, _ = capture(products)
    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        c.fill_(7.0)
        weights.fill_(float("nan"))
        graph.replay()
        rows = sum(splits)
        expected = grouped_gemm.ops.gmm(a, b, sizes, trans_b)
        torch.cuda.synchronize()
        assert equal(c[:rows], expected[:rows]) and (c[rows:] == 7.0).all()
        assert equal(weights, cadre.torch.tgmm(a, grad, sizes))
