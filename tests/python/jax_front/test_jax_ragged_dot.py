"""ragged_dot and ragged_dot_general against lax's own."""

import inspect
import types

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from jax import lax

SIZES = jnp.array([4, 0, 5])


def numbers(contract, batch, ragged, group):
    return lax.RaggedDotDimensionNumbers((contract, batch), [ragged], group)


@pytest.mark.parametrize("name", ["ragged_dot", "ragged_dot_general"])
def test_signature_begins_with_lax_own(name):
    ours = inspect.signature(getattr(cj, name)).parameters.values()
    theirs = inspect.signature(getattr(lax, name)).parameters.values()
    plain = [(p.name, p.kind, p.default) for p in ours if p.kind is not p.KEYWORD_ONLY]
    assert plain == [(p.name, p.kind, p.default) for p in theirs]


def test_equals_lax_in_values_and_gradients():
    lhs, rhs = oracle.normal(1, 9, 5), oracle.normal(2, 3, 5, 4)
    oracle.close(cj.ragged_dot(lhs, rhs, SIZES), lax.ragged_dot(lhs, rhs, SIZES))
    loss = lambda f: lambda a, b: jnp.sin(f(a, b, SIZES)).sum()
    args = (lhs, rhs)
    oracle.all_close(
        jax.grad(loss(cj.ragged_dot), (0, 1))(*args), jax.grad(loss(lax.ragged_dot), (0, 1))(*args)
    )


def test_accepts_lax_positional_arguments():
    lhs, rhs = (
        oracle.normal(1, 9, 5, dtype=jnp.bfloat16),
        oracle.normal(2, 3, 5, 4, dtype=jnp.bfloat16),
    )
    out = cj.ragged_dot(lhs, rhs, SIZES, lax.Precision.HIGHEST, jnp.float32, None, None)
    assert out.dtype == jnp.float32
    expected = oracle.on_host(lax.ragged_dot)(lhs, rhs, SIZES, preferred_element_type=jnp.float32)
    oracle.close(out, expected, 1e-6)


def test_group_offset_where_lax_raises():
    lhs, rhs = oracle.normal(1, 9, 5), oracle.normal(2, 1, 5, 4)
    out = cj.ragged_dot(lhs, rhs, SIZES, group_offset=jnp.array([2]))
    oracle.close(out, oracle.gmm(lhs, rhs, SIZES, offset=2))


def test_tokamax_extras():
    lhs, rhs = oracle.normal(1, 9, 5), oracle.normal(2, 3, 5, 4)
    sizes = types.SimpleNamespace(value=SIZES, representative_value=(3, 3, 3))
    out = cj.ragged_dot(
        lhs,
        rhs,
        group_sizes=sizes,
        precision=None,
        preferred_element_type=None,
        activation=jax.nn.relu,
    )
    oracle.close(out, jax.nn.relu(oracle.gmm(lhs, rhs, SIZES)))


def test_the_activation_sees_what_is_not_rounded_yet():
    lhs = oracle.normal(1, 9, 5, dtype=jnp.bfloat16)
    rhs = oracle.normal(2, 3, 5, 4, dtype=jnp.bfloat16)
    seen = []

    def activation(x):
        seen.append(x.dtype)
        return x * 2

    out = cj.ragged_dot(lhs, rhs, SIZES, activation=activation)
    assert seen == [jnp.float32] and out.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "precision",
    [
        None,
        "default",
        "highest",
        lax.Precision.HIGHEST,
        lax.DotAlgorithmPreset.TF32_TF32_F32,
        (lax.Precision.DEFAULT,) * 2,
    ],
)
def test_precisions_that_are_taken(precision):
    lhs, rhs = (
        oracle.normal(1, 9, 5, dtype=jnp.float32),
        oracle.normal(2, 3, 5, 4, dtype=jnp.float32),
    )
    out = cj.ragged_dot(lhs, rhs, SIZES, precision=precision)
    oracle.close(out, oracle.gmm(lhs.astype(jnp.float64), rhs.astype(jnp.float64), SIZES), 2e-3)


@pytest.mark.parametrize(
    "precision, name",
    [(lax.DotAlgorithmPreset.BF16_BF16_BF16, "BF16_BF16_BF16"), ("F16_F16_F16", "F16_F16_F16")],
)
def test_other_precisions_are_refused_by_name(precision, name):
    with pytest.raises(NotImplementedError, match=name):
        cj.ragged_dot(oracle.normal(1, 9, 5), oracle.normal(2, 3, 5, 4), SIZES, precision=precision)


# Each: lhs shape, rhs shape, dimension numbers. lhs's ragged dim is 9 long.
GENERAL = {
    "plain": ((9, 5), (3, 5, 4), numbers([[1], [1]], [[], []], 0, [0])),
    "rhs [g,n,k]": ((9, 5), (3, 4, 5), numbers([[1], [2]], [[], []], 0, [0])),
    "batch": ((2, 9, 5), (2, 3, 5, 4), numbers([[2], [2]], [[0], [0]], 1, [1])),
    "group last": ((9, 5), (5, 4, 3), numbers([[1], [0]], [[], []], 0, [2])),
    "lhs [k,m]": ((5, 9), (3, 5, 4), numbers([[0], [1]], [[], []], 1, [0])),
    "two contracting": ((9, 2, 5), (3, 5, 2, 4), numbers([[1, 2], [2, 1]], [[], []], 0, [0])),
    "two outer dims": ((9, 5), (3, 5, 4, 2), numbers([[1], [1]], [[], []], 0, [0])),
    "contracting": ((9, 5), (9, 4), numbers([[0], [0]], [[], []], 0, [])),
    "contracting, batch": ((2, 9, 5), (2, 9, 4), numbers([[1], [1]], [[0], [0]], 1, [])),
    "ragged batch": ((9, 5, 2), (9, 2, 4), numbers([[2], [1]], [[0], [0]], 0, [])),
}


@pytest.mark.parametrize("name", GENERAL)
def test_general_modes_equal_lax(name):
    lhs_shape, rhs_shape, dims = GENERAL[name]
    lhs, rhs = oracle.normal(1, *lhs_shape), oracle.normal(2, *rhs_shape)
    ours = lambda a, b: cj.ragged_dot_general(a, b, SIZES, dims)
    theirs = lambda a, b: lax.ragged_dot_general(a, b, SIZES, dims)
    # On a GPU XLA refuses lax's own program of the mode with batch dims.
    oracle.close(ours(lhs, rhs), oracle.on_host(theirs)(lhs, rhs))
    assert jax.eval_shape(ours, lhs, rhs) == jax.eval_shape(theirs, lhs, rhs)


RAGGED_BATCH = GENERAL["ragged batch"]


@pytest.mark.parametrize(
    "precision, expected",
    [
        (None, lax.Precision.HIGHEST),
        ("default", lax.Precision.HIGHEST),
        (lax.Precision.HIGHEST, lax.Precision.HIGHEST),
        (lax.DotAlgorithmPreset.F32_F32_F32, lax.Precision.HIGHEST),
        # lax's name for tf32: on a GPU its default is that.
        (lax.DotAlgorithmPreset.TF32_TF32_F32, lax.Precision.DEFAULT),
    ],
    ids=str,
)
def test_a_ragged_batch_is_as_exact_as_asked_for_on_every_device(precision, expected):
    lhs_shape, rhs_shape, dims = RAGGED_BATCH
    args = (oracle.normal(1, *lhs_shape, dtype="f4"), oracle.normal(2, *rhs_shape, dtype="f4"))
    product = lambda a, b: cj.ragged_dot_general(a, b, SIZES, dims, precision=precision)
    for function in (product, jax.grad(lambda *a: product(*a).sum(), (0, 1))):
        dots = [e for e in jax.make_jaxpr(function)(*args).eqns if e.primitive is lax.dot_general_p]
        assert dots and all(e.params["precision"] == (expected,) * 2 for e in dots)
    text = jax.jit(product).lower(*args).as_text()
    assert f"precision = [{expected.name}, {expected.name}]" in text
    lax_result = oracle.on_host(lax.ragged_dot_general)(*args, SIZES, dims)
    oracle.close(product(*args), lax_result, 1e-5 if expected is lax.Precision.HIGHEST else 2e-3)


@pytest.mark.parametrize(
    "lhs_type, rhs_type, preferred",
    [
        ("float32", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", None),
        ("int8", "float32", None),
        ("float64", "bfloat16", "bfloat16"),
        ("int8", "int8", None),
        ("int8", "int8", "float32"),
        ("bfloat16", "bfloat16", "float32"),
    ],
)
@pytest.mark.parametrize("name", ["plain", "contracting", "ragged batch"])
def test_types_are_widened_in_every_mode(name, lhs_type, rhs_type, preferred):
    lhs_shape, rhs_shape, dims = GENERAL[name]
    lhs, rhs = 3 * oracle.normal(1, *lhs_shape), 3 * oracle.normal(2, *rhs_shape)
    lhs, rhs = lhs.astype(lhs_type), rhs.astype(rhs_type)
    out = cj.ragged_dot_general(lhs, rhs, SIZES, dims, preferred_element_type=preferred)
    both_int8 = lhs_type == rhs_type == "int8"
    of_lax = jax.eval_shape(lambda: lax.ragged_dot_general(lhs, rhs, SIZES, dims)).dtype
    assert out.dtype == (preferred or (jnp.int32 if both_int8 else of_lax))
    wide = [x.astype(jnp.float64) for x in (lhs, rhs)]
    exact = oracle.on_host(lax.ragged_dot_general)(*wide, SIZES, dims)
    # Half a unit for the one rounding, and the sums in f32 before it.
    rounding = 0 if jnp.issubdtype(out.dtype, jnp.integer) else float(jnp.finfo(out.dtype).eps) / 2
    oracle.close(out, exact, rounding + 16 * 2.0**-24)


def test_rows_inside_a_ragged_dim_count_as_many_rows():
    lhs, rhs = oracle.normal(1, 9, 2, 5), oracle.normal(2, 3, 5, 4)
    dims = numbers([[2], [1]], [[], []], 0, [0])
    out = cj.ragged_dot_general(lhs, rhs, SIZES, dims)
    oracle.close(out, jax.vmap(lambda x: oracle.gmm(x, rhs, SIZES), 1, 1)(lhs))


def test_sizes_for_each_batch_entry():
    lhs, rhs = oracle.normal(1, 2, 9, 5), oracle.normal(2, 2, 3, 5, 4)
    sizes = jnp.array([[4, 0, 5], [1, 2, 3]])
    out = cj.ragged_dot_general(lhs, rhs, sizes, GENERAL["batch"][2])
    oracle.close(out, jax.vmap(oracle.gmm)(lhs, rhs, sizes))


def test_outer_contracting_dims_are_summed():
    lhs, rhs = oracle.normal(1, 2, 9, 5), oracle.normal(2, 2, 9, 4)
    sizes = jnp.array([[4, 0, 5], [1, 2, 3]])
    out = cj.ragged_dot_general(lhs, rhs, sizes, numbers([[0, 1], [0, 1]], [[], []], 1, []))
    oracle.close(out, jax.vmap(oracle.tgmm)(lhs, rhs, sizes).sum(0))


def test_outer_contracting_dims_are_summed_before_the_result_is_rounded():
    """160000 and -160000 fit no f16; their sum does."""
    lhs = jnp.stack([jnp.full((4, 3), 200.0), jnp.full((4, 3), -200.0)]).astype(jnp.float16)
    rhs = jnp.full((2, 4, 2), 200.0, jnp.float16)
    outer = numbers([[0, 1], [0, 1]], [[], []], 1, [])
    out = cj.ragged_dot_general(lhs, rhs, jnp.array([4]), outer)
    assert out.dtype == jnp.float16
    oracle.close(out, jnp.zeros((1, 3, 2)))
    many = [oracle.normal(seed, 64, 8, 5, dtype=jnp.bfloat16) for seed in (1, 2)]
    out = cj.ragged_dot_general(*many, jnp.array([8]), outer)
    expected = jnp.einsum("bmk,bmn->kn", *(x.astype(jnp.float64) for x in many))
    oracle.close(out, expected[None], 2**-8)


# An element of the ragged dim counts as four rows here, and the first sizes times four aren't 32 bits.
INNER_ROWS = numbers([[2], [1]], [[], []], 0, [0])
INNER_CONTRACTING = numbers([[0, 1], [0, 1]], [[], []], 0, [])


@pytest.mark.cpu
@pytest.mark.parametrize("size", [2**30, 2**30 + 1, -(2**30) + 1, -(2**31), 7])
def test_sizes_that_would_wrap_around_raise_on_a_cpu(size):
    lhs, sizes = jnp.ones((6, 4, 5)), jnp.array([size], jnp.int32)
    at_run_time = (ValueError, jax.errors.JaxRuntimeError)
    with pytest.raises(at_run_time, match="group_sizes"):
        out = cj.ragged_dot_general(lhs, jnp.ones((1, 5, 4)), sizes, INNER_ROWS)
        jax.block_until_ready(out)
    with pytest.raises(at_run_time, match="group_sizes"):
        jax.block_until_ready(cj.ragged_dot_general(lhs, lhs, sizes, INNER_CONTRACTING))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_a_gate_multiplies_the_other_half_of_the_columns(name):
    lhs, rhs = oracle.normal(1, 9, 5), oracle.normal(2, 3, 5, 8)
    function = {"silu": jax.nn.silu, "gelu": jax.nn.gelu, "gelu_tanh": jax.nn.gelu}[name]
    gate, up = jnp.split(oracle.gmm(lhs, rhs, SIZES), 2, axis=1)
    extras = {"fuse_gateup_activation": name, "zero_initialize": True}
    out = cj.ragged_dot(lhs, rhs, SIZES, activation=jnp.tanh, **extras)
    oracle.close(out, jnp.tanh(function(gate) * up))
    half = lambda x: x.astype(jnp.bfloat16)
    # Rounded once, behind the gate.
    out = cj.ragged_dot(half(lhs), half(rhs), SIZES, **extras)
    wide = cj.ragged_dot(half(lhs), half(rhs), SIZES, preferred_element_type=jnp.float32, **extras)
    assert out.dtype == jnp.bfloat16 and (out == half(wide)).all()


def test_gates_that_are_refused_are_named():
    lhs, rhs = oracle.normal(1, 9, 5), oracle.normal(2, 3, 5, 3)
    with pytest.raises(NotImplementedError, match="fuse_gateup_activation = 'relu', expected one"):
        cj.ragged_dot(lhs, rhs, SIZES, fuse_gateup_activation="relu")
    with pytest.raises(ValueError, match="n = 3, expected an even number for fuse_gateup"):
        cj.ragged_dot(lhs, rhs, SIZES, fuse_gateup_activation="silu")
    with pytest.raises(TypeError, match="manual_axis_type is a str, expected a ManualAxisType"):
        cj.ragged_dot(lhs, rhs, SIZES, manual_axis_type="t")
