"""What is no array, no type, no function and no sharding is named with its argument, while the call is traced; lists of what is
traced are arrays."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from cadre.jax import ejkernel, megablox
from jax import lax

LHS, RHS, SIZES = oracle.normal(1, 10, 5), oracle.normal(2, 3, 5, 4), jnp.array([4, 0, 5])
NUMBERS = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
ROWS = {"lhs": LHS, "rhs": RHS, "group_sizes": SIZES}
WEIGHTS = {"lhs": LHS, "rhs": LHS, "group_sizes": SIZES}
TURNED = {"lhs": LHS.T, "rhs": LHS, "group_sizes": SIZES}
LINEAR = {"x": LHS, "weight": RHS, "group_sizes": SIZES, "transpose_weight": False}
MLP = {"x": LHS, "gate_up": RHS, "down": RHS[:, :2], "group_sizes": SIZES}

# op: the function, good arguments, the names of what may be left out, names of its own for some arguments
OPS = {
    "gmm": (cj.gmm, ROWS, ("bias", "group_offset", "existing_out"), {}),
    "tgmm": (cj.tgmm, WEIGHTS, ("group_offset", "existing_out"), {}),
    "bias_grad": (cj.bias_grad, {"dy": LHS, "group_sizes": SIZES}, ("group_offset",), {}),
    "grouped_linear": (cj.grouped_linear, LINEAR, ("bias",), {}),
    "grouped_mlp": (cj.grouped_mlp, MLP, ("group_offset",), {}),
    "ragged_dot": (cj.ragged_dot, ROWS, ("group_offset",), {}),
    "ragged_dot_general": (
        cj.ragged_dot_general,
        {**ROWS, "ragged_dot_dimension_numbers": NUMBERS},
        ("group_offset",),
        {},
    ),
    "megablox gmm": (megablox.gmm, ROWS, ("group_offset", "existing_out"), {}),
    "megablox tgmm": (megablox.tgmm, TURNED, ("group_offset", "existing_out"), {}),
    "grouped_matmul": (ejkernel.grouped_matmul, ROWS, ("group_offset", "existing_out"), {}),
    "transposed_grouped_matmul": (
        ejkernel.transposed_grouped_matmul,
        TURNED,
        ("group_offset", "existing_out"),
        {},
    ),
}
ARRAYS = [
    (op, name)
    for op, (_, good, optional, _) in OPS.items()
    for name in (*good, *optional)
    if name not in ("ragged_dot_dimension_numbers", "transpose_weight")
]
NO_ARRAYS = (None, "abc", object(), {"a": 1}, {1}, [[1, 2], [3]], ["word"], [None])


@pytest.mark.parametrize("op, name", ARRAYS)
def test_what_is_no_array_is_named(op, name):
    function, good, optional, others_names = OPS[op]
    jax.eval_shape(lambda: function(**good))
    for value in NO_ARRAYS[1:] if name in optional else NO_ARRAYS:
        said = f": {others_names.get(name, name)} is a {type(value).__name__}, expected an array"
        with pytest.raises(TypeError, match=said):
            jax.eval_shape(lambda value=value: function(**{**good, name: value}))


@pytest.mark.parametrize("op", [op for op in OPS if op not in ("grouped_mlp",)])
@pytest.mark.parametrize("value", ["abc", 1.5, {"a": 1}, [1], jnp.ones(2, jnp.float32)], ids=str)
def test_what_is_no_type_is_named(op, value):
    function, good, _, _ = OPS[op]
    with pytest.raises(TypeError, match=": preferred_element_type = .*, expected one of float64, "):
        jax.eval_shape(lambda: function(**good, preferred_element_type=value))


@pytest.mark.parametrize("op", ["ragged_dot", "ragged_dot_general", "grouped_mlp"])
def test_what_is_no_function_is_named(op):
    function, good, _, _ = OPS[op]
    with pytest.raises(TypeError, match=f"{op}: activation = 'gelu', expected a function"):
        jax.eval_shape(lambda: function(**good, activation="gelu"))


@pytest.mark.parametrize("op", ["ragged_dot", "ragged_dot_general"])
@pytest.mark.parametrize("value", ["abc", {"a": 1}, ["x", None]], ids=str)
def test_what_is_no_sharding_is_named(op, value):
    function, good, _, _ = OPS[op]
    said = (
        f"{op}: out_sharding is a {type(value).__name__}, expected a NamedSharding or PartitionSpec"
    )
    with pytest.raises(TypeError, match=said):
        jax.eval_shape(lambda: function(**good, out_sharding=value))


def test_sizes_and_offsets_in_lists_may_be_traced():
    """One count for each expert, as a router gives them, and no stack."""
    expected = cj.gmm(LHS, RHS[1:], SIZES, group_offset=1)

    @jax.jit
    def product(first, last, offset):
        return cj.gmm(LHS, RHS[1:], [first, 0, last], group_offset=[offset])

    oracle.close(product(4, 5, 1), expected)
    mapped = jax.vmap(lambda last: cj.ragged_dot(LHS, RHS, (4, jnp.int32(0), last)))
    for last, out in zip((2, 5), mapped(jnp.array([2, 5])), strict=True):
        oracle.close(out, cj.ragged_dot(LHS, RHS, jnp.array([4, 0, last])))


def test_rows_in_a_list_may_be_traced():
    stacked = jax.jit(lambda rows: cj.gmm([rows[0], rows[1]], RHS, [1, 0, 1]))(LHS)
    oracle.close(stacked, cj.gmm(LHS[:2], RHS, [1, 0, 1]))
