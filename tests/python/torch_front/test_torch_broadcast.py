"""Strides of 0: right for everything that is only read, refused for everything that is written."""

import cadre.torch as T
import pytest
import torch
from torch_oracle import equal, random

# Odd dims, and dims that the kernels for Hopper take.
SHAPES = {"odd": (37, 13, 11, 3), "aligned": (512, 128, 256, 4)}
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def sizes_of(m, groups, device):
    """The first group empty, a tail behind the last."""
    rows = (m - 5) // (groups - 1)
    return torch.tensor([0, *[rows] * (groups - 1)], device=device)


def same(function, broadcast):
    """The op on a broadcast operand has the bits of the op on a copy of it."""
    ours, copied = function(broadcast), function(copies(broadcast))
    assert not torch.isnan(ours).any()
    assert equal(ours, copied)


def copies(value):
    if isinstance(value, list):
        return [each.contiguous() for each in value]
    return value.contiguous()


@pytest.fixture(params=SHAPES)
def dims(request):
    return SHAPES[request.param]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_weights_may_be_broadcast_along_any_dim(device, dims, dtype, transpose_rhs):
    m, k, n, g = dims
    shape = (g, n, k) if transpose_rhs else (g, k, n)
    x, w = (random(*each, dtype=dtype, device=device) for each in ((m, k), shape))
    sizes = sizes_of(m, g, device)

    def product(w):
        return T.gmm(x, w, sizes, transpose_rhs=transpose_rhs)

    same(product, w[:, :1].expand(shape))
    same(product, w[:, :, :1].expand(shape))
    same(product, w[:1].expand(shape))
    same(product, [each[:1].expand(shape[1:]) for each in w])
    same(product, [each[:, :1].expand(shape[1:]) for each in w])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_bias_and_c_may_be_broadcast(device, dims, dtype):
    m, k, n, g = dims
    x, w, row, bias = (
        random(*shape, dtype=dtype, device=device) for shape in ((m, k), (g, k, n), (1, n), (g, 1))
    )
    sizes = sizes_of(m, g, device)
    same(lambda x: T.gmm(x, w, sizes), x[:1].expand(m, k))
    same(lambda x: T.gmm(x, w, sizes), x[:, :1].expand(m, k))
    same(lambda c: T.gmm(x, w, sizes, c=c, beta=1), row.expand(m, n))
    same(lambda c: T.gmm(x, w, sizes, c=c, beta=1), x[:, :1].expand(m, n))
    same(lambda b: T.gmm(x, w, sizes, bias=b), bias.expand(g, n))
    same(lambda s: T.gmm(x, w, sizes, row_scale=s), row[0, :1].expand(m))
    same(lambda x: T.tgmm(x, x, sizes), x[:1].expand(m, k))
    same(lambda dy: T.bias_grad(dy, sizes), x[:, :1].expand(m, k))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_of_grouped_gemm_may_be_broadcast(device, dims, dtype):
    m, k, n, g = dims
    a, b = (random(*shape, dtype=dtype, device=device) for shape in ((g, m, k), (g, k, n)))
    c = random(g, 1, n, dtype=dtype, device=device)
    listed = [each[:1].expand(k, n) for each in b]
    same(lambda b: T.grouped_gemm(a, b), b[:, :1].expand(g, k, n))
    same(lambda c: T.grouped_gemm(a, b, c=c, beta=1.0), c.expand(g, m, n))
    same(lambda b: torch.stack(T.grouped_gemm(list(a), b)), listed)


def test_gradients_through_a_broadcast_weight(device):
    x, row = random(37, 13, device=device), random(3, 1, 11, device=device, requires_grad=True)
    sizes = sizes_of(37, 3, device)
    T.gmm(x, row.expand(3, 13, 11), sizes).sin().sum().backward()
    ours, row.grad = row.grad, None
    T.gmm(x, row.expand(3, 13, 11).contiguous(), sizes).sin().sum().backward()
    torch.testing.assert_close(ours, row.grad)


M, K, N, G = 16, 6, 4, 3
SELF_OVERLAPPING = {
    "gmm": lambda x, w, dy, s, out: T.gmm(x, w, s, out=out(1, N).expand(M, N)),
    "gmm, columns": lambda x, w, dy, s, out: T.gmm(x, w, s, out=out(M, 1).expand(M, N)),
    "gmm, list": lambda x, w, dy, s, out: T.gmm(
        x, w, s, out=[out(1, N).expand(M, N) for _ in range(G)]
    ),
    "gmm, one matrix twice": lambda x, w, dy, s, out: T.gmm(x, w, s, out=[out(M, N)] * G),
    "tgmm": lambda x, w, dy, s, out: T.tgmm(x, dy, s, out=out(1, K, N).expand(G, K, N)),
    "tgmm, list": lambda x, w, dy, s, out: T.tgmm(
        x, dy, s, out=[out(1, N).expand(K, N) for _ in range(G)]
    ),
    "bias_grad": lambda x, w, dy, s, out: T.bias_grad(dy, s, out=out(1, N).expand(G, N)),
    "bias_grad, list": lambda x, w, dy, s, out: T.bias_grad(
        dy, s, out=[out(1).expand(N) for _ in range(G)]
    ),
    "grouped_gemm": lambda x, w, dy, s, out: T.grouped_gemm(
        x.expand(G, M, K), w, d=out(G, 1, N).expand(G, M, N)
    ),
    "grouped_gemm, list": lambda x, w, dy, s, out: T.grouped_gemm(
        [x] * G, list(w), d=[out(1, N).expand(M, N) for _ in range(G)]
    ),
}


@pytest.mark.parametrize("name", SELF_OVERLAPPING)
def test_outputs_that_overlap_themselves_are_refused(device, name):
    x, w, dy = (random(*shape, device=device) for shape in ((M, K), (G, K, N), (M, N)))
    sizes = torch.tensor([5, 5, 6])
    buffers = []

    def out(*shape):
        buffers.append(torch.full(shape, 7.0, dtype=torch.float64, device=device))
        return buffers[-1]

    with pytest.raises(ValueError, match="overlap|share memory"):
        SELF_OVERLAPPING[name](x, w, dy, sizes, out)
    assert all((each == 7.0).all() for each in buffers)
