"""Whether gmm or one of its gradients is right at some sampled rows, in float32: large results are checked there alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SAMPLES = 16
#: Triton's gemms take XLA seconds to tune, for each product; a check needs no tuning at all.
UNTUNED = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}


def _product(a, b):
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _rows(out, left, sizes, weights_of):
    """(sampled rows of the result, what they should be): a row times its group's weights."""
    rows = np.random.default_rng(1).integers(0, left.shape[0], SAMPLES)
    groups = jnp.searchsorted(jnp.cumsum(sizes), rows, side="right")
    expected = lax.map(lambda at: _product(left[at[0]], weights_of(at[1])), (rows, groups))
    return out[rows], expected


def _weight_rows(out, lhs, sizes, dout):
    """The same of row k of group g's weight gradient, for sampled g and k."""
    random = np.random.default_rng(1)
    groups = random.integers(0, out.shape[0], SAMPLES)
    columns = random.integers(0, out.shape[1], SAMPLES)
    ends = jnp.cumsum(sizes)

    def one(at):
        group, column = at
        row = jnp.arange(lhs.shape[0])
        mine = (row >= ends[group] - sizes[group]) & (row < ends[group])
        return _product(jnp.where(mine, lhs[:, column], 0), dout)

    return out[groups, columns], lax.map(one, (groups, columns))


@functools.partial(jax.jit, static_argnames="case", compiler_options=UNTUNED)
def largest_error(case, out, lhs, rhs, sizes, dout):
    """Of the samples: the largest difference, relative to the largest value of its row."""
    if case == "forward":
        actual, expected = _rows(out, lhs, sizes, lambda group: rhs[group])
    elif case == "dlhs":
        actual, expected = _rows(out, dout, sizes, lambda group: rhs[group].T)
    else:
        actual, expected = _weight_rows(out, lhs, sizes, dout)
    scale = jnp.maximum(jnp.abs(expected).max(axis=1), 1e-30)
    return (jnp.abs(actual.astype(jnp.float32) - expected).max(axis=1) / scale).max()


@functools.cache
def compiled_check(case, lhs, rhs, sizes, dout):
    """largest_error for operands of these shapes and types, as a function of (out, lhs, rhs, sizes, dout)."""
    out = {"forward": dout, "dlhs": lhs, "drhs": rhs}[case]
    return largest_error.lower(case, out, lhs, rhs, sizes, dout).compile()
