"""Faults of shape and type raise at trace time; bad size values raise when a CPU runs them."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from cadre.jax import ejkernel, megablox
from cadre.jax._groups import local_rows
from jax import lax

LHS, RHS, SIZES = oracle.normal(1, 10, 5), oracle.normal(2, 3, 5, 4), jnp.array([4, 0, 5])

AT_TRACE = {
    "rank of lhs": (
        lambda: cj.gmm(LHS[0], RHS, SIZES),
        ValueError,
        r"gmm: lhs.shape = \(5,\), expected \[m, k\]",
    ),
    "rank of rhs": (
        lambda: cj.gmm(LHS, RHS[0], SIZES),
        ValueError,
        r"gmm: rhs.shape = \(5, 4\), expected \[g, k, n\]",
    ),
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
    "rank of sizes": (
        lambda: cj.gmm(LHS, RHS, SIZES[None]),
        ValueError,
        r"group_sizes.shape = \(1, 3\), expected \[num_groups\]",
    ),
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
    "ragged_dot's ranks": (
        lambda: cj.ragged_dot(LHS, LHS, SIZES),
        TypeError,
        r"rhs.shape = \(10, 5\), expected \[g, k, n\]",
    ),
}


def int8(x):
    return x.astype(jnp.int8)


AT_TRACE |= {
    f"{name}, {dtype}": (call(dtype), TypeError, f"preferred_element_type = {dtype}")
    for dtype in ("complex64", "int32", "bool", "float8_e4m3fn")
    for name, call in {
        "bias_grad": lambda t: lambda: cj.bias_grad(LHS, SIZES, preferred_element_type=t),
        "tgmm": lambda t: lambda: cj.tgmm(LHS, LHS, SIZES, preferred_element_type=t),
    }.items()
}
AT_TRACE |= {
    f"{name} of {dtype}": (call(dtype), TypeError, f"{name}.dtype = {dtype}")
    for dtype in ("bool", "uint8", "int4", "int32", "complex64", "float8_e5m2")
    for name, call in {
        "lhs": lambda t: lambda: cj.gmm(jnp.zeros((10, 5), t), RHS, SIZES),
        "rhs": lambda t: lambda: cj.tgmm(LHS, jnp.zeros((10, 4), t), SIZES),
        "dy": lambda t: lambda: cj.bias_grad(jnp.zeros((10, 5), t), SIZES),
        "bias": lambda t: lambda: cj.gmm(LHS, RHS, SIZES, bias=jnp.zeros((3, 4), t)),
    }.items()
}
AT_TRACE |= {
    "bias of an int32 result": (
        lambda: cj.gmm(int8(LHS), int8(RHS), SIZES, bias=jnp.zeros((3, 4))),
        TypeError,
        "bias is given, expected none because the result is int32",
    ),
    "negative num_groups": (
        lambda: cj.tgmm(LHS, LHS, SIZES, num_groups=-1, group_offset=0),
        ValueError,
        "tgmm: num_groups = -1, expected 0 or more",
    ),
    "negative num_groups of bias_grad": (
        lambda: cj.bias_grad(LHS, SIZES, num_groups=-1, group_offset=0),
        ValueError,
        "bias_grad: num_groups = -1, expected 0 or more",
    ),
    "too large num_groups": (
        lambda: cj.tgmm(LHS, LHS, SIZES, num_groups=5, group_offset=0),
        ValueError,
        r"tgmm: num_groups = 5, expected at most group_sizes.shape\[0\] = 3",
    ),
    "num_groups without an offset": (
        lambda: cj.tgmm(LHS, LHS, SIZES, num_groups=2),
        ValueError,
        r"num_groups = 2, expected without a group_offset exactly group_sizes.shape\[0\] = 3",
    ),
    "float num_groups": (
        lambda: cj.tgmm(LHS, LHS, SIZES, num_groups=2.0, group_offset=0),
        TypeError,
        "num_groups = 2.0, expected an integer",
    ),
    "traced num_groups": (
        lambda: cj.tgmm(LHS, LHS, SIZES, num_groups=SIZES[0] + jnp.arange(1)[0], group_offset=0),
        TypeError,
        "expected an integer known at trace time",
    ),
    "existing_out of tgmm, type": (
        lambda: cj.tgmm(LHS, LHS, SIZES, existing_out=jnp.zeros((3, 5, 5), jnp.bfloat16)),
        TypeError,
        "tgmm: existing_out.dtype = bfloat16, expected the result's dtype = float64",
    ),
    "existing_out of tgmm, shape": (
        lambda: cj.tgmm(LHS, LHS, SIZES, existing_out=jnp.zeros((3, 1, 5))),
        ValueError,
        r"existing_out.shape = \(3, 1, 5\), expected \(g, k, n\) = \(3, 5, 5\)",
    ),
    "rank of gate_up": (
        lambda: cj.grouped_mlp(LHS, RHS[0], RHS, SIZES),
        ValueError,
        r"grouped_mlp: gate_up.shape = \(5, 4\), expected \[g, k, 2h\]",
    ),
    "three precisions": (
        lambda: cj.gmm(LHS, RHS, SIZES, precision=(None,) * 3),
        ValueError,
        "one for each operand",
    ),
    "number as precision": (
        lambda: cj.gmm(LHS, RHS, SIZES, precision=7),
        ValueError,
        "precision = 7, expected one that lax knows",
    ),
}

# The drop-in forms.
AT_TRACE |= {
    f"{name}: {fault}": (lambda op=op, call=call: call(op), error, f"{name}: {message}")
    for name, op in (("gmm", megablox.gmm), ("grouped_matmul", ejkernel.grouped_matmul))
    for fault, call, error, message in (
        (
            "rank of lhs",
            lambda f: f(LHS[0], RHS, SIZES),
            ValueError,
            r"lhs.shape = \(5,\), expected \[m, k\]",
        ),
        (
            "rank of rhs",
            lambda f: f(LHS, RHS[0], SIZES),
            ValueError,
            r"rhs.shape = \(5, 4\), expected \[g, k, n\]",
        ),
        (
            "rank of sizes",
            lambda f: f(LHS, RHS, SIZES[0]),
            ValueError,
            r"group_sizes.shape = \(\), expected",
        ),
        ("tiling abc", lambda f: f(LHS, RHS, SIZES, tiling="abc"), TypeError, "tiling = 'abc'"),
        ("two tiles", lambda f: f(LHS, RHS, SIZES, tiling=(1, 2)), ValueError, "tiling = "),
        (
            "no tile",
            lambda f: f(LHS, RHS, SIZES, tiling=(128, 0, 128)),
            ValueError,
            r"tiling\[1\] = 0, expected 1 or more",
        ),
        (
            "float tile",
            lambda f: f(LHS, RHS, SIZES, tiling=(128, 128, 1.5)),
            TypeError,
            r"tiling\[2\] = 1.5, expected an integer",
        ),
        (
            "tiles from a callable",
            lambda f: f(LHS, RHS, SIZES, tiling=lambda m, k, n: (m, k)),
            ValueError,
            "tiling = ",
        ),
        (
            "existing_out's type",
            lambda f: f(LHS, RHS, SIZES, existing_out=np.zeros((10, 4))),
            ValueError,
            "existing_out.dtype = float64, expected preferred_element_type = float32",
        ),
    )
}
AT_TRACE |= {
    f"{name}: {fault}": (lambda op=op, call=call: call(op), ValueError, f"{name}: {message}")
    for name, op in (
        ("tgmm", megablox.tgmm),
        ("transposed_grouped_matmul", ejkernel.transposed_grouped_matmul),
    )
    for fault, call, message in (
        ("rank of lhs", lambda f: f(LHS[0], LHS, SIZES), r"lhs.shape = \(5,\), expected \[k, m\]"),
        (
            "rank of rhs",
            lambda f: f(LHS.T, RHS, SIZES),
            r"rhs.shape = \(3, 5, 4\), expected \[m, n\]",
        ),
        ("two tiles", lambda f: f(LHS.T, LHS, SIZES, tiling=(1, 2)), "tiling = "),
        (
            "too many groups",
            lambda f: f(LHS.T, LHS, SIZES, num_actual_groups=5),
            r"num_actual_groups = 5, expected at most group_sizes.shape\[0\] = 3",
        ),
        (
            "negative number of groups",
            lambda f: f(LHS.T, LHS, SIZES, num_actual_groups=-1),
            "num_actual_groups = -1, expected 0 or more",
        ),
        (
            "existing_out's type",
            lambda f: f(LHS.T, LHS, SIZES, existing_out=jnp.zeros((3, 5, 5), jnp.bfloat16)),
            "existing_out.dtype = bfloat16, expected preferred_element_type = float32",
        ),
    )
}
AT_TRACE |= {
    "no buffers": (
        lambda: ejkernel.grouped_matmul(LHS, RHS, SIZES, input_buffer_count=0),
        ValueError,
        "grouped_matmul: input_buffer_count = 0, expected 1 or more",
    ),
    "precision of ejKernel's form": (
        lambda: ejkernel.grouped_matmul(LHS, RHS, SIZES, precision="BF16_BF16_F32"),
        NotImplementedError,
        "grouped_matmul: precision = BF16_BF16_F32 with operands of float64 and float64",
    ),
}


@pytest.mark.parametrize("name", AT_TRACE)
def test_raises_at_trace_time(name):
    call, error, message = AT_TRACE[name]
    with pytest.raises(error, match=message):
        jax.eval_shape(call)


# Dimension numbers that lax refuses: lhs, rhs, contracting, batch, ragged, group.
LAX_REFUSES = {
    "ragged dim out of range": (LHS, RHS, [[1], [1]], [[], []], [5], [0]),
    "negative ragged dim": (LHS, RHS, [[1], [1]], [[], []], [-2], [0]),
    "no ragged dim": (LHS, RHS, [[1], [1]], [[], []], [], [0]),
    "two ragged dims": (LHS, RHS, [[1], [1]], [[], []], [0, 1], [0]),
    "group dim out of range": (LHS, RHS, [[1], [1]], [[], []], [0], [3]),
    "negative group dim": (LHS, RHS, [[1], [1]], [[], []], [0], [-3]),
    "no group dim": (LHS, RHS, [[1], [1]], [[], []], [0], []),
    "group dim is a contracting one": (LHS, RHS, [[1], [1]], [[], []], [0], [1]),
    "group dim of a contracting mode": (LHS, LHS, [[0], [0]], [[], []], [0], [1]),
    "group dim of a batch mode": (LHS, LHS, [[1], [1]], [[0], [0]], [0], [1]),
    "contracting dim out of range": (LHS, RHS, [[2], [1]], [[], []], [0], [0]),
    "negative contracting dim": (LHS, RHS, [[-1], [1]], [[], []], [0], [0]),
    "contracting dims of rhs out of range": (LHS, RHS, [[1], [3]], [[], []], [0], [0]),
    "contracting dim twice": (LHS, RHS, [[1, 1], [1, 1]], [[], []], [0], [0]),
    "contracting dims of other number": (LHS, RHS, [[1], [1, 2]], [[], []], [0], [0]),
    "contracting sizes": (LHS, RHS, [[1], [2]], [[], []], [0], [0]),
    "batch sizes": (LHS, RHS, [[1], [1]], [[0], [0]], [0], []),
    "batch dims of other number": (LHS, LHS, [[1], [1]], [[0], []], [0], []),
    "batch dim is a contracting one": (LHS, LHS, [[0], [0]], [[0], [0]], [0], []),
    "number of groups": (LHS, RHS[:2], [[1], [1]], [[], []], [0], [0]),
}


@pytest.mark.parametrize("name", LAX_REFUSES)
def test_refuses_the_dimension_numbers_that_lax_refuses(name):
    lhs, rhs, contracting, batch, ragged, group = LAX_REFUSES[name]
    numbers = lax.RaggedDotDimensionNumbers((contracting, batch), ragged, group)
    for op in (lax.ragged_dot_general, cj.ragged_dot_general):
        with pytest.raises(TypeError, match="expect|require"):
            jax.eval_shape(lambda op=op: op(lhs, rhs, SIZES, numbers))


@pytest.mark.parametrize(
    "sizes", [jnp.array(3), jnp.ones((2, 3), int), jnp.ones((1, 3), int), jnp.ones(3)], ids=str
)
@pytest.mark.parametrize("mode", ["rows", "contracting", "batch"])
def test_refuses_the_group_sizes_that_lax_refuses(sizes, mode):
    numbers = {
        "rows": ([[1], [1]], [[], []], [0], [0]),
        "contracting": ([[0], [0]], [[], []], [0], []),
        "batch": ([[1], [1]], [[0], [0]], [0], []),
    }[mode]
    numbers = lax.RaggedDotDimensionNumbers(numbers[:2], *numbers[2:])
    rhs = RHS if mode == "rows" else LHS
    for op in (lax.ragged_dot_general, cj.ragged_dot_general):
        with pytest.raises(TypeError, match="expect|require"):
            jax.eval_shape(lambda op=op: op(LHS, rhs, sizes, numbers))


def test_dimension_numbers_of_another_kind_are_named():
    with pytest.raises(TypeError, match="is a tuple, expected a lax.RaggedDotDimensionNumbers"):
        jax.eval_shape(lambda: cj.ragged_dot_general(LHS, RHS, SIZES, (((1,), (1,)), ((), ()))))


def test_sizes_in_a_list_are_taken():
    oracle.close(cj.gmm(LHS, RHS, [4, 0, 5]), cj.gmm(LHS, RHS, SIZES))
    oracle.close(megablox.gmm(LHS, RHS, [4, 0, 5], LHS.dtype), cj.gmm(LHS, RHS, SIZES))
    oracle.close(megablox.tgmm(LHS.T, LHS, [4, 0, 5], LHS.dtype), cj.tgmm(LHS, LHS, SIZES))


# JAX raises the one or the other, depending on whether it waited for the call.
AT_RUN_TIME = (ValueError, jax.errors.JaxRuntimeError)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "sizes, message",
    [([4, 0, 9], "expected at most m = 10"), ([4, -1, 2], r"group_sizes\[1\] = -1")],
)
def test_bad_sizes_raise_on_a_cpu(sizes, message):
    with pytest.raises(AT_RUN_TIME, match=message):
        jax.block_until_ready(jax.jit(cj.gmm)(LHS, RHS, jnp.array(sizes)))


@pytest.mark.cpu
@pytest.mark.parametrize("offset", [2, -1, 2**31, np.uint32(2**32 - 1), np.int64(2**32)])
@pytest.mark.parametrize(
    "op",
    [
        lambda offset: cj.gmm(LHS, RHS[:2], SIZES, group_offset=offset),
        lambda offset: cj.gmm(LHS, RHS[:2], SIZES, group_offset=offset, existing_out=LHS[:, :4]),
        lambda offset: cj.tgmm(LHS, LHS, SIZES, group_offset=offset, num_groups=2),
        lambda offset: cj.bias_grad(LHS, SIZES, group_offset=offset, num_groups=2),
        lambda offset: cj.ragged_dot(LHS, RHS[:2], SIZES, group_offset=offset),
    ],
    ids=["gmm", "existing_out", "tgmm", "bias_grad", "ragged_dot"],
)
def test_a_bad_group_offset_raises_on_a_cpu(op, offset):
    with pytest.raises(AT_RUN_TIME, match=f"group_offset = {offset}, expected 0 to 1"):
        jax.block_until_ready(op(offset))


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: cj.gmm(LHS, RHS, np.array([2**32 + 4, 0, 5])), "group_sizes"),
        (lambda: cj.gmm(LHS, RHS, [2**32 + 4, 0, 5]), "group_sizes"),
        (lambda: cj.gmm(LHS, RHS[:1], SIZES, group_offset=np.int64(2**32)), "group_offset"),
        (lambda: cj.gmm(LHS, RHS[:1], SIZES, group_offset=2**32), "group_offset"),
    ],
)
def test_numbers_that_do_not_fit_are_not_cut_off_without_x64(call, name):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match=f"{name} = .*4294967.*jax_enable_x64"),
    ):
        jax.block_until_ready(call())


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "sizes, offset, local",
    [
        ([4, 0, 5], 0, range(9)),
        ([4, 0, 5], 2, range(4, 9)),
        ([4, -1, 5], 0, range(4)),
        ([4, -1, 5], 2, range(0)),
        ([4, 0, 7], 0, range(4)),
        ([4, 2**31 - 1, 2**31 - 1], 0, range(4)),
        ([4, 0, 5], -1, range(0)),
        ([4, 0, 5], 3, range(0)),
    ],
)
def test_rows_behind_a_bad_size_count_as_tail(dtype, x64, sizes, offset, local):
    """What existing_out keeps where nobody looks at the sizes, which is on a GPU."""
    with jax.enable_x64(x64):
        sizes = jnp.asarray(np.array(sizes).astype(dtype))
        rows = local_rows(10, sizes, jnp.array(offset, jnp.int32), 3 if offset == 0 else 1)
        assert np.flatnonzero(rows).tolist() == list(local)


def test_check_has_nothing_to_report():
    jax.block_until_ready(cj.gmm(LHS, RHS, SIZES))
    cj.check()
