"""Quantised operands in the NumPy front: products against the f64 product of the values they stand for, and bad input."""

import cadre
import numpy
import oracle
import pytest
import scaled_oracle
from cadre import ScaledTensor
from scaled_oracle import E4M3, E5M2, MODES

SIZES = [3, 0, 129, 1, 33]
M, K, N = 170, 140, 75  # four rows are tail


def scaled_rows(rng, mode, dtype=E4M3, shape=(M, K)):
    data, scales, values = scaled_oracle.rows(rng.standard_normal(shape), mode, dtype)
    return ScaledTensor(data, scales, mode), values


def scaled_weights(rng, mode, dtype=E4M3, shape=(len(SIZES), N, K)):
    data, scales, values = scaled_oracle.weights(rng.standard_normal(shape), mode, dtype)
    return ScaledTensor(data, scales, mode), values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)], ids=str)
def test_gmm_multiplies_the_values(rng, mode, types):
    lhs, lhs_values = scaled_rows(rng, mode, types[0])
    rhs, rhs_values = scaled_weights(rng, mode, types[1])
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True)
    out = cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True, out_dtype="f4")
    oracle.assert_close(out, expected, magnitude, K)
    bf16 = cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    assert bf16.dtype.name == "bfloat16"
    oracle.assert_close(bf16, expected, magnitude, K)


@pytest.mark.parametrize("mode", MODES)
def test_weights_may_be_stored_either_way_and_in_lists(rng, mode):
    lhs, _ = scaled_rows(rng, mode)
    rhs, _ = scaled_weights(rng, mode)
    out = cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True, out_dtype="f4")
    turn = (0, 2, 1)
    scales = rhs.scales.transpose(turn) if rhs.scales.ndim == 3 else rhs.scales
    turned = ScaledTensor(rhs.data.transpose(turn), scales, mode)
    numpy.testing.assert_array_equal(cadre.gmm(lhs, turned, SIZES, out_dtype="f4"), out)
    each = list(rhs.scales[:, None] if mode == "tensor" else rhs.scales)
    for scales in (each, rhs.scales):
        listed = ScaledTensor(list(rhs.data), scales, mode)
        again = cadre.gmm(lhs, listed, SIZES, transpose_rhs=True, out_dtype="f4")
        numpy.testing.assert_array_equal(again, out)


def test_scales_of_any_strides_and_of_powers_of_two(rng):
    """DeepGEMM's rows lie side by side; Hugging Face has scales in e8m0, too."""
    x, w = rng.standard_normal((M, K)), rng.standard_normal((len(SIZES), N, K))
    data, scales, values = scaled_oracle.rows(x, "block_128", e8m0=True)
    lhs = ScaledTensor(data, numpy.asfortranarray(scales.astype("f4")), "block_128")
    data, scales, rhs_values = scaled_oracle.weights(w, "block_128", e8m0=True)
    rhs = ScaledTensor(data, scales, "block_128")
    expected, magnitude = oracle.gmm(values, rhs_values, SIZES, transpose_rhs=True)
    out = cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True, out_dtype="f4")
    oracle.assert_close(out, expected, magnitude, K)


@pytest.mark.parametrize("mode", MODES)
def test_tgmm_multiplies_column_wise_copies(rng, mode):
    made = [
        scaled_oracle.columns(rng.standard_normal((M, width)), SIZES, mode, dtype)
        for width, dtype in ((K, E4M3), (N, E5M2))
    ]
    lhs, rhs = (ScaledTensor(data, scales, mode, columns=True) for data, scales, _ in made)
    expected, magnitude = oracle.tgmm(made[0][2], made[1][2], SIZES)
    out = cadre.tgmm(lhs, rhs, SIZES, out_dtype="f4")
    oracle.assert_close(out, expected, magnitude, max(SIZES))
    added = cadre.tgmm(lhs, rhs, SIZES, out=out.copy(), accumulate=True)
    oracle.assert_close(added, 2 * expected, 2 * magnitude, max(SIZES) + 1)


def test_tgmm_takes_rows_of_one_scale(rng):
    lhs, lhs_values = scaled_rows(rng, "tensor")
    rhs, rhs_values = scaled_rows(rng, "tensor", E5M2, (M, N))
    expected, magnitude = oracle.tgmm(lhs_values, rhs_values, SIZES)
    oracle.assert_close(cadre.tgmm(lhs, rhs, SIZES, out_dtype="f4"), expected, magnitude, max(SIZES))


@pytest.mark.parametrize("mode", MODES)
def test_grouped_gemm_multiplies_the_values(rng, mode):
    a, a_values = scaled_weights(rng, mode, shape=(3, 20, K))
    b, b_values = scaled_weights(rng, mode, shape=(3, N, K))
    expected = a_values @ b_values.transpose(0, 2, 1)
    magnitude = abs(a_values) @ abs(b_values).transpose(0, 2, 1)
    out = cadre.grouped_gemm(a, b, transb=True, out_dtype="f4")
    oracle.assert_close(out, expected, magnitude, K)


def _arguments(mode="block_128"):
    rng = numpy.random.default_rng(3)
    return scaled_rows(rng, mode)[0], scaled_weights(rng, mode)[0]


def _gmm(change, mode="block_128", **options):
    lhs, rhs = _arguments(mode)
    lhs, rhs = change(lhs, rhs)
    return cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True, **options)


def _with(tensor, **changes):
    given = {name: getattr(tensor, name) for name in ("data", "scales", "mode", "columns")}
    given.update(changes)
    return ScaledTensor(given["data"], given["scales"], given["mode"], columns=given["columns"])


BAD_INPUT = {
    "no scales": (
        lambda a, b: (a.data, b),
        ValueError,
        "gmm: lhs.scales = nothing, expected scales because lhs.dtype = e4m3",
    ),
    "scales of another shape": (
        lambda a, b: (_with(a, scales=a.scales[:, :1]), b),
        ValueError,
        r"gmm: lhs.scales.shape = \[170, 1\], expected \[170, 2\] because lhs.scales.mode = block_128",
    ),
    "scales of another type": (
        lambda a, b: (a, _with(b, scales=b.scales.astype("f8"))),
        TypeError,
        "gmm: rhs.scales.dtype = float64, expected float32 or float8_e8m0fnu",
    ),
    "mx scales in f32": (
        lambda a, b: (_with(a, mode="mx"), b),
        TypeError,
        "gmm: lhs.scales.dtype = f32, expected e8m0",
    ),
    "scales are no array": (
        lambda a, b: (_with(a, scales=1.0), b),
        TypeError,
        "gmm: lhs.scales is a float, expected a NumPy array",
    ),
    "mixed modes": (
        lambda a, b: (a, _with(b, scales=b.scales[:, 0, 0].copy(), mode="tensor")),
        ValueError,
        "gmm: rhs.scales.mode = tensor, expected block_128 because lhs.scales.mode = block_128",
    ),
    "two gradients": (
        lambda a, b: (_with(a, data=a.data.astype(E5M2)), _with(b, data=b.data.astype(E5M2))),
        TypeError,
        "gmm: rhs.dtype = float8_e5m2, expected float8_e4m3fn because lhs.dtype = float8_e5m2",
    ),
    "fp8 with f32": (
        lambda a, b: (a, b.data.astype("f4")),
        TypeError,
        "gmm: rhs.dtype = float32, expected float8_e4m3fn or float8_e5m2 because lhs.dtype = float8_e4m3fn",
    ),
    "scales of f32 data": (
        lambda a, b: (_with(a, data=a.data.astype("f4")), b.data.astype("f4")),
        ValueError,
        "gmm: lhs.scales = given, expected none because lhs.dtype = f32",
    ),
    "a column-wise copy": (
        lambda a, b: (_with(a, columns=True), b),
        ValueError,
        "gmm: lhs.columns = True, expected False: gmm takes rows, a column-wise copy is for tgmm",
    ),
    "a list of scales for rows": (
        lambda a, b: (_with(a, scales=[a.scales]), b),
        ValueError,
        "gmm: lhs.scales.pointers = given, expected one tensor of scales because lhs is one tensor",
    ),
    "scales of a list that differ": (
        lambda a, b: (a, _with(b, data=[*b.data], scales=[b.scales[0][:, :1], *b.scales[1:]])),
        ValueError,
        r"gmm: rhs.scales\[1\].shape = \(1, 2\), expected rhs.scales\[0\].shape = \(1, 1\)",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_scales_are_named(name):
    change, kind, message = BAD_INPUT[name]
    with pytest.raises(kind, match=message):
        _gmm(change)


def test_an_output_in_fp8_is_refused():
    with pytest.raises(TypeError, match="gmm: out_dtype = .*float8_e4m3fn.*, expected float64, float32"):
        _gmm(lambda a, b: (a, b), out_dtype=E4M3)
    with pytest.raises(TypeError, match="gmm: out.dtype = float8_e4m3fn, expected float64, float32"):
        _gmm(lambda a, b: (a, b), out=numpy.zeros((M, N), E4M3))


def test_tgmm_asks_for_the_column_wise_copy(rng):
    lhs, _ = scaled_rows(rng, "row")
    rhs, _ = scaled_rows(rng, "row", shape=(M, N))
    with pytest.raises(ValueError, match="tgmm: lhs.columns = false, expected true, the column-wise copy"):
        cadre.tgmm(lhs, rhs, SIZES)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="ScaledTensor: mode = 'block', expected 'tensor' or 'row' or 'block_128' or 'mx'"):
        ScaledTensor(numpy.zeros((2, 2), E4M3), numpy.ones(1, "f4"), "block")
