"""Quantised operands in PyTorch: products against the f64 product of the values, compiled and on meta, and bad input."""

import cadre.torch
import numpy
import oracle
import pytest
import scaled_oracle
import torch
from cadre.torch import GroupedTensor, ScaledTensor
from scaled_oracle import E4M3, E5M2, MODES
from torch_oracle import assert_close

SIZES = [3, 0, 129, 1, 33]
M, K, N = 170, 140, 75  # four rows are tail
GROUPS = len(SIZES)


def as_torch(array, device):
    """A tensor of the array's own type: torch has no way in for NumPy's FP8."""
    array = numpy.ascontiguousarray(array)
    dtype = getattr(torch, array.dtype.name)
    flat = array.view(numpy.uint8) if array.dtype.itemsize == 1 else array
    return torch.from_numpy(flat.copy()).view(dtype).to(device)


def scaled(made, mode, device, **options):
    data, scales, values = made
    return ScaledTensor(as_torch(data, device), as_torch(scales, device), mode, **options), values


def operands(rng, mode, device, types=(E4M3, E4M3)):
    x, w = rng.standard_normal((M, K)), rng.standard_normal((GROUPS, N, K))
    lhs = scaled(scaled_oracle.rows(x, mode, types[0]), mode, device)
    rhs = scaled(scaled_oracle.weights(w, mode, types[1]), mode, device)
    return (*lhs, *rhs)


def copies(rng, mode, device):
    made = []
    for width, dtype in ((K, E4M3), (N, E5M2)):
        each = scaled_oracle.columns(rng.standard_normal((M, width)), SIZES, mode, dtype)
        made.extend(scaled(each, mode, device, columns=True))
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3)], ids=str)
def test_gmm_multiplies_the_values(rng, device, mode, types):
    lhs, lhs_values, rhs, rhs_values = operands(rng, mode, device, types)
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True)
    out = cadre.torch.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    assert out.dtype == torch.bfloat16
    assert_close(out, expected, magnitude, K)
    wide = cadre.torch.gmm(lhs, rhs, SIZES, transpose_rhs=True, out_dtype=torch.float32)
    assert_close(wide, expected, magnitude, K)
    each = rhs.scales[:, None] if mode == "tensor" else rhs.scales
    listed = ScaledTensor(list(rhs.data), list(each), mode)
    for weights in (listed, ScaledTensor(list(rhs.data), rhs.scales, mode)):
        again = cadre.torch.gmm(lhs, weights, SIZES, transpose_rhs=True, out_dtype=torch.float32)
        torch.testing.assert_close(again, wide, rtol=0, atol=0)
    added = torch.full((M, N), 0.5, device=device)
    cadre.torch.gmm(lhs, rhs, SIZES, transpose_rhs=True, out=added, accumulate=True)
    rows = sum(SIZES)
    assert_close(added[:rows], expected[:rows] + 0.5, magnitude[:rows] + 0.5, K + 1)
    assert (added[rows:] == 0.5).all()


@pytest.mark.parametrize("mode", MODES)
def test_tgmm_multiplies_column_wise_copies(rng, device, mode):
    lhs, lhs_values, rhs, rhs_values = copies(rng, mode, device)
    expected, magnitude = oracle.tgmm(lhs_values, rhs_values, SIZES)
    out = cadre.torch.tgmm(lhs, rhs, SIZES, out_dtype=torch.float32)
    assert_close(out, expected, magnitude, max(SIZES))
    main_grads = [torch.full((K, N), 0.5, device=device) for _ in SIZES]
    cadre.torch.tgmm(lhs, rhs, SIZES, out=main_grads, accumulate=True)
    assert_close(torch.stack(main_grads), expected + 0.5, magnitude + 0.5, max(SIZES) + 1)


@pytest.mark.parametrize("mode", MODES)
def test_weight_gradients_of_768_columns_with_empty_groups(rng, device, mode):
    sizes, made = [0, 129, 0, 0, 33, 0], []
    for width in (96, 768):
        each = scaled_oracle.columns(rng.standard_normal((sum(sizes), width)), sizes, mode)
        made.extend(scaled(each, mode, device, columns=True))
    out = cadre.torch.tgmm(made[0], made[2], torch.tensor(sizes, device=device), out_dtype=torch.float32)
    expected, magnitude = oracle.tgmm(made[1], made[3], sizes)
    assert_close(out, expected, magnitude, max(sizes))
    empty = cadre.torch.tgmm(made[0], made[2], torch.zeros(6, dtype=torch.int32, device=device))
    assert not empty.any() and empty.shape == (6, 96, 768)


@pytest.mark.parametrize("mode", MODES)
def test_grouped_gemm_multiplies_the_values(rng, device, mode):
    made = [scaled_oracle.weights(rng.standard_normal((3, rows, K)), mode) for rows in (20, N)]
    (a, a_values), (b, b_values) = (scaled(each, mode, device) for each in made)
    expected = a_values @ b_values.transpose(0, 2, 1)
    magnitude = abs(a_values) @ abs(b_values).transpose(0, 2, 1)
    out = cadre.torch.grouped_gemm(a, b, transb=True, out_dtype=torch.float32)
    assert_close(out, expected, magnitude, K)
    grouped = [GroupedTensor.stacked(each.data).quantised(each.scales, mode) for each in (a, b)]
    again = cadre.torch.grouped_gemm(*grouped, transb=True, out_dtype=torch.float32)
    assert isinstance(again, GroupedTensor) and again.mode is None
    torch.testing.assert_close(again.tensors[0], out, rtol=0, atol=0)


def test_compiled_and_meta_calls_have_the_eager_form(rng):
    lhs, _, rhs, _ = operands(rng, "block_128", "cpu")
    sizes = torch.tensor(SIZES)

    def product(data, scales):
        return cadre.torch.gmm(ScaledTensor(data, scales, "block_128"), rhs, sizes, transpose_rhs=True)

    eager = product(lhs.data, lhs.scales)
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")(lhs.data, lhs.scales)
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0)
    meta = [ScaledTensor(each.data.to("meta"), each.scales.to("meta"), each.mode) for each in (lhs, rhs)]
    out = cadre.torch.gmm(*meta, sizes, transpose_rhs=True)
    assert out.is_meta and out.shape == eager.shape and out.dtype == eager.dtype
    first, _, second, _ = copies(rng, "row", "cpu")
    meta = [ScaledTensor(each.data.to("meta"), each.scales.to("meta"), "row", columns=True) for each in (first, second)]
    assert cadre.torch.tgmm(*meta, sizes).shape == (GROUPS, K, N)


def _with(tensor, **changes):
    given = {name: getattr(tensor, name) for name in ("data", "scales", "mode", "columns")}
    given.update(changes)
    return ScaledTensor(given["data"], given["scales"], given["mode"], columns=given["columns"])


BAD_INPUT = {
    "no scales": (
        lambda a, b: (a.data, b),
        ValueError,
        "gmm: lhs.scales = nothing, expected scales because lhs.dtype = torch.float8_e4m3fn",
    ),
    "neither has scales": (
        lambda a, b: (a.data, b.data),
        ValueError,
        "gmm: lhs.scales = nothing, expected scales because lhs.dtype = torch.float8_e4m3fn",
    ),
    "scales of another shape": (
        lambda a, b: (a, _with(b, scales=b.scales[:, :, :1])),
        ValueError,
        r"gmm: rhs.scales.shape = \[5, 1, 1\], expected \[5, 1, 2\] because rhs.scales.mode = block_128",
    ),
    "scales of another type": (
        lambda a, b: (_with(a, scales=a.scales.double()), b),
        TypeError,
        "gmm: lhs.scales.dtype = torch.float64, expected torch.float32 or torch.float8_e8m0fnu",
    ),
    "scales that are no tensor": (
        lambda a, b: (_with(a, scales=1.0), b),
        TypeError,
        "gmm: lhs.scales is a float, expected a torch.Tensor",
    ),
    "mx scales in f32": (
        lambda a, b: (_with(a, mode="mx"), b),
        TypeError,
        "gmm: lhs.scales.dtype = torch.float32, expected torch.float8_e8m0fnu",
    ),
    "mixed modes": (
        lambda a, b: (a, _with(b, scales=b.scales[:, 0, 0], mode="tensor")),
        ValueError,
        "gmm: rhs.scales.mode = tensor, expected block_128 because lhs.scales.mode = block_128",
    ),
    "two gradients": (
        lambda a, b: tuple(_with(each, data=each.data.to(torch.float8_e5m2)) for each in (a, b)),
        TypeError,
        "gmm: rhs.dtype = torch.float8_e5m2, expected torch.float8_e4m3fn because lhs.dtype = torch.float8_e5m2",
    ),
    "a column-wise copy": (
        lambda a, b: (_with(a, columns=True), b),
        ValueError,
        "gmm: lhs.columns = True, expected False: gmm takes rows",
    ),
    "a gradient": (
        lambda a, b: (_with(a, scales=a.scales.clone().requires_grad_()), b),
        ValueError,
        "gmm: lhs.scales.requires_grad = True, expected False: products of FP8 data are not differentiable",
    ),
    "scales of a list that differ": (
        lambda a, b: (a, _with(b, data=[*b.data], scales=[b.scales[0], *b.scales[1:, :, :1]])),
        ValueError,
        r"gmm: rhs.scales\[1\].shape = \[1, 1\], expected rhs.scales\[0\].shape = \[1, 2\]",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_scales_are_named(rng, name):
    change, kind, message = BAD_INPUT[name]
    lhs, _, rhs, _ = operands(rng, "block_128", "cpu")
    with pytest.raises(kind, match=message):
        cadre.torch.gmm(*change(lhs, rhs), SIZES, transpose_rhs=True)


def test_an_output_in_fp8_is_refused(rng):
    lhs, _, rhs, _ = operands(rng, "row", "cpu")
    message = "gmm: out.dtype = torch.float8_e4m3fn, expected torch.float32, torch.bfloat16 or torch.float16"
    with pytest.raises(TypeError, match=message):
        cadre.torch.gmm(lhs, rhs, SIZES, transpose_rhs=True, out_dtype=torch.float8_e4m3fn)


def test_tgmm_asks_for_the_column_wise_copy(rng):
    lhs, _, _, _ = operands(rng, "row", "cpu")
    with pytest.raises(ValueError, match="tgmm: lhs.columns = false, expected true, the column-wise copy"):
        cadre.torch.tgmm(lhs, lhs, SIZES)
