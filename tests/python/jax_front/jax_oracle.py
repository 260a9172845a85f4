"""What the results must be, from plain einsums over every row and group, computed on the host; and random operands."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

HOST = jax.devices("cpu")[0]


def examples(number):
    """How many random cases to try: CADRE_TEST_EXAMPLES times as many as in a quick run."""
    return number * int(os.environ.get("CADRE_TEST_EXAMPLES", "1"))


def on_host(function):
    """`function`, run on the host: a GPU may multiply f32 in tf32, and compiles slowly."""

    @functools.wraps(function)
    def call(*args, **options):
        with jax.default_device(HOST):
            return function(*args, **options)

    return call


@on_host
def membership(m, sizes, offset=0, num_local=None):
    """[m, g] of 0 and 1: row r belongs to local group i."""
    sizes = jnp.asarray(sizes)
    ends = jnp.cumsum(sizes.astype(jnp.int64))
    rows = jnp.arange(m)[:, None]
    inside = (rows >= ends - sizes) & (rows < ends)
    num_local = sizes.shape[0] if num_local is None else num_local
    return jax.lax.dynamic_slice_in_dim(inside, offset, num_local, axis=1)


@on_host
def gmm(lhs, rhs, sizes, transpose_rhs=False, offset=0):
    inside = membership(lhs.shape[0], sizes, offset, rhs.shape[0])
    # Rows outside stay zero even where lhs or a foreign weight isn't finite.
    products = jnp.einsum(
        "mk,gnk->gmn" if transpose_rhs else "mk,gkn->gmn", lhs, rhs, precision="highest"
    )
    return jnp.where(inside.T[:, :, None], products, 0).sum(0)


@on_host
def tgmm(lhs, rhs, sizes, offset=0, num_local=None):
    inside = membership(lhs.shape[0], sizes, offset, num_local)
    return jnp.einsum("mg,mk,mn->gkn", inside.astype(lhs.dtype), lhs, rhs, precision="highest")


@on_host
def bias_rows(m, bias, sizes, offset=0):
    return membership(m, sizes, offset, bias.shape[0]).astype(bias.dtype) @ bias


def normal(seed, *shape, dtype=jnp.float64):
    values = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(values).astype(dtype)


def close(actual, expected, tolerance=1e-9):
    """The largest deviation is below `tolerance` times the largest expected magnitude, and `actual` was made on the tested device."""
    if isinstance(actual, jax.Array):
        assert {x.platform for x in actual.devices()} == {jax.devices()[0].platform}
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not expected.size:
        return
    deviation = np.abs(actual - expected)
    worst = np.unravel_index(
        np.argmax(np.where(np.isnan(deviation), np.inf, deviation)), deviation.shape
    )
    bound = tolerance * max(1.0, np.abs(expected).max())
    assert deviation[worst] <= bound, (
        f"worst at {worst}: {actual[worst]} against {expected[worst]}, allowed {bound}"
    )


def all_close(actual, expected, tolerance=1e-9):
    jax.tree.map(lambda a, e: close(a, e, tolerance), actual, expected)
