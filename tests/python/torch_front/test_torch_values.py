"""Values of the PyTorch front on the CPU, and on the GPU where there is one: against the f64 oracle and F.grouped_mm."""

import threading

import cadre
import cadre.torch
import numpy
import oracle
import pytest
import torch
import torch.nn.functional as F
from torch_oracle import as_numpy, assert_close, compute_of, equal, groups_of, random

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SIZES = [[5], [0, 0, 0], [7, 0, 1, 12], [3, 0, 5, 1, 0, 0, 9, 2]]
NAN = float("nan")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gmm_is_a_product_for_each_group(device, dtype, transpose_rhs, sizes):
    m, k, n, g = sum(sizes) + 3, 7, 5, len(sizes)
    lhs = random(m, k, dtype=dtype, device=device)
    rhs = random(g, *((n, k) if transpose_rhs else (k, n)), dtype=dtype, device=device)
    out = cadre.torch.gmm(lhs, rhs, torch.tensor(sizes, device=device), transpose_rhs=transpose_rhs)
    assert out.dtype == dtype and out.device == lhs.device
    expected, magnitude = oracle.gmm(
        as_numpy(lhs), as_numpy(rhs), sizes, transpose_rhs=transpose_rhs
    )
    assert_close(out, expected, magnitude, k, compute_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_epilogue_is_one_formula(device, dtype):
    sizes, m, k, n = [4, 0, 6], 12, 5, 7
    lhs, rhs = random(m, k, dtype=dtype, device=device), random(3, k, n, dtype=dtype, device=device)
    epilogue = {
        "alpha": random(3, dtype=torch.float32, device=device),
        "bias": random(3, n, dtype=dtype, device=device),
        "bias_scale": random(m, dtype=torch.float32, device=device),
        "row_scale": random(m, dtype=dtype, device=device),
    }
    out = cadre.torch.gmm(lhs, rhs, sizes, **epilogue)
    expected, magnitude = oracle.gmm(
        as_numpy(lhs),
        as_numpy(rhs),
        sizes,
        **{name: as_numpy(value) for name, value in epilogue.items()},
    )
    assert_close(out, expected, magnitude, k, compute_of(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tgmm_is_the_weight_gradient_of_each_group(device, dtype, sizes):
    m = sum(sizes) + 2
    lhs, rhs = random(m, 6, dtype=dtype, device=device), random(m, 9, dtype=dtype, device=device)
    out = cadre.torch.tgmm(lhs, rhs, torch.tensor(sizes, dtype=torch.int32, device=device))
    expected, magnitude = oracle.tgmm(as_numpy(lhs), as_numpy(rhs), sizes)
    assert_close(out, expected, magnitude, m, compute_of(dtype))


def test_sizes_may_be_a_list_or_a_tensor_on_either_device(device):
    lhs, rhs = random(8, 5, device=device), random(3, 5, 4, device=device)
    expected = cadre.torch.gmm(lhs, rhs, [2, 0, 6])
    for place in {"cpu", device}:
        sizes = torch.tensor([2, 0, 6], device=place)
        assert equal(cadre.torch.gmm(lhs, rhs, sizes), expected)
    assert equal(cadre.torch.gmm(lhs, rhs, numpy.array([2, 0, 6])), expected)


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_weights_may_be_a_list(device, transpose_rhs):
    lhs, bias = random(8, 5, device=device), random(3, 4, device=device)
    rhs = random(3, *((4, 5) if transpose_rhs else (5, 4)), device=device)
    listed = [w.clone() for w in rhs]
    options = {"transpose_rhs": transpose_rhs, "alpha": random(3, device=device)}
    expected = cadre.torch.gmm(lhs, rhs, [2, 0, 6], bias=bias, **options)
    assert equal(cadre.torch.gmm(lhs, listed, [2, 0, 6], bias=bias, **options), expected)
    assert equal(cadre.torch.gmm(lhs, listed, [2, 0, 6], bias=[*bias], **options), expected)
    assert equal(cadre.torch.gmm(lhs, rhs, [2, 0, 6], bias=[*bias], **options), expected)


@pytest.mark.parametrize("place", ["number", "host tensor", "device tensor"])
@pytest.mark.parametrize("group_offset", [0, 1, 3])
def test_a_shard_computes_its_own_groups_alone(device, group_offset, place):
    sizes, m = [4, 2, 0, 3, 5], 16
    local = [(start, end) for _, start, end in groups_of(sizes, 2, group_offset)]
    lhs, rhs, other = random(m, 6), random(2, 6, 5), random(m, 4)
    covered = torch.zeros(m, dtype=torch.bool)
    for start, end in local:
        covered[start:end] = True
    lhs[~covered] = 0
    expected, magnitude = oracle.gmm(as_numpy(lhs), as_numpy(rhs), sizes, group_offset=group_offset)
    expected_t, magnitude_t = oracle.tgmm(
        as_numpy(lhs), as_numpy(other), sizes, num_groups=2, group_offset=group_offset
    )
    lhs[~covered] = NAN
    offset = {
        "number": group_offset,
        "host tensor": torch.tensor(group_offset),
        "device tensor": torch.tensor([group_offset], dtype=torch.int32, device=device),
    }[place]
    lhs, rhs, other = lhs.to(device), rhs.to(device), other.to(device)
    on_device = torch.tensor(sizes, device=device)
    out = cadre.torch.gmm(lhs, rhs, on_device, group_offset=offset)
    assert_close(out, expected, magnitude, 6, "float64")
    weights = cadre.torch.tgmm(lhs, other, on_device, group_offset=offset, num_groups=2)
    assert_close(weights, expected_t, magnitude_t, m, "float64")


def test_nan_stays_in_its_group(device):
    sizes = torch.tensor([3, 4, 3], device=device)
    lhs, rhs, other = random(12, 4), random(3, 4, 5), random(12, 5)
    lhs[3:7], lhs[10:], rhs[1], other[10:] = NAN, NAN, float("inf"), NAN
    lhs, rhs, other = lhs.to(device), rhs.to(device), other.to(device)
    finite = torch.isfinite(cadre.torch.gmm(lhs, rhs, sizes)).all(1).cpu()
    assert finite.tolist() == [True] * 3 + [False] * 4 + [True] * 5
    finite = torch.isfinite(cadre.torch.tgmm(lhs, other, sizes)).all(2).all(1).cpu()
    assert finite.tolist() == [True, False, True]


def test_out_accumulates_in_place_and_keeps_the_tail(device):
    lhs, rhs = random(10, 5, device=device), random(3, 5, 6, device=device)
    out = random(10, 6, device=device)
    before = out.clone()
    assert cadre.torch.gmm(lhs, rhs, [4, 0, 3], out=out, accumulate=True) is out
    expected, magnitude = oracle.gmm(as_numpy(lhs), as_numpy(rhs), [4, 0, 3])
    assert_close(out, expected + as_numpy(before), magnitude + abs(as_numpy(before)), 6, "float64")
    assert equal(out[7:], before[7:])
    poisoned = torch.full((10, 6), NAN, device=device, dtype=torch.float64)
    cadre.torch.gmm(lhs, rhs, [4, 0, 3], out=poisoned, tail="untouched")
    assert torch.isfinite(poisoned[:7]).all() and torch.isnan(poisoned[7:]).all()


def test_tgmm_accumulates_into_one_main_grad_for_each_expert(device):
    sizes = torch.tensor([3, 0, 5], device=device)
    lhs = random(8, 6, dtype=torch.bfloat16, device=device)
    rhs = random(8, 4, dtype=torch.bfloat16, device=device)
    main_grads = [random(6, 4, dtype=torch.float32, device=device) for _ in range(3)]
    before = as_numpy(torch.stack(main_grads))
    cadre.torch.tgmm(lhs, rhs, sizes, out=main_grads, accumulate=True)
    expected, magnitude = oracle.tgmm(as_numpy(lhs), as_numpy(rhs), [3, 0, 5])
    assert_close(torch.stack(main_grads), expected + before, magnitude + abs(before), 9)
    assert equal(main_grads[1], torch.from_numpy(before[1]))


def test_strided_operands_are_used_in_place(device):
    lhs = random(14, 20, device=device)[::2, 3:17:2]
    rhs = random(4, 7, 2, device=device).permute(2, 1, 0)
    wide = torch.full((7, 9), NAN, dtype=torch.float64, device=device)
    cadre.torch.gmm(lhs, rhs, [3, 4], out=wide[:, 2:6])
    expected, magnitude = oracle.gmm(as_numpy(lhs), as_numpy(rhs), [3, 4])
    assert_close(wide[:, 2:6], expected, magnitude, 7, "float64")
    assert torch.isnan(wide[:, :2]).all() and torch.isnan(wide[:, 6:]).all()


# F.grouped_mm wants strides of 16 bytes.
FORMS = {
    "2Dx3D": ((16, 24), (3, 24, 8)),
    "3Dx2D": ((3, 8, 24), (24, 16)),
    "2Dx2D": ((8, 16), (16, 24)),
    "3Dx3D": ((3, 8, 24), (3, 24, 16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_grouped_mm_agrees_with_torch(form, dtype):
    """On the CPU, whose F.grouped_mm takes these dtypes; both within their own rounding of the f64 product."""
    a, b = (random(*shape, dtype=dtype) for shape in FORMS[form])
    offs = None if form == "3Dx3D" else torch.tensor([8, 8, 16], dtype=torch.int32)
    theirs = F.grouped_mm(a, b, offs=offs)
    ours = cadre.torch.grouped_mm(a, b, offs=offs)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    k = a.shape[-1]
    magnitude = as_numpy(cadre.torch.grouped_mm(a.abs().double(), b.abs().double(), offs=offs))
    exact = as_numpy(cadre.torch.grouped_mm(a.double(), b.double(), offs=offs))
    assert_close(ours, exact, magnitude, k)
    assert_close(theirs, exact, magnitude, k + 2 * k)


def test_grouped_mm_takes_what_torch_rejects(device):
    a, b = random(9, 5, device=device), random(3, 5, 7, device=device)
    offs = torch.tensor([2, 2, 6], device=device)
    bias = random(3, 7, device=device)
    with pytest.raises(RuntimeError):
        F.grouped_mm(a, b, offs=offs)
    out = cadre.torch.grouped_mm(a, b, offs=offs, bias=bias, out_dtype=torch.float32)
    expected, magnitude = oracle.gmm(as_numpy(a), as_numpy(b), [2, 0, 4], bias=as_numpy(bias))
    assert_close(out, expected, magnitude, 5)
    assert (out[6:] == 0).all()
    for other in ([2, 2, 6], offs.to(torch.uint32), offs.cpu()):
        assert equal(
            cadre.torch.grouped_mm(a, b, offs=other, bias=bias, out_dtype=torch.float32), out
        )


@pytest.mark.parametrize("form", ["stacked", "list", "packed"])
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
def test_grouped_gemm_of_every_form(device, form, transa, transb):
    dims = [(4, 3, 5)] * 3 if form == "stacked" else [(2, 3, 5), (0, 3, 2), (4, 1, 3)]
    a = [random(*((k, m) if transa else (m, k))) for m, k, n in dims]
    b = [random(*((n, k) if transb else (k, n))) for m, k, n in dims]
    c = [random(m, n) for m, k, n in dims]
    alpha, beta = random(3), random(3)
    expected = [
        alpha[i] * ((a[i].t() if transa else a[i]) @ (b[i].t() if transb else b[i]))
        + beta[i] * c[i]
        for i in range(3)
    ]

    def make(matrices):
        if form == "stacked":
            return cadre.torch.GroupedTensor.stacked(torch.stack(matrices).to(device))
        if form == "list":
            return cadre.torch.GroupedTensor.list([matrix.to(device) for matrix in matrices])
        buffer = torch.cat([matrix.flatten() for matrix in matrices]).to(device)
        rows, cols = zip(*(matrix.shape for matrix in matrices), strict=True)
        return cadre.torch.GroupedTensor.packed(buffer, list(rows), torch.tensor(cols))

    def flat(grouped):
        return torch.cat([tensor.flatten() for tensor in grouped.tensors]).cpu()

    options = {
        "transa": transa,
        "transb": transb,
        "alpha": alpha.to(device),
        "beta": beta.to(device),
    }
    result = cadre.torch.grouped_gemm(make(a), make(b), c=make(c), **options)
    torch.testing.assert_close(flat(result), torch.cat([matrix.flatten() for matrix in expected]))
    into = make(c)
    assert cadre.torch.grouped_gemm(make(a), make(b), d=into, **options) is into
    torch.testing.assert_close(flat(into), flat(result))


def test_autocast_casts_as_torch_does(device):
    lhs = random(6, 5, dtype=torch.float32, device=device, requires_grad=True)
    rhs = random(2, 5, 4, dtype=torch.float32, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = cadre.torch.gmm(lhs, rhs, [2, 4])
    assert out.dtype == torch.bfloat16 == (lhs.bfloat16() @ rhs[0].bfloat16()).dtype
    assert equal(out, cadre.torch.gmm(lhs.bfloat16(), rhs.bfloat16(), [2, 4]))
    out.float().square().sum().backward()
    assert lhs.grad.dtype == rhs.grad.dtype == torch.float32


def test_threads_may_call_at_once(device):
    lhs = random(64, 32, device=device, requires_grad=True)
    rhs = random(4, 32, 16, device=device, requires_grad=True)
    sizes = [[16, 16, 16, 16], [0, 64, 0, 0]]

    def results(each):
        out = cadre.torch.gmm(lhs, rhs, each)
        return [out, *torch.autograd.grad(out.square().sum(), (lhs, rhs))]

    expected = [results(each) for each in sizes]
    wrong = []

    def work(index):
        for _ in range(20):
            if not all(map(equal, results(sizes[index]), expected[index])):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_numpy_front_takes_torch_tensors():
    lhs, rhs = random(6, 5, dtype=torch.bfloat16), random(2, 5, 4, dtype=torch.bfloat16)
    out = cadre.gmm(lhs, rhs, torch.tensor([2, 4], dtype=torch.int32))
    assert out.dtype.name == "bfloat16"
    expected = cadre.torch.gmm(lhs, rhs, [2, 4])
    numpy.testing.assert_array_equal(out.astype(numpy.float64), as_numpy(expected))
