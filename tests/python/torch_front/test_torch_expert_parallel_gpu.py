"""cadre.torch.expert_parallel with one rank over NCCL: bits, CUDA graphs, and no synchronisation. Several GPUs were not at hand."""

import cadre.torch as T
import pytest
import torch
import torch.distributed as dist
from cadre.torch import expert_parallel as ep

pytestmark = pytest.mark.gpu
E, H, I, TOP_K, TOKENS = 8, 128, 96, 3, 200


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    if not torch.cuda.is_available():
        yield
        return
    store = tmp_path_factory.mktemp("nccl") / "store"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def layers(dtype=torch.bfloat16, **exchange):
    options = {"bias": True, "dtype": dtype, "device": "cuda"}
    spread = ep.ExpertParallelMLP(E, H, I, **options, **exchange)
    whole = T.GroupedMLP(E, H, I, **options)
    with torch.no_grad():
        for ours, theirs in zip(spread.parameters(), whole.parameters(), strict=True):
            ours.normal_(0, 0.2)
            theirs.copy_(ours)
    return spread, whole


def inputs(dtype=torch.bfloat16, tokens=TOKENS):
    x, dout = (torch.randn(tokens, H, device="cuda").to(dtype) for _ in range(2))
    ids = torch.randint(-1, E + 1, (tokens, TOP_K), device="cuda")
    return x, ids, torch.rand(tokens, TOP_K, device="cuda"), dout


def run(layer, x, ids, weights, dout):
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    layer.zero_grad()
    out = layer(x, ids, weights, residual=x)
    out.backward(dout)
    return [out.detach(), x.grad, weights.grad, *(each.grad for each in layer.parameters())]


def all_equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


EXCHANGES = [{"exchange": "all_to_all"}, {"exchange": "capacity", "capacity": TOKENS * TOP_K}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exchange", EXCHANGES, ids=["all_to_all", "capacity"])
def test_results_and_gradients_have_the_bits_of_one_device(dtype, exchange):
    spread, whole = layers(dtype, **exchange)
    call = inputs(dtype)
    assert all_equal(run(spread, *call), run(whole, *call))


def test_the_capacity_exchange_never_synchronises():
    spread, whole = layers(**EXCHANGES[1])
    first, second = inputs(), inputs()
    run(spread, *first)  # the ranks compare shapes and types once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run(spread, *second)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all_equal(found, run(whole, *second))


def test_symmetric_memory_of_one_rank_says_what_is_missing():
    import torch.distributed._symmetric_memory as symmetric

    if not symmetric.is_nvshmem_available():
        with pytest.raises(ValueError, match="symmetric memory = no NVSHMEM, expected a build and a device"):
            ep.SymmetricMemory(E, TOKENS * TOP_K)
        return
    spread, _ = layers(exchange=ep.SymmetricMemory(E, TOKENS * TOP_K))
    with pytest.raises(ValueError, match="group = 1 rank, expected 2 or more: torch's symmetric memory"):
        run(spread, *inputs())


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_captured_training_step_replays_with_other_ids(chunks):
    spread, whole = layers(**EXCHANGES[1], chunks=chunks)
    x, ids, weights, dout = inputs()
    x.requires_grad_()
    weights.requires_grad_()

    def step():
        for each in (x, weights, *spread.parameters()):
            each.grad = None
        out = spread(x, ids, weights, residual=x)
        out.backward(dout)
        return out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(2):
        new = inputs()
        with torch.no_grad():
            for buffer, value in zip((x, ids, weights, dout), new, strict=True):
                buffer.copy_(value)
        graph.replay()
        expected = run(whole, *new)
        found = [out, x.grad, weights.grad, *(each.grad for each in spread.parameters())]
        assert all_equal(found[:3], expected[:3])
        for ours, theirs in zip(found[3:], expected[3:], strict=True):
            if chunks == 1:
                assert torch.equal(ours, theirs)
            else:
                torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=2**-6 * theirs.abs().max().item())


def test_overflow_on_the_device_is_counted_and_reported_by_check():
    spread, whole = layers(exchange="capacity", capacity=100)
    x, _, weights, dout = inputs()
    ids = torch.zeros(TOKENS, TOP_K, dtype=torch.int64, device="cuda")
    found = run(spread, x, ids, weights, dout)
    kept = torch.where(torch.arange(TOKENS * TOP_K, device="cuda").view(ids.shape) < 100, ids, -1)
    assert all_equal(found, run(whole, x, kept, weights, dout))
    assert spread.exchange.dropped.tolist() == [TOKENS * TOP_K - 100]
    with pytest.raises(ValueError, match="choices without a row on rank 0 = 500, expected 0: capacity"):
        spread.exchange.check()
    spread.exchange.check()


def test_a_first_call_inside_a_capture_is_refused():
    spread, _ = layers(**EXCHANGES[1])
    x, ids, weights, _ = inputs()
    with pytest.raises(RuntimeError, match="the first call with these shapes and types is captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            spread(x, ids, weights)
    torch.cuda.synchronize()


def test_rows_of_float8_travel_with_their_scales():
    exchange = ep.Capacity(E, TOKENS * TOP_K)
    x, ids, _, _ = inputs()
    plan = exchange.plan(x, ids)
    rows = T.permute(x, plan.home).to(torch.float8_e4m3fn)
    scales = torch.rand(rows.shape[0], 1, device="cuda")
    arrived = exchange.send(plan, rows, scales).wait()
    assert torch.equal(arrived[0].view(torch.uint8), rows.view(torch.uint8))
    assert torch.equal(arrived[1], scales)
