"""Errors speak of the op and the arguments that the user wrote; an argument in another library's place is none that is dropped."""

import cadre.jax as cj
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from cadre.jax import ejkernel, megablox
from jax import lax

LHS, RHS, SIZES = oracle.normal(1, 10, 5), oracle.normal(2, 3, 5, 4), jnp.array([4, 0, 5])
GATE_UP, DOWN = oracle.normal(3, 3, 5, 8), oracle.normal(4, 3, 4, 5)

FAULTS = {
    "weight's rank": (
        lambda: cj.grouped_linear(LHS, RHS[0], SIZES),
        r"grouped_linear: weight.shape = \(5, 4\), expected \[g, n, k\]",
    ),
    "weight's k": (
        lambda: cj.grouped_linear(LHS, RHS, SIZES),
        "grouped_linear: weight.k = 4, expected x.k = 5",
    ),
    "x's rank": (
        lambda: cj.grouped_linear(LHS[0], RHS, SIZES),
        r"grouped_linear: x.shape = \(5,\), expected \[m, k\]",
    ),
    "number of weights": (
        lambda: cj.grouped_linear(LHS, RHS[:2], SIZES, transpose_weight=False),
        r"grouped_linear: group_sizes.shape\[0\] = 3, expected exactly weight.shape\[0\] = 2",
    ),
    "linear's bias": (
        lambda: cj.grouped_linear(LHS, RHS, SIZES, RHS[:, 0, :3], transpose_weight=False),
        r"grouped_linear: bias.shape = \(3, 3\), expected \(g, n\) = \(3, 4\)",
    ),
    "mlp's x": (
        lambda: cj.grouped_mlp(LHS[:, :4], GATE_UP, DOWN, SIZES),
        "grouped_mlp: gate_up.k = 5, expected x.k = 4",
    ),
    "mlp's down": (
        lambda: cj.grouped_mlp(LHS, GATE_UP, DOWN[:, :3], SIZES),
        "grouped_mlp: down.k = 3, expected hidden.k = 4",
    ),
    "mlp's number of down": (
        lambda: cj.grouped_mlp(LHS, GATE_UP, DOWN[:2], SIZES),
        r"grouped_mlp: group_sizes.shape\[0\] = 3, expected exactly down.shape\[0\] = 2",
    ),
    "k of ejKernel's form": (
        lambda: ejkernel.grouped_matmul(LHS, RHS[:, :4], SIZES),
        "grouped_matmul: rhs.k = 4, expected lhs.k = 5",
    ),
    "rows of ejKernel's form": (
        lambda: ejkernel.transposed_grouped_matmul(LHS.T, LHS[:9], SIZES),
        "transposed_grouped_matmul: rhs.m = 9, expected lhs.m = 10",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_names_the_op_that_was_called(name):
    call, message = FAULTS[name]
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_an_array_is_no_tile():
    for op in (megablox.gmm, ejkernel.grouped_matmul):
        with pytest.raises(TypeError, match=r"tiling\[1\] is an array, expected an integer"):
            op(LHS, RHS, SIZES, tiling=(128, jnp.array(128), 128))
        op(LHS, RHS, SIZES, tiling=(128, np.int64(128), 128))


def test_an_algorithm_of_lax_is_refused_by_name():
    algorithm = lax.DotAlgorithm(np.float16, np.float16, np.float32)
    for precision in (algorithm, (algorithm, algorithm)):
        with pytest.raises(NotImplementedError, match=r"gmm: precision = DotAlgorithm\(.*float16"):
            cj.gmm(LHS, RHS, SIZES, precision=precision)
