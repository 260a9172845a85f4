"""Values of gmm, tgmm and bias_grad against einsums, over types, sizes, layouts and shards."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = [[4, 0, 5], [0, 0, 0], [10, 0, 0], [1, 2, 3], [0, 0, 10]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_gmm_multiplies_each_group(sizes, transpose_rhs):
    lhs = oracle.normal(1, 10, 7)
    rhs = oracle.normal(2, *((3, 5, 7) if transpose_rhs else (3, 7, 5)))
    out = cj.gmm(lhs, rhs, jnp.array(sizes), transpose_rhs=transpose_rhs)
    oracle.close(out, oracle.gmm(lhs, rhs, sizes, transpose_rhs))


@pytest.mark.parametrize("sizes", SIZES)
def test_tgmm_and_bias_grad_sum_each_group(sizes):
    lhs, rhs = oracle.normal(1, 10, 7), oracle.normal(2, 10, 5)
    oracle.close(cj.tgmm(lhs, rhs, jnp.array(sizes)), oracle.tgmm(lhs, rhs, sizes))
    oracle.close(
        cj.bias_grad(rhs, jnp.array(sizes)), oracle.tgmm(jnp.ones((10, 1)), rhs, sizes)[:, 0]
    )


def test_results_of_many_megabytes():
    """Large enough for the large pages that the CPU handlers ask for, and ending within one."""
    lhs, rhs, sizes = oracle.normal(1, 40, 600), oracle.normal(2, 40, 601), [7, 0, 30]
    oracle.close(cj.tgmm(lhs, rhs, jnp.array(sizes)), oracle.tgmm(lhs, rhs, sizes))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_float_types_keep_their_type_and_accuracy(dtype):
    lhs, rhs, sizes = (
        oracle.normal(1, 33, 40, dtype=dtype),
        oracle.normal(2, 4, 40, 9, dtype=dtype),
        [8, 0, 17, 5],
    )
    out = cj.gmm(lhs, rhs, jnp.array(sizes))
    assert out.dtype == jnp.dtype(dtype)
    expected = oracle.gmm(lhs.astype(jnp.float64), rhs.astype(jnp.float64), sizes)
    oracle.close(
        out, expected, 4 * float(jnp.finfo(dtype).eps) + 40 * 2.0**-24 * (dtype != "float64")
    )


def test_mixed_types_and_preferred_element_type():
    lhs, rhs, sizes = (
        oracle.normal(1, 6, 4, dtype=jnp.bfloat16),
        oracle.normal(2, 2, 4, 3, dtype=jnp.float32),
        [2, 4],
    )
    assert cj.gmm(lhs, rhs, jnp.array(sizes)).dtype == jnp.float32
    assert (
        cj.gmm(lhs, rhs, jnp.array(sizes), preferred_element_type=jnp.bfloat16).dtype
        == jnp.bfloat16
    )
    expected = oracle.gmm(lhs.astype(jnp.float64), rhs.astype(jnp.float64), sizes)
    oracle.close(cj.gmm(lhs, rhs, jnp.array(sizes)), expected, 1e-6)


def test_int8_sums_are_exact_past_two_to_the_24():
    k = 3000  # 127 * 127 * 3000 is about 2^25.5
    lhs = jnp.full((2, k), 127, jnp.int8)
    rhs = jnp.full((1, k, 2), 127, jnp.int8).at[0, 0, 1].set(126)
    out = cj.gmm(lhs, rhs, jnp.array([2]))
    assert out.dtype == jnp.int32
    np.testing.assert_array_equal(out, [[127 * 127 * k, 127 * 127 * k - 127]] * 2)


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_group_sizes_reach_the_kernels_in_their_own_type(dtype):
    operands = oracle.normal(1, 9, 3), oracle.normal(2, 3, 3, 2), jnp.array([4, 0, 5]).astype(dtype)
    (call,) = [x for x in jax.make_jaxpr(cj.gmm)(*operands).eqns if x.primitive.name == "cadre_gmm"]
    assert call.invars[2].aval.dtype == dtype


@pytest.mark.cpu
def test_a_size_above_an_int64_is_named_as_it_is():
    sizes = jnp.array([4, 2**64 - 1, 5], jnp.uint64)
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match="18446744073709551615|2\\^63"
    ):
        jax.block_until_ready(cj.gmm(oracle.normal(1, 9, 3), oracle.normal(2, 3, 3, 2), sizes))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_narrow_sizes_of_elements_with_many_rows(dtype):
    """100 elements of 3 rows each: more than an int8 or uint8 counts."""
    lhs, rhs = oracle.normal(1, 120, 3, 4), oracle.normal(2, 2, 4, 5)
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (0,), (0,))
    out = cj.ragged_dot_general(lhs, rhs, np.array([100, 15], dtype), numbers)
    expected = oracle.gmm(lhs.reshape(360, 4), rhs, [300, 45])
    oracle.close(out, expected.reshape(120, 3, 5))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_group_sizes_of_any_integer_type(dtype):
    lhs, rhs = oracle.normal(1, 300, 3), oracle.normal(2, 3, 3, 2)
    sizes = np.array([100, 100, 100], dtype)  # their sum doesn't fit int8 or uint8
    oracle.close(cj.gmm(lhs, rhs, sizes), oracle.gmm(lhs, rhs, sizes.astype(np.int64)))
    kept = cj.gmm(lhs, rhs, sizes, group_offset=0, existing_out=jnp.full((300, 2), 7.0))
    oracle.close(kept, oracle.gmm(lhs, rhs, sizes.astype(np.int64)))


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_group_offset_takes_the_local_groups(offset, shape):
    lhs, rhs, sizes = oracle.normal(1, 12, 4), oracle.normal(2, 2, 4, 3), [3, 1, 4, 2]
    traced = jnp.full(shape, offset, jnp.int32)
    out = jax.jit(lambda o: cj.gmm(lhs, rhs, jnp.array(sizes), group_offset=o))(traced)
    oracle.close(out, oracle.gmm(lhs, rhs, sizes, offset=offset))
    weights = cj.tgmm(lhs, lhs[:, :2], jnp.array(sizes), group_offset=traced, num_groups=2)
    oracle.close(weights, oracle.tgmm(lhs, lhs[:, :2], sizes, offset, 2))


def test_nan_stays_in_its_group():
    lhs = (
        oracle.normal(1, 8, 4).at[3].set(jnp.nan).at[7].set(jnp.inf)
    )  # row 3 in group 1; row 7 in the tail
    rhs, sizes = oracle.normal(2, 3, 4, 3), jnp.array([3, 2, 2])
    out = cj.gmm(lhs, rhs, sizes)
    assert np.isnan(out[3]).all() and not np.isnan(np.delete(out, 3, 0)).any()
    weights = cj.tgmm(lhs, lhs, sizes)
    assert np.isnan(weights[1]).any() and not np.isnan(weights[jnp.array([0, 2])]).any()


def test_bias_is_added_to_local_rows_alone():
    lhs, rhs, bias, sizes = (
        oracle.normal(1, 9, 4),
        oracle.normal(2, 2, 4, 3),
        oracle.normal(3, 2, 3),
        [2, 3],
    )
    out = cj.gmm(lhs, rhs, jnp.array(sizes), bias=bias)
    oracle.close(out, oracle.gmm(lhs, rhs, sizes) + oracle.bias_rows(9, bias, sizes))
    weight = jnp.swapaxes(rhs, 1, 2)
    oracle.close(cj.grouped_linear(lhs, weight, jnp.array(sizes), bias), out)


def test_grouped_mlp_is_the_gated_mlp_of_each_expert():
    x, sizes = oracle.normal(1, 9, 4), [2, 0, 6]
    gate_up, down = oracle.normal(2, 3, 4, 10), oracle.normal(3, 3, 5, 4)
    hidden = oracle.gmm(x, gate_up, sizes)
    expected = oracle.gmm(jax.nn.silu(hidden[:, :5]) * hidden[:, 5:], down, sizes)
    oracle.close(cj.grouped_mlp(x, gate_up, down, jnp.array(sizes)), expected)


@settings(max_examples=oracle.examples(25), deadline=None)
@given(st.data())
def test_any_shape(data):
    k, n = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    m = sum(sizes) + data.draw(st.integers(0, 5))
    lhs, rhs = oracle.normal(m, m, k), oracle.normal(n, len(sizes), k, n)
    oracle.close(cj.gmm(lhs, rhs, jnp.array(sizes)), oracle.gmm(lhs, rhs, sizes))
    oracle.close(
        cj.tgmm(lhs, oracle.normal(3, m, n), jnp.array(sizes)),
        oracle.tgmm(lhs, oracle.normal(3, m, n), sizes),
    )
