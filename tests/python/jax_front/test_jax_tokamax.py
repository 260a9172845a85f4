"""ragged_dot against tokamax's own, and inside it as an `implementation`; needs requirements/tokamax.txt."""

import inspect

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from jax import lax

try:
    import tokamax
    from absl import flags

    # It reads its flags from the command line unless somebody has, and pytest's are none of them.
    flags.FLAGS.mark_as_parsed()
except ModuleNotFoundError:
    tokamax = None

pytestmark = pytest.mark.skipif(
    tokamax is None,
    reason='tokamax is not installed; to run this: make test FRONTS="torch jax tokamax"',
)

SIZES = jnp.array([3, 0, 4], jnp.int32)
LHS, RHS = oracle.normal(1, 9, 5, dtype="float32"), oracle.normal(2, 3, 5, 4, dtype="float32")
OURS, THEIRS = (cj.ragged_dot,), "xla"
TOLERANCE = 1e-5

NUMBERS = {
    "rhs [g,n,k]": ((9, 5), (3, 4, 5), (([1], [2]), ([], [])), [0]),
    "ragged contracting": ((9, 5), (9, 4), (([0], [0]), ([], [])), []),
}


def gradients(implementation, **options):
    def loss(lhs, rhs):
        out = tokamax.ragged_dot(lhs, rhs, SIZES, implementation=implementation, **options)
        return (out.astype(jnp.float32) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, (0, 1)))(LHS, RHS)


@pytest.mark.parametrize(
    "activation", [None, jax.nn.relu, jax.nn.swish], ids=["none", "relu", "swish"]
)
def test_values_and_gradients_inside_tokamax(activation):
    ours = gradients(OURS, activation=activation)
    theirs = oracle.on_host(gradients)(THEIRS, activation=activation)
    oracle.all_close(ours, theirs, TOLERANCE)


def test_group_sizes_with_a_representative_value():
    sizes = tokamax.RaggedDotGroupSizes(SIZES, (3, 3, 3))
    out = jax.jit(lambda s: tokamax.ragged_dot(LHS, RHS, s, implementation=OURS))(sizes)
    oracle.close(out, oracle.gmm(LHS, RHS, SIZES), TOLERANCE)


@pytest.mark.parametrize("name", NUMBERS)
def test_general_dimension_numbers_inside_tokamax(name):
    lhs_shape, rhs_shape, dot_numbers, group = NUMBERS[name]
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=dot_numbers, lhs_ragged_dimensions=[0], rhs_group_dimensions=group
    )
    lhs = oracle.normal(3, *lhs_shape, dtype="float32")
    rhs = oracle.normal(4, *rhs_shape, dtype="float32")
    call = lambda which: tokamax.ragged_dot_general(lhs, rhs, SIZES, numbers, implementation=which)
    oracle.close(call(OURS), oracle.on_host(call)(THEIRS), TOLERANCE)


def made_by_qwix(kind, array, dtype, **axes):
    qwix = pytest.importorskip("qwix")
    quantization = pytest.importorskip("tokamax._src.quantization")
    return {"QArray": qwix.quantize, "AsQArray": quantization.AsQArray}[kind](array, dtype, **axes)


AXES = {
    "one scale": ({}, {}),
    "rows and columns": ({"channelwise_axes": (0,)}, {"channelwise_axes": (0, 2)}),
    "along k, too": ({"channelwise_axes": (0,), "tiled_axes": {1: 2}}, {"channelwise_axes": (0,), "tiled_axes": {1: 2}}),
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("kind", ["QArray", "AsQArray"])
@pytest.mark.parametrize("names", [("lhs",), ("rhs",), ("lhs", "rhs")], ids="-".join)
def test_quantised_operands_are_multiplied(names, kind, dtype, axes):
    plain = {"lhs": oracle.normal(3, 9, 6, dtype="float32"), "rhs": oracle.normal(4, 3, 6, 4, dtype="float32")}
    each = dict(zip(("lhs", "rhs"), axes))
    operands = plain | {name: made_by_qwix(kind, plain[name], dtype, **each[name]) for name in names}
    ours = jax.jit(lambda o: tokamax.ragged_dot(**o, group_sizes=SIZES, implementation=OURS))(operands)
    theirs = oracle.on_host(lambda: tokamax.ragged_dot(**operands, group_sizes=SIZES, implementation=THEIRS))()
    oracle.close(ours, theirs, TOLERANCE)
    oracle.close(cj.gmm(**operands, group_sizes=SIZES), theirs, TOLERANCE)


def test_a_zero_point_is_taken_and_nf4_is_left_to_the_next_implementation():
    rhs = made_by_qwix("QArray", RHS, "int8", channelwise_axes=(0, 2), calibration_method="minmax")
    assert rhs.zero_point is not None
    call = lambda which: tokamax.ragged_dot(LHS, rhs, group_sizes=SIZES, implementation=which)
    oracle.close(call(OURS), oracle.on_host(call)(THEIRS), TOLERANCE)
    rhs = made_by_qwix("QArray", RHS, "nf4")
    with pytest.raises(NotImplementedError, match="ragged_dot_general: rhs is quantised to nf4"):
        call(OURS)
    oracle.close(call((*OURS, THEIRS)), call(THEIRS), TOLERANCE)


def test_training_beside_quantised_weights():
    """The gradient of the activations; weights that stay quantised have none."""
    rhs = made_by_qwix("QArray", RHS, "int8", channelwise_axes=(0, 2))

    def gradient(which):
        loss = lambda lhs: (tokamax.ragged_dot(lhs, rhs, group_sizes=SIZES, implementation=which) ** 2).sum()
        return jax.jit(jax.grad(loss))(LHS)

    oracle.close(gradient(OURS), oracle.on_host(gradient)(THEIRS), TOLERANCE)


@pytest.mark.parametrize(
    "keyword, value",
    [("fuse_gateup_activation", "silu"), ("zero_initialize", True), ("manual_axis_type", None)],
)
def test_newer_keywords_inside_tokamax(keyword, value):
    if keyword not in inspect.signature(tokamax.ragged_dot).parameters:
        pytest.skip(f"this tokamax has no {keyword} yet")
    if keyword == "manual_axis_type":
        value = jax.sharding.ManualAxisType()
    out = tokamax.ragged_dot(LHS, RHS, SIZES, implementation=OURS, **{keyword: value})
    expected = oracle.gmm(LHS, RHS, SIZES)
    if keyword == "fuse_gateup_activation":
        gate, up = jnp.split(expected, 2, axis=1)
        expected = jax.nn.silu(gate) * up
    oracle.close(out, expected, TOLERANCE)
