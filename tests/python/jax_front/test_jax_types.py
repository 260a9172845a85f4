"""Values and gradients of every pair of types, at shapes around the kernels' tiles, against einsums in f64 and lax.ragged_dot."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from cadre.jax import megablox
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

TYPES = ("float64", "float32", "bfloat16", "float16", "int8")


def values(seed, *shape, dtype):
    """Small enough for f16 and for int8, where they are whole numbers from -8 to 8."""
    whole = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray((3 * whole).clip(-8, 8) if dtype == "int8" else whole).astype(dtype)


def quarters(seed, *shape):
    """A cotangent that every floating type holds exactly."""
    return jnp.asarray(np.random.default_rng(seed).integers(-8, 9, shape) / 4)


def wide(x):
    return x.astype(jnp.float64)


def bound(result, length, *operands):
    """One rounding to the result's type, and `length` products added in f32 unless all is f64."""
    rounding = 0 if result.dtype == jnp.int32 else float(jnp.finfo(result.dtype).eps)
    in_f32 = any(x.dtype != jnp.float64 for x in operands)
    return rounding + (4 + length) * 2.0**-24 * in_f32 + length * 2.0**-52


def check_against(reference, lhs, rhs, dout, all_sizes, transpose_rhs=False, run=oracle.on_host):
    """gmm's values and gradients, one program for all sizes, against those of `reference` in f64."""
    floats = [i for i, x in enumerate((lhs, rhs)) if x.dtype != jnp.int8]

    def weighted(product, number):
        def total(lhs, rhs, sizes):
            out = product(lhs, rhs, sizes)
            return (wide(out) * dout).sum(), out

        # int8 has no gradient: with two of them there are values alone.
        return jax.jit(jax.value_and_grad(total, number, has_aux=True) if number else total)

    ours = weighted(lambda a, b, s: cj.gmm(a, b, s, transpose_rhs=transpose_rhs), floats)
    theirs = run(weighted(reference, floats))
    for sizes in all_sizes:
        sizes = jnp.asarray(sizes, jnp.int32)
        expected = theirs(wide(lhs), wide(rhs), sizes)
        actual = ours(lhs, rhs, sizes)
        if not floats:
            actual, expected = (actual, ()), (expected, ())
        ((_, out), bars), ((_, expected_out), expected_bars) = actual, expected
        oracle.close(out, expected_out, bound(out, lhs.shape[1], lhs, rhs))
        for i, bar, expected_bar in zip(floats, bars, expected_bars, strict=True):
            operand = (lhs, rhs)[i]
            assert bar.dtype == operand.dtype and bar.shape == operand.shape
            # lhs's gradient adds over n, that of rhs over the rows of a group.
            length = dout.shape[1] if i == 0 else dout.shape[0]
            oracle.close(bar, expected_bar, bound(bar, length, lhs, rhs))


def of_shape(m, k, n, num_groups, lhs_type, rhs_type, transpose_rhs):
    stored = (num_groups, n, k) if transpose_rhs else (num_groups, k, n)
    return (
        values(1, m, k, dtype=lhs_type),
        values(2, *stored, dtype=rhs_type),
        quarters(3, m, n),
    )


M, K, N = 300, 136, 72
SIZES = [[64, 0, 65, 1, 127, 43], [0] * 6, [0, 0, 300, 0, 0, 0], [1, 128, 0, 129, 2, 0]]


@pytest.mark.parametrize("rhs_type", TYPES)
@pytest.mark.parametrize("lhs_type", TYPES)
def test_values_and_gradients_equal_an_einsum_in_f64(lhs_type, rhs_type):
    transpose_rhs = lhs_type == rhs_type
    operands = of_shape(M, K, N, 6, lhs_type, rhs_type, transpose_rhs)
    reference = lambda a, b, s: oracle.gmm(a, b, s, transpose_rhs)
    check_against(reference, *operands, SIZES, transpose_rhs)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_and_gradients_equal_lax_in_f64(dtype):
    operands = of_shape(M, K, N, 6, dtype, dtype, False)
    check_against(lax.ragged_dot, *operands, SIZES, run=lambda function: function)


#: Around the edges of the tiles of every kernel, and what 16-byte loads can't take.
LENGTHS = st.sampled_from((1, 7, 8, 63, 64, 65, 72, 127, 128, 129, 192, 255, 256, 257))


@settings(max_examples=oracle.examples(12), deadline=None)
@given(st.data())
def test_any_types_and_any_shape_around_the_tiles(data):
    draw = data.draw
    m, k, n, num_groups = *(draw(LENGTHS) for _ in range(3)), draw(st.integers(1, 9))
    cuts = [
        sorted(draw(st.lists(st.integers(0, m), min_size=num_groups, max_size=num_groups)))
        for _ in range(2)
    ]
    sizes = np.diff(np.array(cuts), axis=1, prepend=0)
    transpose_rhs = draw(st.booleans())
    types = draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))
    reference = lambda a, b, s: oracle.gmm(a, b, s, transpose_rhs)
    operands = of_shape(m, k, n, num_groups, *types, transpose_rhs)
    check_against(reference, *operands, sizes, transpose_rhs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_existing_out_chained_over_three_shards(dtype):
    """Values and gradients of a result that three shards of two experts write one after the other."""
    lhs, rhs, dout = of_shape(M, K, N, 6, dtype, dtype, False)
    existing = values(4, M, N, dtype=dtype)

    def chained(lhs, rhs, existing, sizes):
        for first in (0, 2, 4):
            existing = megablox.gmm(
                lhs,
                rhs[first : first + 2],
                sizes,
                jnp.dtype(dtype),
                group_offset=jnp.array([first], jnp.int32),
                existing_out=existing,
            )
        return existing

    def expected(lhs, rhs, existing, sizes):
        local = oracle.membership(M, sizes).any(1)[:, None]
        return jnp.where(local, oracle.gmm(lhs, rhs, sizes), existing)

    def derivatives(product):
        def total(*args):
            out = product(*args)
            return (wide(out) * dout).sum(), out

        return jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))

    ours, theirs = derivatives(chained), oracle.on_host(derivatives(expected))
    for sizes in SIZES:
        sizes = jnp.array(sizes, jnp.int32)
        (_, out), bars = ours(lhs, rhs, existing, sizes)
        (_, wanted), wanted_bars = theirs(wide(lhs), wide(rhs), wide(existing), sizes)
        oracle.close(out, wanted, bound(out, K, lhs))
        # The three shards' parts of lhs's gradient are added in its own type; each row has one that isn't zero.
        oracle.all_close(bars, wanted_bars, bound(lhs, M, lhs))
        assert (bars[2] == jnp.where(oracle.membership(M, sizes).any(1)[:, None], 0, dout)).all()
