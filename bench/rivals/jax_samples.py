"""What gmm or one of its gradients should be at some sampled rows, in float32: large results are checked there alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SAMPLES = 16
#: Triton's gemms take XLA seconds to tune, for each product; a check needs no tuning at all.
UNTUNED = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}


@functools.partial(jax.jit, compiler_options=UNTUNED)
def sampled_rows(left, right, groups, rows):
    """left[row] @ right[groups[row]] in float32."""

    def one(row):
        a, b = left[row].astype(jnp.float32), right[groups[row]].astype(jnp.float32)
        return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)

    return lax.map(one, rows)


@functools.partial(jax.jit, compiler_options=UNTUNED)
def sampled_weights(lhs, dout, groups, where):
    """Row k of group g's weight gradient, for each (g, k) of `where`, in float32."""

    def one(place):
        mask = groups == place[0]
        column = jnp.where(mask, lhs[:, place[1]].astype(jnp.float32), 0.0)
        return jnp.matmul(column, dout.astype(jnp.float32), precision=lax.Precision.HIGHEST)

    return lax.map(one, where)


def expectation(case, lhs, rhs, sizes, dout):
    """(function that picks the sampled part of a result, what it should be)."""
    random = np.random.default_rng(1)
    experts, k, _ = rhs.shape
    groups = jnp.asarray(np.repeat(np.arange(experts), np.asarray(sizes)))
    if case == "drhs":
        where = np.stack([random.integers(0, experts, SAMPLES), random.integers(0, k, SAMPLES)], 1)
        expected = sampled_weights(lhs, dout, groups, jnp.asarray(where))
        return lambda out: out[where[:, 0], where[:, 1]], expected
    rows = jnp.asarray(random.integers(0, lhs.shape[0], SAMPLES))
    if case == "forward":
        expected = sampled_rows(lhs, rhs, groups, rows)
    else:
        expected = sampled_rows(dout, jnp.swapaxes(rhs, 1, 2), groups, rows)
    return lambda out: out[rows], expected


def largest_error(actual, expected):
    """Largest difference, relative to the largest value of its row."""
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected)
    scale = np.maximum(np.abs(expected).max(axis=1), 1e-30)
    return float((np.abs(actual - expected).max(axis=1) / scale).max())
