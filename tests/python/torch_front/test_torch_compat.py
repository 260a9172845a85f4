"""cadre.torch.compat.grouped_gemm does what the package of that name does, on the problems of its own tests and beyond."""

import itertools

import pytest
import torch
from cadre.torch.compat import grouped_gemm
from cadre.torch.compat.grouped_gemm import backend, ops
from torch_oracle import equal, random

# (groups, rows of each, k, n), as in the package's own tests.
PROBLEMS = [
    (1, 128, 128, 128),
    (8, 128, 128, 128),
    (16, 128, 128, 128),
    (1, 128, 256, 512),
    (8, 128, 256, 512),
    (16, 128, 256, 512),
]
# The rows of the package's test of an expert without any, which has 16384 of them; here a sixteenth.
UNEVEN = [14, 140, 0, 506, 1, 70, 293, 0]


@pytest.fixture
def cuda_is_here(monkeypatch):
    """What a test of a GPU package calls to get there does nothing, so that its code runs unchanged on a CPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, *args, **options: tensor)


def operand(*shape):
    """bf16, small and negative: what the package's own tests multiply."""
    scale = shape[-1] * shape[-2]
    return ((torch.rand(*shape) - 1.0) / scale).cuda().to(torch.bfloat16)


def loop(a, b, sizes, trans_b):
    starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    parts = [
        a[start:end] @ (b[i].t() if trans_b else b[i])
        for i, (start, end) in enumerate(itertools.pairwise(starts))
    ]
    return torch.cat(parts)


def assert_almost_all_close(actual, expected):
    """As there: one element in fifty may differ by more than 1e-5, since bf16 rounds."""
    far = ~torch.isclose(actual, expected, rtol=1e-5)
    assert far.sum() <= 0.02 * far.numel(), f"{int(far.sum())} of {far.numel()}"


def check_forward_and_gradients(a, b, sizes, trans_b, on_device):
    batch_sizes = torch.tensor(sizes)
    if on_device:
        batch_sizes = batch_sizes.cuda()
    ours = [each.clone().requires_grad_() for each in (a, b)]
    theirs = [each.clone().requires_grad_() for each in (a, b)]
    out = ops.gmm(*ours, batch_sizes, trans_b)
    expected = loop(*theirs, sizes, trans_b)
    assert_almost_all_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    for mine, reference in zip(ours, theirs, strict=True):
        assert_almost_all_close(mine.grad, reference.grad)


@pytest.mark.parametrize("on_device", [False, True], ids=["host sizes", "device sizes"])
@pytest.mark.parametrize("trans_b", [False, True], ids=["", "trans_b"])
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_products_and_gradients_are_those_of_the_package(
    cuda_is_here, problem, even, trans_b, on_device
):
    groups, m, k, n = problem
    sizes = [m] * groups
    if not even:
        share = torch.rand(groups)
        sizes = (share / share.sum() * m).long().tolist()
        sizes[-1] += m * groups - sum(sizes)
    a = operand(groups, m, k).view(-1, k)
    b = operand(groups, n, k) if trans_b else operand(groups, k, n)
    check_forward_and_gradients(a, b, sizes, trans_b, on_device)


@pytest.mark.parametrize("on_device", [False, True], ids=["host sizes", "device sizes"])
def test_experts_without_rows(cuda_is_here, on_device):
    a = operand(8, 128, 256).view(-1, 256)
    check_forward_and_gradients(a, operand(8, 256, 192), UNEVEN, False, on_device)


@pytest.mark.parametrize("on_device", [False, True], ids=["host sizes", "device sizes"])
def test_backend_writes_weight_gradients_into_c(cuda_is_here, on_device):
    a = torch.ones(192, 128).cuda().to(torch.bfloat16)
    b = torch.ones(192, 96).cuda().to(torch.bfloat16)
    c = torch.full((4, 128, 96), float("nan")).cuda().to(torch.bfloat16)
    batch_sizes = torch.tensor([0, 128, 0, 64])
    if on_device:
        batch_sizes = batch_sizes.cuda()
    assert ops.backend.gmm(a, b, batch_sizes, trans_a=True, c=c) is c
    for i, rows in enumerate([0, 128, 0, 64]):
        assert (c[i] == rows).all()


@pytest.mark.parametrize("trans_b", [False, True])
def test_backend_writes_rows_into_c_and_leaves_the_others(device, trans_b):
    a, c = random(9, 5, device=device), random(9, 4, device=device)
    b = random(3, *((4, 5) if trans_b else (5, 4)), device=device)
    sizes = torch.tensor([2, 0, 5])
    kept = c[7:].clone()
    assert backend.gmm(a, b, sizes, False, trans_b, c) is c
    torch.testing.assert_close(c[:7], loop(a[:7], b, [2, 0, 5], trans_b))
    assert equal(c[7:], kept)
    fresh = backend.gmm(a, b, sizes, trans_b=trans_b)
    assert equal(fresh[:7], c[:7]) and (fresh[7:] == 0).all()


def test_backend_is_outside_autograd(device):
    a = random(7, 5, device=device, requires_grad=True)
    b = random(3, 5, 4, device=device, requires_grad=True)
    c = torch.full((7, 4), float("nan"), dtype=torch.float64, device=device)
    backend.gmm(a, b, [2, 0, 5], c=c)
    assert not c.requires_grad
    with torch.no_grad():
        assert equal(c, ops.gmm(a, b, [2, 0, 5]))
    weights = backend.gmm(a, random(7, 3, device=device), [2, 0, 5], trans_a=True)
    assert weights.shape == (3, 5, 3) and not weights.requires_grad


def test_gmm_of_the_package_itself_is_that_of_ops():
    assert grouped_gemm.gmm is grouped_gemm.ops.gmm
    assert grouped_gemm.backend is backend


BAD = {
    "both transposed": (
        lambda a, b: backend.gmm(a, b, [7], trans_a=True, trans_b=True),
        "gmm: trans_a and trans_b = True, expected at most one",
    ),
    "too many rows": (lambda a, b: ops.gmm(a, b, [2, 0, 6]), "sum of batch_sizes.* = 2 \\+ 6"),
    "k": (lambda a, b: ops.gmm(a, b, [2, 0, 5], True), "gmm: b.k = 4, expected a.k = 5"),
    "c": (
        lambda a, b: backend.gmm(a, b, [2, 0, 5], c=random(7, 5)),
        "gmm: c.* = 5, expected .*4",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_have_the_names_of_the_package(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call(random(7, 5), random(3, 5, 4))
