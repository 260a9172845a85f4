"""torch counts the operations of cadre's operators, forward and backward, and its profiler names them with their shapes."""

import cadre.torch
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

M, K, N, G = 37, 24, 40, 3
SIZES = torch.tensor([20, 0, 17])


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.fixture
def lhs():
    return torch.randn(M, K, requires_grad=True)


@pytest.fixture
def rhs():
    return torch.randn(G, K, N, requires_grad=True)


def test_a_product_and_its_gradients_count_what_they_multiply(lhs, rhs):
    product = 2 * M * K * N
    assert counted(lambda: cadre.torch.gmm(lhs, rhs, SIZES)) == product
    assert counted(lambda: cadre.torch.gmm(lhs, rhs, SIZES).sum().backward()) == 3 * product
    bias = torch.randn(G, N)
    assert counted(lambda: cadre.torch.gmm(lhs, rhs, SIZES, bias=bias)) == product
    with torch.no_grad():
        turned = [each.T.contiguous() for each in rhs]
        out = torch.empty(M, N)
        assert counted(lambda: cadre.torch.gmm(lhs, turned, SIZES, transpose_rhs=True, out=out)) == product
        dy = torch.randn(M, N)
        assert counted(lambda: cadre.torch.tgmm(lhs, dy, SIZES)) == product
        assert counted(lambda: cadre.torch.tgmm(lhs, dy, SIZES, out=torch.empty(G, K, N))) == product


def test_grouped_mm_counts_as_a_loop_of_mm_does(lhs, rhs):
    ends = SIZES.cumsum(0).int()
    loop = counted(lambda: [x @ w for x, w in zip(lhs.split(SIZES.tolist()), rhs)])
    assert counted(lambda: cadre.torch.grouped_mm(lhs, rhs, offs=ends)) == loop


def test_every_group_of_grouped_gemm_counts_with_its_own_shape():
    shapes = [(3, 5, 7), (2, 11, 4)]
    a = [torch.randn(m, k) for m, k, _ in shapes]
    b = [torch.randn(n, k) for _, k, n in shapes]
    expected = sum(2 * m * k * n for m, k, n in shapes)
    assert counted(lambda: cadre.torch.grouped_gemm(a, b, transb=True)) == expected
    packed = cadre.torch.GroupedTensor.packed(
        torch.cat([each.flatten() for each in a]), rows=[3, 2], cols=torch.tensor([5, 11])
    )
    assert counted(lambda: cadre.torch.grouped_gemm(packed, b, transb=True)) == expected


@pytest.mark.parametrize("trains", ["all", "x", "weights"])
def test_a_layer_counts_two_products_forward_and_those_of_its_gradients(trains):
    tokens, top_k, h, i = 9, 2, 16, 12
    x = torch.randn(tokens, h, requires_grad=trains != "weights")
    w13 = torch.randn(G, 2 * i, h, requires_grad=trains != "x")
    w2 = torch.randn(G, h, i, requires_grad=trains != "x")
    weights, ids = cadre.torch.select_experts(torch.randn(tokens, G), top_k)
    one, two = 2 * tokens * top_k * 2 * i * h, 2 * tokens * top_k * i * h
    backward = {"all": 2 * one + 2 * two, "x": one + two, "weights": one + 2 * two}[trains]
    assert counted(lambda: cadre.torch.moe_mlp(x, ids, weights, w13, w2)) == one + two
    trained = counted(lambda: cadre.torch.moe_mlp(x, ids, weights, w13, w2).sum().backward())
    assert trained == one + two + backward


def test_the_profiler_names_operators_with_their_shapes(lhs, rhs):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        cadre.torch.gmm(lhs, rhs, SIZES)
        cadre.torch.tgmm(lhs.detach(), torch.randn(M, N), SIZES)
    shapes = {event.name: event.input_shapes for event in profile.events() if "cadre::" in event.name}
    gmm = next(value for name, value in shapes.items() if name.startswith("cadre::gmm"))
    tgmm = next(value for name, value in shapes.items() if name.startswith("cadre::tgmm"))
    assert gmm[:2] == [[M, K], [G, K, N]] and tgmm[:2] == [[M, K], [M, N]]
