"""quantize and dequantize in PyTorch: codes and scales against ml_dtypes, in both arrangements, on meta, and bad input."""

import cadre.torch
import ml_dtypes
import numpy
import pytest
import scaled_oracle
import torch
from cadre.torch import ScaledTensor, quantize
from scaled_oracle import MODES
from torch_oracle import as_numpy

SIZES = [3, 0, 129, 1, 33]
M, K, N = 170, 140, 75  # four rows are tail
TYPES = {torch.float8_e4m3fn: scaled_oracle.E4M3, torch.float8_e5m2: scaled_oracle.E5M2}


def codes(tensor):
    return tensor.cpu().view(torch.uint8).numpy()


def as_f64(tensor):
    """Scales and data of any type, by ml_dtypes."""
    if tensor.dtype == torch.float32:
        return tensor.cpu().double().numpy()
    name = {torch.float8_e8m0fnu: "float8_e8m0fnu"}.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return codes(tensor).view(getattr(ml_dtypes, name)).astype("f8")


def values(scaled, sizes, rows):
    """What a ScaledTensor of rows or a column-wise copy stands for, by the layouts of cadre/scaled_tensor.h."""
    data, scales, mode = as_f64(scaled.data), as_f64(scaled.scales), scaled.mode
    out = numpy.zeros((rows, data.shape[0 if scaled.columns else 1]))
    block = {"block_128": 128, "mx": 32}.get(mode)
    row = column = line = 0
    for group, size in enumerate(sizes):
        part = slice(row, row + size)
        if not scaled.columns:
            factor = scales if mode == "tensor" else scales[part]
            factor = factor[:, None] if mode == "row" else factor
            if block:
                factor = numpy.repeat(factor, block, 1)[:, : data.shape[1]]
            out[part] = data[part] * factor
        else:
            factor = scales if mode == "tensor" else scales[group, :, None]
            if block:
                lines = -(-size // block)
                factor = numpy.repeat(scales[line : line + lines], block, 0)[:size].T
                line += lines
            out[part] = (data[:, column : column + size] * factor).T
            assert not data[:, column + size : column + -(-size // 32) * 32].any()
            column += -(-size // 32) * 32
        row += size
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_codes_are_those_of_ml_dtypes_in_both_arrangements(rng, device, mode, dtype):
    x = torch.from_numpy(rng.standard_normal((M, K))).to(device, torch.bfloat16)
    covered = sum(SIZES)
    x[covered:] = float("nan")
    rows, columns = quantize(x, mode, torch.tensor(SIZES, device=device), dtype=dtype, columns=True)
    dense = as_numpy(x)[:covered]
    expected = scaled_oracle.rows(dense, mode, TYPES[dtype])
    # The scale's reciprocal is rounded once before it multiplies, so a value at a tie may go to either neighbour.
    step = 2.0 ** -(3 if dtype == torch.float8_e4m3fn else 2)
    numpy.testing.assert_allclose(values(rows, SIZES, M)[:covered], expected[2], rtol=1.1 * step, atol=1e-6)
    assert (codes(rows.data)[:covered] != expected[0].view(numpy.uint8)).mean() < 0.01
    if mode != "tensor":
        expected = scaled_oracle.columns(dense, SIZES, mode, TYPES[dtype])
    numpy.testing.assert_allclose(values(columns, SIZES, M)[:covered], expected[2][:covered], rtol=1.1 * step, atol=1e-6)
    assert not codes(rows.data)[covered:].any()
    for each, options in ((rows, {}), (columns, {"num_rows": M})):
        back = cadre.torch.dequantize(each, torch.tensor(SIZES), out_dtype=torch.float32, **options)
        numpy.testing.assert_array_equal(as_numpy(back), values(each, SIZES, M).astype("f4"))


@pytest.mark.parametrize("mode", MODES)
def test_weights_are_scaled_along_either_dim(rng, device, mode):
    w = torch.from_numpy(rng.standard_normal((3, N, K))).to(device, torch.float32)
    rows, columns = quantize(w, mode, columns=True)
    assert not columns.columns, "a copy of weights is weights"
    for made, dense in ((rows, w), (columns, w.mT)):
        data, scales, expected = scaled_oracle.weights(as_numpy(dense), mode)
        assert made.data.shape == data.shape and made.scales.shape == scales.shape
        numpy.testing.assert_allclose(as_f64(made.scales), scales.astype("f8"), rtol=2**-23)
        back = cadre.torch.dequantize(made, out_dtype=torch.float32)
        numpy.testing.assert_allclose(as_numpy(back), expected, rtol=0.14, atol=1e-6)
        assert (codes(made.data) != data.view(numpy.uint8)).mean() < 0.01


def test_rows_come_by_index_through_an_activation(rng, device):
    x = torch.from_numpy(rng.standard_normal((20, 2 * K))).to(device, torch.float32)
    index = torch.from_numpy(rng.integers(-1, 20, M)).to(device)
    factors = torch.from_numpy(rng.standard_normal(M)).to(device, torch.float32)
    options = {"source_row": index, "row_scale": factors, "activation": "swiglu"}
    made = quantize(x, "block_128", SIZES, **options)
    gate, up = x[index].chunk(2, 1)
    rows = factors[:, None] * torch.nn.functional.silu(gate) * up * (index >= 0)[:, None]
    back = cadre.torch.dequantize(made, SIZES, out_dtype=torch.float32)
    covered = sum(SIZES)
    bound = 2**-4 * rows.abs() + rows.abs().amax(1, keepdim=True) * 2**-10 + 1e-6
    assert ((back - rows).abs() <= bound)[:covered].all()
    assert not back[covered:].any()


def test_amax_has_the_shape_of_the_scales(rng, device):
    x = torch.from_numpy(rng.standard_normal((M, K))).to(device, torch.float32)
    covered = x[: sum(SIZES)]
    assert cadre.torch.amax(x, "tensor", SIZES) == covered.abs().max()
    rows = cadre.torch.amax(x, "row", SIZES)
    torch.testing.assert_close(rows[: sum(SIZES)], covered.abs().amax(1), rtol=0, atol=0)
    assert cadre.torch.amax(x, "block_128", SIZES).shape == (M, 2)


@pytest.mark.parametrize("mode", MODES)
def test_meta_and_compiled_calls_have_the_eager_form(mode):
    x, w = torch.randn(M, K), torch.randn(3, N, K)
    sizes = torch.tensor(SIZES)
    for args in ((x, mode, sizes), (w, mode)):
        eager = quantize(*args, columns=True)
        meta = quantize(args[0].to("meta"), *args[1:], columns=True)
        for mine, theirs in zip(eager, meta, strict=True):
            assert (mine.data.shape, mine.data.dtype) == (theirs.data.shape, theirs.data.dtype)
            assert (mine.scales.shape, mine.scales.dtype) == (theirs.scales.shape, theirs.scales.dtype)

    def product(x, w):
        return cadre.torch.gmm(quantize(x, mode, sizes), quantize(w, mode), sizes[:3], transpose_rhs=True)

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")(x, w)
    torch.testing.assert_close(compiled, product(x, w), rtol=0, atol=0)


X = torch.randn(4, 6)
BAD_INPUT = {
    "mode": (lambda: quantize(X, "rows"), ValueError, "quantize: mode = 'rows', expected 'tensor' or 'row'"),
    "dtype": (
        lambda: quantize(X, "row", dtype=torch.bfloat16),
        TypeError,
        "quantize: dtype = torch.bfloat16, expected torch.float8_e4m3fn or torch.float8_e5m2",
    ),
    "f64": (lambda: quantize(X.double(), "row"), TypeError, "quantize: x.dtype = torch.float64, expected"),
    "no tensor": (lambda: quantize(1.0, "row"), TypeError, "quantize: x is a float, expected a torch.Tensor"),
    "rank": (lambda: quantize(X[0], "row"), ValueError, "quantize: x.rank = 1"),
    "nothing": (lambda: quantize(X, "row", rows=False), ValueError, "quantize: rows = False, expected True"),
    "sizes": (lambda: quantize(X, "row", [5]), ValueError, "quantize: .*group_sizes"),
    "scale_dtype": (
        lambda: quantize(X, "mx", scale_dtype=torch.float32),
        TypeError,
        "quantize: .*dtype = torch.float32, expected torch.float8_e8m0fnu",
    ),
    "a gradient": (
        lambda: quantize(X.clone().requires_grad_(), "row"),
        ValueError,
        "quantize: x.requires_grad = True, expected False: quantize is not differentiable",
    ),
    "dequantize takes": (
        lambda: cadre.torch.dequantize(X),
        TypeError,
        "dequantize: x is a Tensor, expected a ScaledTensor",
    ),
    "dequantize's scales": (
        lambda: cadre.torch.dequantize(ScaledTensor(X.to(torch.float8_e4m3fn), torch.ones(3), "row")),
        ValueError,
        r"dequantize: x.scales.shape = \[3\], expected \[4\]",
    ),
    "rows of a copy": (
        lambda: cadre.torch.dequantize(quantize(X, "row", rows=False, columns=True)),
        ValueError,
        "dequantize: num_rows = None, expected the number of rows",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    call, kind, message = BAD_INPUT[name]
    with pytest.raises(kind, match=message):
        call()
