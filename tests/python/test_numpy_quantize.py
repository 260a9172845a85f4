"""cadre.quantize, dequantize and amax against ml_dtypes: every input of 16 bits, every code of 8, and every mode."""

import cadre
import ml_dtypes
import numpy
import pytest

E4M3 = numpy.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = numpy.dtype(ml_dtypes.float8_e5m2)
E8M0 = numpy.dtype(ml_dtypes.float8_e8m0fnu)
BF16 = numpy.dtype(ml_dtypes.bfloat16)
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
MODES = ("tensor", "row", "block_128", "mx")
TYPES = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)


def _all_inputs(dtype):
    return numpy.arange(65536, dtype=numpy.uint16).view(dtype)


def _codes(values, dtype):
    """ml_dtypes' rounding, with what is too large but finite saturated."""
    with numpy.errstate(invalid="ignore"):
        return _saturated(values.astype(numpy.float32), dtype).astype(dtype)


def _saturated(values, dtype):
    limited = numpy.clip(values, -LARGEST[dtype], LARGEST[dtype])
    return numpy.where(numpy.isinf(values), values, limited)


def _assert_same(got, expected):
    nan = numpy.isnan(expected.astype(numpy.float32))
    assert numpy.array_equal(numpy.isnan(got.astype(numpy.float32)), nan)
    assert numpy.array_equal(got.view(numpy.uint8)[~nan], expected.view(numpy.uint8)[~nan])


@TYPES
@pytest.mark.parametrize("source", [BF16, numpy.dtype(numpy.float16)], ids=str)
def test_every_input_of_16_bits_at_scale_one(source, dtype):
    x = _all_inputs(source).reshape(-1, 1)
    values = x.astype(numpy.float32)
    within = ~(numpy.abs(values) > LARGEST[dtype]) | numpy.isinf(values)
    x[~within] = 0
    got = cadre.quantize(x, "row", dtype=dtype, amax_floor=LARGEST[dtype])
    assert numpy.array_equal(got.scales, numpy.ones(len(x), numpy.float32))
    _assert_same(got.data, _codes(x, dtype))


@TYPES
@pytest.mark.parametrize("source", [BF16, numpy.dtype(numpy.float16)], ids=str)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_every_input_of_16_bits_in_one_tensor(source, dtype, power_of_two):
    x = _all_inputs(source).reshape(256, 256)
    finite = numpy.abs(x.astype(numpy.float32))
    amax = numpy.float32(finite[numpy.isfinite(finite)].max())
    scale = amax / numpy.float32(LARGEST[dtype])
    if power_of_two:
        scale = numpy.float32(2.0) ** numpy.ceil(numpy.log2(scale))
    got = cadre.quantize(x, "tensor", dtype=dtype, power_of_two=power_of_two)
    assert got.scales[0] == scale
    inverse = numpy.float32(1) / scale
    with numpy.errstate(invalid="ignore"):
        scaled = x.astype(numpy.float32) * inverse
    _assert_same(got.data, _codes(scaled, dtype))
    assert cadre.amax(x, "tensor")[0] == amax


@TYPES
@pytest.mark.parametrize("out_dtype", [numpy.float32, BF16, numpy.float16], ids=str)
def test_every_code_is_dequantised(dtype, out_dtype):
    codes = numpy.arange(256, dtype=numpy.uint8).view(dtype).reshape(2, 128)
    scales = numpy.array([0.7, 3.0], numpy.float32)
    got = cadre.dequantize(cadre.ScaledTensor(codes, scales, "row"), out_dtype=out_dtype)
    with numpy.errstate(over="ignore"):
        expected = (codes.astype(numpy.float32) * scales[:, None]).astype(out_dtype)
    assert numpy.array_equal(got, expected, equal_nan=True)


@TYPES
@pytest.mark.parametrize("mode", MODES)
def test_both_arrangements_give_the_values_back(mode, dtype):
    random = numpy.random.default_rng(5)
    sizes = [128, 0, 1, 127, 129]
    rows, k = 400, 160
    x = random.standard_normal((rows, k)).astype(BF16)
    in_rows, in_columns = cadre.quantize(x, mode, sizes, dtype=dtype, columns=True)
    # Half a unit of the last place, of a number that uses less than the whole range of its block.
    bound = 2.0**-4 if dtype == E4M3 else 2.0**-3
    plain = x[: sum(sizes)].astype(numpy.float32)
    for quantised, extra in ((in_rows, {}), (in_columns, {"num_rows": rows})):
        back = cadre.dequantize(quantised, sizes, out_dtype=numpy.float32, **extra)
        assert not back[sum(sizes) :].any()
        back = back[: sum(sizes)]
        least = numpy.abs(plain).max() * (2.0**-9 if dtype == E4M3 else 2.0**-16)
        assert (numpy.abs(back - plain) <= bound * numpy.abs(plain) + least).all()


@pytest.mark.parametrize("mode", MODES)
def test_weights_and_their_transposed_copy(mode):
    random = numpy.random.default_rng(6)
    w = random.standard_normal((3, 130, 200)).astype(numpy.float32)
    in_rows, turned = cadre.quantize(w, mode, columns=True)
    assert turned.data.shape == (3, 200, 130) and not turned.columns
    for quantised, plain in ((in_rows, w), (turned, w.transpose(0, 2, 1))):
        back = cadre.dequantize(quantised, out_dtype=numpy.float32)
        assert (numpy.abs(back - plain) <= 2.0**-4 * numpy.abs(plain) + numpy.abs(w).max() * 2.0**-9).all()
    if mode in ("tensor", "block_128"):
        assert numpy.array_equal(
            turned.data.view(numpy.uint8), in_rows.data.view(numpy.uint8).transpose(0, 2, 1)
        )


def test_blocks_begin_at_each_groups_first_row():
    random = numpy.random.default_rng(7)
    x = random.standard_normal((300, 96)).astype(BF16)
    among = cadre.quantize(x, "mx", [37, 200, 63], rows=False, columns=True)
    alone = cadre.quantize(x[37:237], "mx", rows=False, columns=True)
    first, lines = 64, 2  # columns and lines of the group before
    assert among.scales.dtype == E8M0
    assert numpy.array_equal(among.scales.view("u1")[lines : lines + 7], alone.scales.view("u1")[:7])
    codes = among.data.view("u1")[:, first : first + 200]
    assert numpy.array_equal(codes, alone.data.view("u1")[:, :200])


def test_gather_weight_and_activation_are_made_on_the_way():
    random = numpy.random.default_rng(8)
    x = random.standard_normal((40, 128)).astype(numpy.float32)
    source = random.integers(-1, 40, 70).astype(numpy.int32)
    weight = random.uniform(0.5, 2, 70).astype(numpy.float32)
    got = cadre.quantize(x, "block_128", source_row=source, row_scale=weight, activation="swiglu")
    gate, up = x[source, :64].astype(float), x[source, 64:].astype(float)
    expected = gate / (1 + numpy.exp(-gate)) * up * weight[:, None]
    expected[source < 0] = 0
    back = cadre.dequantize(got, out_dtype=numpy.float32)
    assert (numpy.abs(back - expected) <= 2.0**-4 * numpy.abs(expected) + got.scales * 2.0**-9).all()


BAD = {
    "f64": (lambda x: cadre.quantize(x.astype(float), "row"), TypeError, "quantize: x.dtype = float64"),
    "mode": (lambda x: cadre.quantize(x, "block"), ValueError, "quantize: mode = 'block', expected 'tensor'"),
    "dtype": (lambda x: cadre.quantize(x, "row", dtype="f4"), TypeError, "quantize: dtype = 'f4', expected float8"),
    "scales of a mode": (
        lambda x: cadre.quantize(x, "row", scale_dtype=E8M0),
        TypeError,
        "quantize: rows.scales.dtype = e8m0, expected f32",
    ),
    "sizes": (
        lambda x: cadre.quantize(x, "row", [3, 9]),
        ValueError,
        r"quantize: sum of group_sizes\[0..1\] = 3 \+ 9, expected at most m = 8",
    ),
    "index": (
        lambda x: cadre.quantize(x, "row", source_row=numpy.array([0, 8])),
        ValueError,
        r"quantize: source_row\[1\] = 8, expected -1 or 0 to x.shape\[0\] - 1 = 7",
    ),
    "odd gate": (
        lambda x: cadre.quantize(x, "row", activation="swiglu"),
        ValueError,
        r"quantize: x.shape\[1\] = 5, expected an even number",
    ),
    "floor": (lambda x: cadre.quantize(x, "row", amax_floor=-1), ValueError, "quantize: amax_floor = -1, expected 0"),
    "copy without its rows": (
        lambda x: cadre.dequantize(cadre.quantize(x, "row", rows=False, columns=True)),
        ValueError,
        "dequantize: num_rows = None, expected the number of rows",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call(numpy.ones((8, 5), numpy.float32))
