"""The NumPy front against the f64 oracle: every dtype, layout, tail, shard, and what it accepts as an array."""

import threading

import cadre
import ml_dtypes
import numpy
import oracle
import pytest

FLOATS = ["float64", "float32", "bfloat16", "float16"]
SIZES = [
    [5],
    [0, 0, 0],
    [7, 0, 1, 12],
    [3, 0, 5, 1, 0, 0, 9, 2],
]
NAN = float("nan")


def dtype_of(name):
    return numpy.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def random(rng, shape, dtype="float64"):
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def compute_of(*arrays):
    return "float64" if any(array.dtype == numpy.float64 for array in arrays) else "float32"


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gmm_is_a_product_for_each_group(rng, dtype, transpose_rhs, sizes):
    m, k, n, g = sum(sizes) + 3, 7, 5, len(sizes)
    lhs = random(rng, (m, k), dtype)
    rhs = random(rng, (g, n, k) if transpose_rhs else (g, k, n), dtype)
    out = cadre.gmm(lhs, rhs, sizes, transpose_rhs=transpose_rhs)
    assert out.dtype == dtype_of(dtype)
    expected, magnitude = oracle.gmm(lhs, rhs, sizes, transpose_rhs=transpose_rhs)
    oracle.assert_close(out, expected, magnitude, k, compute_of(lhs))


@pytest.mark.parametrize("lhs_dtype", FLOATS)
@pytest.mark.parametrize("rhs_dtype", FLOATS)
def test_mixed_dtypes_are_widened(rng, lhs_dtype, rhs_dtype):
    sizes = [4, 0, 6]
    lhs, rhs = random(rng, (10, 9), lhs_dtype), random(rng, (3, 9, 4), rhs_dtype)
    out = cadre.gmm(lhs, rhs, sizes, out_dtype=numpy.float32)
    expected, magnitude = oracle.gmm(lhs, rhs, sizes)
    oracle.assert_close(out, expected, magnitude, 9, compute_of(lhs, rhs))


def test_int8_products_are_exact(rng):
    lhs = rng.integers(-128, 128, (12, 300), dtype=numpy.int8)
    rhs = rng.integers(-128, 128, (2, 300, 3), dtype=numpy.int8)
    out = cadre.gmm(lhs, rhs, [5, 7])
    assert out.dtype == numpy.int32
    expected, _ = oracle.gmm(lhs, rhs, [5, 7])
    numpy.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_epilogue_is_one_formula(rng, dtype):
    sizes, m, k, n = [4, 0, 6], 12, 5, 7
    lhs, rhs = random(rng, (m, k), dtype), random(rng, (3, k, n), dtype)
    epilogue = {
        "alpha": random(rng, 3, "float32"),
        "bias": random(rng, (3, n), dtype),
        "bias_scale": random(rng, m, "float32"),
        "row_scale": random(rng, m, dtype),
    }
    out = cadre.gmm(lhs, rhs, sizes, **epilogue)
    expected, magnitude = oracle.gmm(lhs, rhs, sizes, **epilogue)
    oracle.assert_close(out, expected, magnitude, k, compute_of(lhs))


@pytest.mark.parametrize("beta", [0.5, [0.5, 0.0, -2.0]])
def test_beta_adds_c_and_reads_none_where_it_is_zero(rng, beta):
    sizes, m, k, n = [4, 3, 3], 10, 5, 7
    lhs, rhs, c = random(rng, (m, k)), random(rng, (3, k, n)), random(rng, (m, n))
    betas = numpy.broadcast_to(numpy.asarray(beta), 3)
    rows = numpy.repeat(betas, sizes)
    c[rows == 0] = NAN
    out = cadre.gmm(lhs, rhs, sizes, c=c, beta=beta)
    expected, magnitude = oracle.gmm(lhs, rhs, sizes)
    added = numpy.where(rows[:, None] == 0, 0, rows[:, None] * c)
    oracle.assert_close(out, expected + added, magnitude + abs(added), k, "float64")


def test_accumulate_adds_and_keeps_tail_rows(rng):
    sizes, m = [4, 0, 3], 10
    lhs, rhs, out = random(rng, (m, 5)), random(rng, (3, 5, 6)), random(rng, (m, 6))
    before = out.copy()
    assert cadre.gmm(lhs, rhs, sizes, out=out, accumulate=True) is out
    expected, magnitude = oracle.gmm(lhs, rhs, sizes)
    oracle.assert_close(out, expected + before, magnitude + abs(before), 5, "float64")
    numpy.testing.assert_array_equal(out[7:], before[7:])


@pytest.mark.parametrize("tail", ["zero", "untouched"])
def test_tail_rows_are_zero_or_untouched(rng, tail):
    lhs, rhs = random(rng, (9, 4)), random(rng, (2, 4, 3))
    lhs[6:] = NAN
    out = numpy.full((9, 3), NAN)
    cadre.gmm(lhs, rhs, [2, 4], out=out, tail=tail)
    assert numpy.isfinite(out[:6]).all()
    assert numpy.isnan(out[6:]).all() if tail == "untouched" else (out[6:] == 0).all()


def test_tail_can_be_forbidden(rng):
    lhs, rhs = random(rng, (9, 4)), random(rng, (2, 4, 3))
    cadre.gmm(lhs, rhs, [2, 7], tail="forbid")
    with pytest.raises(ValueError, match=r"gmm: .*group_sizes.* = 6, expected .*9"):
        cadre.gmm(lhs, rhs, [2, 4], tail="forbid")


@pytest.mark.parametrize("group_offset", [0, 1, 3])
def test_a_shard_computes_its_own_groups_alone(rng, group_offset):
    sizes, m = [4, 2, 0, 3, 5], 16
    lhs, rhs = random(rng, (m, 6)), random(rng, (2, 6, 5))
    for i, start, end in oracle.groups_of(sizes, 5):
        if not group_offset <= i < group_offset + 2:
            lhs[start:end] = NAN
    out = cadre.gmm(lhs, rhs, sizes, group_offset=group_offset, out=numpy.full((m, 5), NAN))
    expected, magnitude = oracle.gmm(numpy.nan_to_num(lhs), rhs, sizes, group_offset=group_offset)
    oracle.assert_close(out, expected, magnitude, 6, "float64")
    other = random(rng, (m, 4))
    weights = cadre.tgmm(lhs, other, sizes, group_offset=group_offset, num_groups=2)
    expected, magnitude = oracle.tgmm(
        numpy.nan_to_num(lhs), other, sizes, num_groups=2, group_offset=group_offset
    )
    oracle.assert_close(weights, expected, magnitude, m, "float64")


def test_nan_stays_in_its_group(rng):
    sizes = [3, 4, 3]
    lhs, rhs, other = random(rng, (10, 4)), random(rng, (3, 4, 5)), random(rng, (10, 5))
    lhs[3:7] = NAN
    rhs[1] = numpy.inf
    out = cadre.gmm(lhs, rhs, sizes)
    assert (
        numpy.isfinite(out[:3]).all()
        and numpy.isfinite(out[7:]).all()
        and numpy.isnan(out[3:7]).all()
    )
    weights = cadre.tgmm(lhs, other, sizes)
    assert numpy.isfinite(weights[[0, 2]]).all() and numpy.isnan(weights[1]).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_tgmm_is_the_weight_gradient_of_each_group(rng, dtype, sizes):
    m = sum(sizes) + 2
    lhs, rhs = random(rng, (m, 6), dtype), random(rng, (m, 9), dtype)
    alpha = random(rng, len(sizes), "float32")
    out = cadre.tgmm(lhs, rhs, sizes, alpha=alpha)
    expected, magnitude = oracle.tgmm(lhs, rhs, sizes, alpha=alpha)
    oracle.assert_close(out, expected, magnitude, m, compute_of(lhs))


def test_tgmm_accumulates_into_a_list_in_f32(rng):
    sizes = [3, 0, 5]
    lhs, rhs = random(rng, (8, 6), "bfloat16"), random(rng, (8, 4), "bfloat16")
    main_grads = [random(rng, (6, 4), "float32") for _ in sizes]
    before = numpy.stack(main_grads)
    cadre.tgmm(lhs, rhs, sizes, out=main_grads, accumulate=True)
    expected, magnitude = oracle.tgmm(lhs, rhs, sizes)
    oracle.assert_close(numpy.stack(main_grads), expected + before, magnitude + abs(before), 8)
    numpy.testing.assert_array_equal(main_grads[1], before[1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_bias_grad_sums_rows_and_columns(rng, dtype):
    sizes, m, n = [4, 0, 5], 11, 6
    dy, bias = random(rng, (m, n), dtype), random(rng, (3, n), dtype)
    scale = random(rng, m, "float32")
    dbias, dbias_scale = cadre.bias_grad(dy, sizes, bias=bias, bias_scale=scale)
    expected, magnitude = oracle.bias_grad(dy, sizes, bias_scale=scale)
    oracle.assert_close(dbias, expected, magnitude, m, compute_of(dy))
    expected, magnitude = oracle.bias_scale_grad(dy, bias, sizes)
    oracle.assert_close(dbias_scale, expected, magnitude, n, compute_of(dy))
    accumulated = cadre.bias_grad(
        dy, sizes, out=numpy.ones((3, n), dtype_of(dtype)), accumulate=True
    )
    numpy.testing.assert_array_equal(accumulated[1], numpy.ones(n))


def test_weights_may_be_a_list(rng):
    lhs, rhs = random(rng, (8, 5)), random(rng, (3, 5, 4))
    bias = random(rng, (3, 4))
    listed = cadre.gmm(lhs, [w.copy() for w in rhs], [2, 0, 6], bias=list(bias))
    numpy.testing.assert_array_equal(listed, cadre.gmm(lhs, rhs, [2, 0, 6], bias=bias))


def test_strided_arrays_are_used_in_place(rng):
    sizes = [3, 4]
    lhs = random(rng, (14, 20))[::2, 3:17:2]
    rhs = random(rng, (4, 7, 2)).transpose(2, 1, 0)[:, ::-1]
    wide = numpy.full((7, 9), NAN)
    out = cadre.gmm(lhs, rhs, sizes, out=wide[:, 2:6])
    expected, magnitude = oracle.gmm(lhs, rhs, sizes)
    oracle.assert_close(out, expected, magnitude, 7, "float64")
    assert numpy.isnan(wide[:, :2]).all() and numpy.isnan(wide[:, 6:]).all()


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4"])
def test_sizes_of_every_integer_dtype_and_stride(rng, dtype):
    lhs, rhs = random(rng, (9, 5)), random(rng, (3, 5, 4))
    expected = cadre.gmm(lhs, rhs, [2, 0, 6])
    sizes = numpy.array([2, 99, 0, 99, 6, 99], dtype)
    for given in (sizes[::2].copy(), sizes[::2], sizes[::2][::-1].copy()[::-1]):
        numpy.testing.assert_array_equal(cadre.gmm(lhs, rhs, given), expected)
    broadcast = numpy.broadcast_to(numpy.array([3], dtype), 3)
    numpy.testing.assert_array_equal(
        cadre.gmm(lhs, rhs, broadcast), cadre.gmm(lhs, rhs, [3, 3, 3])
    )


@pytest.mark.parametrize("m, k, n, g", [(0, 3, 4, 2), (5, 0, 4, 2), (5, 3, 0, 2), (0, 0, 0, 1)])
def test_empty_dims_are_valid(rng, m, k, n, g):
    sizes = [m] + [0] * (g - 1)
    bias = random(rng, (g, n))
    out = cadre.gmm(random(rng, (m, k)), random(rng, (g, k, n)), sizes, bias=bias)
    assert out.shape == (m, n)
    if k == 0:
        numpy.testing.assert_array_equal(out, numpy.broadcast_to(bias[0], (m, n)))
    weights = cadre.tgmm(random(rng, (m, k)), random(rng, (m, n)), sizes)
    assert weights.shape == (g, k, n) and (weights[1:] == 0).all()


def test_threads_may_call_at_once(rng):
    lhs, rhs = random(rng, (64, 32)), random(rng, (4, 32, 16))
    sizes = [[16, 16, 16, 16], [0, 64, 0, 0], [1, 2, 3, 4], [60, 0, 0, 4]]
    expected = [cadre.gmm(lhs, rhs, each) for each in sizes]
    wrong = []

    def work(index):
        for _ in range(50):
            if not (cadre.gmm(lhs, rhs, sizes[index]) == expected[index]).all():
                wrong.append(index)
            try:
                cadre.gmm(lhs, rhs, [65 + index, 0, 0, 0])
                wrong.append("no error")
            except ValueError as error:
                # The message is this thread's own.
                if str(65 + index) not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
