"""Faults of shape and type raise at trace time; bad size values raise when a CPU runs them."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest

LHS, RHS, SIZES = oracle.normal(1, 10, 5), oracle.normal(2, 3, 5, 4), jnp.array([4, 0, 5])

AT_TRACE = {
    "rank of lhs": (lambda: cj.gmm(LHS[0], RHS, SIZES), ValueError, "lhs.ndim = 1, expected 2"),
    "rank of rhs": (lambda: cj.gmm(LHS, RHS[0], SIZES), ValueError, "rhs.ndim = 2, expected 3"),
    "k": (lambda: cj.gmm(LHS, RHS[:, :4], SIZES), ValueError, "gmm: rhs.k = 4, expected lhs.k = 5"),
    "k, transposed": (
        lambda: cj.gmm(LHS, RHS, SIZES, transpose_rhs=True),
        ValueError,
        "rhs.k = 4, expected lhs.k = 5",
    ),
    "number of sizes": (
        lambda: cj.gmm(LHS, RHS, SIZES[:2]),
        ValueError,
        r"group_sizes.shape\[0\] = 2",
    ),
    "more sizes, no offset": (
        lambda: cj.gmm(LHS, RHS[:2], SIZES),
        ValueError,
        "expected exactly rhs.shape",
    ),
    "float sizes": (
        lambda: cj.gmm(LHS, RHS, SIZES * 1.0),
        TypeError,
        "group_sizes.dtype = float64",
    ),
    "rank of sizes": (lambda: cj.gmm(LHS, RHS, SIZES[None]), ValueError, "group_sizes.ndim = 2"),
    "complex lhs": (lambda: cj.gmm(LHS + 0j, RHS, SIZES), TypeError, "lhs.dtype = complex128"),
    "offset's shape": (
        lambda: cj.gmm(LHS, RHS, SIZES, group_offset=jnp.zeros(2, int)),
        ValueError,
        "group_offset.shape",
    ),
    "offset's type": (
        lambda: cj.gmm(LHS, RHS, SIZES, group_offset=0.5),
        TypeError,
        "group_offset.dtype",
    ),
    "bias": (lambda: cj.gmm(LHS, RHS, SIZES, bias=jnp.zeros((3, 5))), ValueError, "bias.shape"),
    "existing_out": (
        lambda: cj.gmm(LHS, RHS, SIZES, existing_out=LHS),
        ValueError,
        "existing_out.shape",
    ),
    "output type": (
        lambda: cj.gmm(LHS, RHS, SIZES, preferred_element_type=jnp.int32),
        TypeError,
        "int32",
    ),
    "rows of tgmm": (
        lambda: cj.tgmm(LHS, LHS[:9], SIZES),
        ValueError,
        "tgmm: rhs.m = 9, expected lhs.m = 10",
    ),
    "int dy": (lambda: cj.bias_grad(LHS.astype(jnp.int8), SIZES), TypeError, "dy.dtype = int8"),
    "odd gate_up": (
        lambda: cj.grouped_mlp(LHS, RHS[:, :, :3], RHS, SIZES),
        ValueError,
        "an even number",
    ),
    "unknown precision": (
        lambda: cj.gmm(LHS, RHS, SIZES, precision="exact"),
        ValueError,
        "precision = 'exact'",
    ),
    "ragged_dot's ranks": (lambda: cj.ragged_dot(LHS, LHS, SIZES), TypeError, "expected 2 and 3"),
}


@pytest.mark.parametrize("name", AT_TRACE)
def test_raises_at_trace_time(name):
    call, error, message = AT_TRACE[name]
    with pytest.raises(error, match=message):
        jax.eval_shape(call)


@pytest.mark.parametrize(
    "sizes, message",
    [([4, 0, 9], "expected at most m = 10"), ([4, -1, 2], r"group_sizes\[1\] = -1")],
)
def test_bad_sizes_raise_on_a_cpu(sizes, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jax.jit(cj.gmm)(LHS, RHS, jnp.array(sizes)))


def test_bad_group_offset_raises_on_a_cpu():
    with pytest.raises(jax.errors.JaxRuntimeError, match="group_offset = 2, expected 0 to 1"):
        jax.block_until_ready(cj.gmm(LHS, RHS[:2], SIZES, group_offset=jnp.array(2)))


def test_check_has_nothing_to_report_on_a_cpu():
    jax.block_until_ready(cj.gmm(LHS, RHS, SIZES))
    cj.check()
