"""Errors speak of the op and the arguments that the user wrote; an argument in another library's place is none that is dropped."""

import cadre.jax as cj
import jax
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


@pytest.mark.parametrize("offset", [2**64 + 1, -(2**70), [2**64 + 1]])
def test_an_offset_beyond_64_bits_is_a_bad_value(offset):
    with pytest.raises(ValueError, match="^gmm: group_offset = .*, expected -9223372036854775808 to"):
        cj.gmm(LHS, RHS, jnp.array([4, 0, 5, 1]), group_offset=offset)


def test_sizes_beyond_64_bits_are_bad_values():
    with pytest.raises(ValueError, match=r"^gmm: group_sizes = .*, expected -9223372036854775808 to"):
        cj.gmm(LHS, RHS, [4, 2**64 + 1, 5])


FLAGS = {
    "gmm": lambda flag: cj.gmm(LHS, RHS, SIZES, flag),
    "grouped_matmul": lambda flag: ejkernel.grouped_matmul(
        LHS, RHS, SIZES, jnp.float32, None, 2, None, flag
    ),
    "megablox": lambda flag: megablox.gmm(LHS, RHS, SIZES, transpose_rhs=flag),
}


@pytest.mark.parametrize("op", FLAGS)
@pytest.mark.parametrize("flag", [jnp.zeros((10, 4)), np.zeros(3), "no", None, 1])
def test_what_is_no_flag_is_not_taken_for_one(op, flag):
    with pytest.raises(TypeError, match=r"transpose_rhs is an? \w+, expected a bool"):
        FLAGS[op](flag)
    FLAGS[op](np.bool_(False))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_the_handler_reads_an_offset_of_every_integer_type(dtype):
    """The Python side sends i32 and i64; a program that was exported elsewhere may send any."""
    cj.register()
    call = jax.ffi.ffi_call("cadre_gmm", jax.ShapeDtypeStruct((10, 4), LHS.dtype))
    attributes = {"transpose_rhs": False, "in_mesh": False}
    numbers = {name: np.int64(0) for name in ("batch_rank", "precision")}
    sizes, offset = jnp.array([1, 4, 0, 5]), jnp.array([1, 99], dtype)[0]
    with jax.default_device(jax.devices("cpu")[0]):
        got = call(LHS, RHS, sizes, offset, **attributes, **numbers)
    assert np.array_equal(got, cj.gmm(LHS, RHS, sizes, group_offset=1))
