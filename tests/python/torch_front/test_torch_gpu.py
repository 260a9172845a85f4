"""What only a GPU can show: CUDA graphs replayed with other sizes, no host read, peak memory, streams, status."""

import cadre.torch
import pytest
import torch
import torch.nn.functional as F
import torch_oracle
from torch_oracle import random

pytestmark = pytest.mark.gpu

M, K, N, G, TOP_K = 96, 40, 72, 4, 2
SPLITS = [[20, 0, 30, 40], [96, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0], [24, 24, 24, 24]]


def make(dtype=torch.float32):
    shapes = ((M, K), (G, N, K), (G, N), (M,), (M,), (M, N))
    return [random(*shape, dtype=dtype, device="cuda") for shape in shapes]


def step(x, weight, bias, bias_scale, row_scale, dy, sizes):
    """Forward and every gradient, as one list."""
    inputs = [each.detach().requires_grad_() for each in (x, weight, bias, bias_scale, row_scale)]
    out = cadre.torch.gmm(
        inputs[0],
        inputs[1],
        sizes,
        transpose_rhs=True,
        bias=inputs[2],
        bias_scale=inputs[3],
        row_scale=inputs[4],
    )
    return [out, *torch.autograd.grad(out, inputs, dy)]


def capture(function, *arguments):
    """A graph of the call, after a warm-up on another stream, and its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(*arguments)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*arguments)
    return graph, results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_captured_step_replays_with_other_sizes(dtype):
    tensors = make(dtype)
    sizes = torch.tensor(SPLITS[0], dtype=torch.int32, device="cuda")
    graph, results = capture(step, *tensors, sizes)
    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        for tensor in tensors:
            tensor.copy_(torch.randn_like(tensor))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        expected = step(*tensors, sizes)
        torch.cuda.synchronize()
        for ours, eager in zip(results, expected, strict=True):
            assert torch.equal(ours, eager)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint64], ids=str)
def test_sizes_of_any_integer_type_replay_as_they_are(dtype):
    """Two kernels would do it with a conversion: the graph has the sizes' own memory, not a copy."""
    tensors = make(torch.bfloat16)
    sizes = torch.tensor(SPLITS[0], dtype=dtype, device="cuda")
    graph, results = capture(step, *tensors, sizes)
    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        expected = step(*tensors, torch.tensor(splits, device="cuda"))
        torch.cuda.synchronize()
        for ours, eager in zip(results, expected, strict=True):
            assert torch.equal(ours, eager)


def test_replays_are_right_against_a_loop():
    """In f64, so that the loop is compared to the last digits."""
    x, weight, bias, bias_scale, row_scale, _ = make(torch.float64)
    sizes = torch.tensor(SPLITS[0], device="cuda")
    options = {
        "transpose_rhs": True,
        "bias": bias,
        "bias_scale": bias_scale,
        "row_scale": row_scale,
    }
    graph, out = capture(lambda: cadre.torch.gmm(x, weight, sizes, **options))
    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, torch_oracle.gmm(x, weight, splits, **options))


def test_two_graphs_may_replay_on_two_streams_at_once():
    """Both were captured on one stream; each has a workspace of its own."""
    tensors = [make(torch.float64) for _ in range(2)]
    sizes = [torch.tensor(each, device="cuda") for each in ([90, 1, 2, 3], [1, 2, 3, 90])]
    captured = [capture(step, *tensors[i], sizes[i]) for i in range(2)]
    expected = [step(*tensors[i], sizes[i]) for i in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, (graph, _) in zip(streams, captured, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, results), eager in zip(captured, expected, strict=True):
        for ours, theirs in zip(results, eager, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("stacked", [False, True], ids=["listed", "stacked"])
def test_delayed_gradients_of_grouped_linear_replay(stacked):
    layer = cadre.torch.GroupedLinear(
        G,
        K,
        N,
        device="cuda",
        single_grouped_weight=stacked,
        single_grouped_bias=stacked,
        delay_wgrad_compute=True,
        fuse_wgrad_accumulation=True,
    )
    for weight in layer.weights():
        weight.main_grad = torch.zeros_like(weight)
    x, dy = (
        random(M, K, dtype=torch.float32, device="cuda"),
        random(M, N, dtype=torch.float32, device="cuda"),
    )
    sizes = torch.tensor(SPLITS[0], device="cuda")

    def train():
        layer(x, sizes).backward(dy)
        layer.backward_dw()

    graph, _ = capture(train)
    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        for weight in layer.weights():
            weight.main_grad.fill_(1.0)
        graph.replay()
        expected = 1.0 + cadre.torch.tgmm(dy, x, sizes)
        torch.cuda.synchronize()
        actual = [weight.main_grad for weight in layer.weights()]
        torch.testing.assert_close(actual[0] if stacked else torch.stack(actual), expected)


def test_no_call_waits_for_the_device():
    tensors = make(torch.bfloat16)
    sizes = torch.tensor(SPLITS[0], device="cuda")
    offset = torch.tensor([0], device="cuda")
    step(*tensors, sizes)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(*tensors, sizes)
        cadre.torch.gmm(tensors[0], tensors[1], sizes, transpose_rhs=True, group_offset=offset)
        cadre.torch.grouped_mm(tensors[0], tensors[1].transpose(1, 2), offs=torch.cumsum(sizes, 0))
        cadre.torch.gmm(tensors[0], list(tensors[1]), sizes, transpose_rhs=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_call_of_the_layer_waits_for_the_device():
    shapes = {"x": (M, K), "logits": (M, G), "w13": (G, 2 * N, K), "w2": (G, K, N)}
    leaves = {
        name: random(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for name, shape in shapes.items()
    }
    dy = random(M, K, dtype=torch.bfloat16, device="cuda")

    def layer(x, logits, w13, w2):
        weights, ids = cadre.torch.select_experts(logits, TOP_K)
        routing = cadre.torch.route(ids, G)
        rows = cadre.torch.permute(x, routing)
        shared = cadre.torch.combine(rows, routing, weights, shared=x, residual=x)
        routed_here = cadre.torch.moe_mlp(x, ids, weights, w13, w2, shared=shared)
        return cadre.torch.moe_mlp(x, routing, weights, w13, w2, residual=routed_here)

    def both_ways():
        torch.autograd.grad(layer(**leaves), list(leaves.values()), dy)

    both_ways()
    torch.cuda.set_sync_debug_mode("error")
    try:
        both_ways()
        with torch.no_grad():
            layer(**leaves)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    cadre.torch.check("cuda")


def peak_of(function, *args, **options):
    """(bytes allocated at most during the call beyond what was before, its result)."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function(*args, **options)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


def test_a_step_allocates_its_results_alone():
    """Forward: out. Backward: dx and dweight, in both layouts of the weight: no transposed or stacked copy."""
    m, k, n, g, slack = 4096, 1024, 2048, 8, 1 << 20
    x = random(m, k, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    sizes = torch.full((g,), m // g, device="cuda")
    dy = random(m, n, dtype=torch.bfloat16, device="cuda")
    for transpose_rhs in (False, True):
        shape = (g, n, k) if transpose_rhs else (g, k, n)
        weight = random(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        listed = [each.detach().clone().requires_grad_() for each in weight]
        for weights, leaves in ((weight, [weight]), (listed, listed)):
            peak, out = peak_of(cadre.torch.gmm, x, weights, sizes, transpose_rhs=transpose_rhs)
            assert peak <= out.numel() * 2 + slack
            peak, _ = peak_of(torch.autograd.grad, out, [x, *leaves], dy)
            assert peak <= (x.numel() + weight.numel()) * 2 + slack
    main_grads = [torch.zeros(k, n, device="cuda") for _ in range(g)]
    peak, _ = peak_of(cadre.torch.tgmm, x.detach(), dy, sizes, out=main_grads, accumulate=True)
    assert peak <= slack


def test_calls_run_on_the_current_stream():
    x, weight, *_ = make()
    sizes = torch.tensor(SPLITS[4], device="cuda")
    expected = cadre.torch.gmm(x, weight, sizes, transpose_rhs=True)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        out = cadre.torch.gmm(late, weight, sizes, transpose_rhs=True)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("bad", [[20, -1, 30, 40], [20, 0, 30, 400]], ids=str)
def test_bad_sizes_on_the_device_are_reported_by_check(bad):
    x, weight, *_ = make()
    out = cadre.torch.gmm(x, weight, torch.tensor(bad, device="cuda"), transpose_rhs=True)
    with pytest.raises(ValueError, match="check: on cuda:0 .*group size"):
        cadre.torch.check("cuda")
    cadre.torch.check("cuda")
    # Groups before the first bad one are right, the rest is tail.
    first_bad = 1 if bad[1] < 0 else 3
    rows = sum(bad[:first_bad])
    good = [*bad[:first_bad], *[0] * (4 - first_bad)]
    assert torch.equal(out[:rows], cadre.torch.gmm(x, weight, good, transpose_rhs=True)[:rows])
    assert (out[rows:] == 0).all()


def test_cadre_check_makes_the_call_itself_raise(monkeypatch):
    monkeypatch.setenv("CADRE_CHECK", "1")
    x, weight, *_ = make()
    sizes = torch.tensor([20, -1, 30, 40], device="cuda")
    with pytest.raises(ValueError, match="gmm: check: on cuda:0 a group size was negative"):
        cadre.torch.gmm(x, weight, sizes, transpose_rhs=True)
    cadre.torch.check("cuda")


def test_grouped_mm_agrees_with_torch_on_the_gpu():
    a, b = (
        random(64, 32, dtype=torch.bfloat16, device="cuda"),
        random(4, 32, 48, dtype=torch.bfloat16, device="cuda"),
    )
    offs = torch.tensor([16, 16, 40, 64], dtype=torch.int32, device="cuda")
    torch.testing.assert_close(
        cadre.torch.grouped_mm(a, b, offs=offs), F.grouped_mm(a, b, offs=offs)
    )
    x, y = (
        random(64, 32, dtype=torch.bfloat16, device="cuda"),
        random(64, 48, dtype=torch.bfloat16, device="cuda"),
    )
    torch.testing.assert_close(
        cadre.torch.grouped_mm(x.t(), y, offs=offs), F.grouped_mm(x.t(), y, offs=offs)
    )


def test_packed_tensors_with_dims_on_the_device():
    rows = torch.tensor([3, 0, 5], device="cuda")
    a, b = random(8 * 4, device="cuda"), random(3, 4, 6, device="cuda")
    packed = cadre.torch.GroupedTensor.packed(a, rows, 4, max_rows=8)
    out = cadre.torch.grouped_gemm(packed, b, capacity=10 * 6).tensors[0].view(10, 6)
    expected = torch_oracle.gmm(torch.cat([a.view(8, 4), a.new_zeros(2, 4)]), b, [3, 0, 5])
    torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match="capacity = None, expected elements of the result"):
        cadre.torch.grouped_gemm(packed, b)
    with pytest.raises(ValueError, match="max_rows = None, expected a bound"):
        cadre.torch.GroupedTensor.packed(a, rows, 4)


def kernels_of(function):
    """Names of what a call runs on the GPU."""
    function()  # what is made once, at the first call, is not counted
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return [event.name for event in profile.events() if event.device_type == cuda]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_grouped_mm_launches_what_gmm_does(dtype, index):
    x, weight, *_ = make(dtype)
    sizes = torch.tensor(SPLITS[0], device="cuda")
    ends = sizes.cumsum(0).to(index)
    sizes = sizes.to(index)
    products = lambda: cadre.torch.grouped_mm(x, weight.mT, offs=ends)  # noqa: E731
    expected = kernels_of(lambda: cadre.torch.gmm(x, weight, sizes, transpose_rhs=True))
    assert kernels_of(products) == expected
    assert torch.equal(products(), cadre.torch.gmm(x, weight, sizes, transpose_rhs=True))
    sums = kernels_of(lambda: cadre.torch.grouped_mm(x.t(), x, offs=ends))
    assert sums == kernels_of(lambda: cadre.torch.tgmm(x, x, sizes))


def layer_step(x, ids, weights, w13, w2, dy):
    """moe_mlp and its gradients, as one list."""
    inputs = [each.detach().requires_grad_() for each in (x, weights, w13, w2)]
    out = cadre.torch.moe_mlp(inputs[0], ids, *inputs[1:])
    return [out, *torch.autograd.grad(out, inputs, dy)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_captured_layer_replays_with_other_routings(dtype):
    tokens, top_k, width = 64, 2, 48
    shapes = ((tokens, K), (tokens, top_k), (G, 2 * width, K), (G, K, width), (tokens, K))
    x, weights, w13, w2, dy = (random(*each, dtype=dtype, device="cuda") for each in shapes)
    ids = torch.randint(0, G, (tokens, top_k), device="cuda")
    graph, results = capture(layer_step, x, ids, weights, w13, w2, dy)
    everything_to_one, nothing = torch.full_like(ids, 3), torch.full_like(ids, -1)
    for other in (torch.randint_like(ids, 0, G + 1), everything_to_one, nothing):
        ids.copy_(other)
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        for got, expected in zip(results, layer_step(x, ids, weights, w13, w2, dy), strict=True):
            assert torch.equal(got, expected)
    cadre.torch.check()


EXPERTS = {
    "grad": {},
    "main_grad": {"fuse_wgrad_accumulation": True},
    "delayed": {"delay_wgrad_compute": True},
    "delayed main_grad": {"delay_wgrad_compute": True, "fuse_wgrad_accumulation": True},
}
every_kind_of_experts = pytest.mark.parametrize("options", EXPERTS.values(), ids=EXPERTS)


def experts_of(options, dtype):
    """A layer, the main_grads that it has, and what a step of it takes."""
    layer = cadre.torch.GroupedMLP(G, K, N, bias=True, device="cuda", dtype=dtype, **options)
    with torch.no_grad():
        for bias in layer.biases():
            bias.normal_()
    fused = layer.weights() if layer.fuse_wgrad_accumulation else []
    for weight in fused:
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    x = random(M, K, dtype=dtype, device="cuda", requires_grad=True)
    weights = random(M, TOP_K, dtype=torch.float32, device="cuda", requires_grad=True)
    ids = torch.randint(0, G, (M, TOP_K), device="cuda")
    dout = random(M, K, dtype=dtype, device="cuda")
    return layer, [weight.main_grad for weight in fused], (x, ids, weights, dout)


def experts_step(layer, x, ids, weights, dout):
    """The result and every gradient of a training step, each gradient in memory of its own or in main_grad."""
    for leaf in (x, weights, *layer.parameters()):
        leaf.grad = None
    out = layer(x, ids, weights)
    out.backward(dout)
    layer.backward_dw()
    fused = layer.fuse_wgrad_accumulation
    of_weights = [each.main_grad if fused else each.grad for each in layer.weights()]
    return [out.detach(), x.grad, weights.grad, *(bias.grad for bias in layer.biases()), *of_weights]


@every_kind_of_experts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_training_step_of_experts_replays_with_other_routings(dtype, options):
    layer, main_grads, (x, ids, weights, dout) = experts_of(options, dtype)
    graph, results = capture(experts_step, layer, x, ids, weights, dout)
    others = [torch.randint_like(ids, -1, G + 1), torch.randint_like(ids, 0, G)]
    others += [torch.full_like(ids, each) for each in (3, -1)]  # all to one, nobody anywhere
    for other in others:
        ids.copy_(other)
        with torch.no_grad():
            for tensor in (x, weights, dout):
                tensor.copy_(torch.randn_like(tensor))
        for result in results:
            result.fill_(float("nan"))
        for main_grad in main_grads:
            main_grad.fill_(1.0)
        graph.replay()
        replayed = [result.clone() for result in results]
        for main_grad in main_grads:
            main_grad.fill_(1.0)
        expected = experts_step(layer, x, ids, weights, dout)
        torch.cuda.synchronize()
        for ours, eager in zip(replayed, expected, strict=True):
            assert torch.equal(ours, eager)
    cadre.torch.check("cuda")


@every_kind_of_experts
def test_no_pass_of_experts_waits_for_the_device(options):
    layer, _, inputs = experts_of(options, torch.bfloat16)
    experts_step(layer, *inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        experts_step(layer, *inputs)
        with torch.no_grad():
            layer(*inputs[:3])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    cadre.torch.check("cuda")
