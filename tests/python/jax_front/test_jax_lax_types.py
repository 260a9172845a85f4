"""ragged_dot takes the types and precisions that lax takes: its promotion, its refusals, and its own product where cadre has none."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from jax import lax

OTHERS = ("int32", "int16", "int64", "uint8", "bool", "complex64", "float8_e4m3fn", "int4")
SIZES = jnp.array([3, 0, 4], jnp.int32)
PAIRS = [
    *((other, other) for other in OTHERS),
    *((other, "float32") for other in OTHERS),
    *(("int8", other) for other in OTHERS),
    ("int16", "bfloat16"),
    ("uint8", "float16"),
    ("int32", "complex64"),
    ("complex64", "float8_e4m3fn"),
    ("bool", "int4"),
]


def small(seed, *shape, dtype):
    """Whole numbers that every type holds, and whose products and sums they hold, too."""
    low = 0 if dtype in ("bool", "uint8") else -1
    return jnp.asarray(np.random.default_rng(seed).integers(low, 2, shape)).astype(dtype)


def operands(left, right):
    return small(1, 9, 5, dtype=left), small(2, 3, 5, 4, dtype=right)


# lax itself doesn't multiply these on every GPU; complex numbers crash XLA's compiler there (jax 0.11.2).
CPU_ALONE = {"bool", "int4", "float8_e4m3fn", "complex64"}


@pytest.mark.parametrize(
    "left, right",
    [pytest.param(*x, marks=[pytest.mark.cpu] if CPU_ALONE & set(x) else []) for x in PAIRS],
)
def test_what_cadre_does_not_multiply_is_what_lax_makes_of_it(left, right):
    lhs, rhs = operands(left, right)
    out = jax.jit(cj.ragged_dot)(lhs, rhs, SIZES)
    expected = oracle.on_host(lax.ragged_dot)(lhs, rhs, SIZES)
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))


@pytest.mark.parametrize("left, right", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_f16_and_bf16_promote_as_in_lax(left, right):
    lhs, rhs = oracle.normal(1, 9, 5, dtype=left), oracle.normal(2, 3, 5, 4, dtype=right)
    out = cj.ragged_dot(lhs, rhs, SIZES)
    assert out.dtype == lax.ragged_dot(lhs, rhs, SIZES).dtype == jnp.bfloat16
    # Widened and rounded once, where lax rounds the f16 operand to bf16 first.
    exact = oracle.gmm(lhs.astype(jnp.float64), rhs.astype(jnp.float64), SIZES)
    oracle.close(out, exact, 2.0**-8)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "dtype, preferred",
    [
        ("float32", "int32"),
        ("float32", "complex64"),
        ("float32", "float8_e4m3fn"),
        ("float64", "bool"),
        ("int8", "int8"),
        ("int8", "int16"),
        ("int32", "int64"),
        ("int32", "float32"),
        ("bool", "int32"),
    ],
)
def test_results_of_other_types_are_what_lax_makes_of_them(dtype, preferred):
    lhs, rhs = operands(dtype, dtype)
    out = cj.ragged_dot(lhs, rhs, SIZES, preferred_element_type=preferred)
    expected = oracle.on_host(lax.ragged_dot)(lhs, rhs, SIZES, preferred_element_type=preferred)
    assert out.dtype == expected.dtype == jnp.dtype(preferred)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))


@pytest.mark.parametrize(
    "dtype, preferred", [("int32", "int16"), ("int16", "int8"), ("complex64", "bfloat16")]
)
def test_what_lax_refuses_is_refused_in_its_class_and_words(dtype, preferred):
    lhs, rhs = operands(dtype, dtype)
    raised = []
    for op in (lax.ragged_dot, cj.ragged_dot):
        with pytest.raises(Exception) as error:
            jax.eval_shape(lambda op=op: op(lhs, rhs, SIZES, preferred_element_type=preferred))
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]
    assert "must not be narrower" in raised[1][1]


@pytest.mark.cpu  # complex
def test_lax_own_product_has_group_offset_vmap_and_gradients():
    lhs = oracle.normal(1, 9, 5) + 1j * oracle.normal(2, 9, 5)
    rhs = oracle.normal(3, 3, 5, 4)
    part = cj.ragged_dot(lhs, rhs[1:], SIZES, group_offset=1)
    whole = lax.ragged_dot(lhs, rhs, SIZES)
    np.testing.assert_allclose(part, whole.at[:3].set(0), atol=1e-12)

    sizes = jnp.array([[3, 0, 4], [9, 0, 0], [0, 2, 2]])
    mapped = jax.vmap(cj.ragged_dot, (None, None, 0))(lhs, rhs, sizes)
    for out, one in zip(mapped, sizes, strict=True):
        np.testing.assert_allclose(out, lax.ragged_dot(lhs, rhs, one), atol=1e-12)

    loss = lambda op: lambda a, b: (jnp.abs(op(a, b, SIZES)) ** 2).sum()
    ours, theirs = (jax.grad(loss(op), (0, 1))(lhs, rhs) for op in (cj.ragged_dot, lax.ragged_dot))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), ours, theirs)


MODES = {
    "contracting": ((9, 5), (9, 4), (([0], [0]), ([], [])), []),
    "batch": ((9, 5, 2), (9, 2, 4), (([2], [1]), ([0], [0])), []),
}


@pytest.mark.parametrize(
    "dtype", ["int32", "uint8", pytest.param("complex64", marks=pytest.mark.cpu)]
)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_ragged_dot_general_takes_lax_types(mode, dtype):
    left, right, numbers, group = MODES[mode]
    numbers = lax.RaggedDotDimensionNumbers(numbers, [0], group)
    lhs, rhs = small(1, *left, dtype=dtype), small(2, *right, dtype=dtype)
    out = cj.ragged_dot_general(lhs, rhs, SIZES, numbers)
    expected = oracle.on_host(lax.ragged_dot_general)(lhs, rhs, SIZES, numbers)
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))


@pytest.mark.parametrize(
    "precision",
    [
        "high",
        "tensorfloat32",
        "bfloat16_3x",
        lax.Precision.HIGH,
        (lax.Precision.HIGH, lax.Precision.HIGHEST),
        ("high", "default"),
        "BF16_BF16_F32_X3",
        "BF16_BF16_F32_X6",
        lax.DotAlgorithmPreset.BF16_BF16_F32_X9,
    ],
    ids=str,
)
def test_what_asks_for_less_than_f32_accuracy_gets_it(precision):
    lhs, rhs = oracle.normal(1, 9, 5, dtype="float32"), oracle.normal(2, 3, 5, 4, dtype="float32")
    out = cj.ragged_dot(lhs, rhs, SIZES, precision)
    assert (out == cj.ragged_dot(lhs, rhs, SIZES)).all()
    oracle.close(out, oracle.gmm(lhs.astype(float), rhs.astype(float), SIZES), 1e-6)


PRESETS = {"BF16_BF16_F32": "bfloat16", "F16_F16_F32": "float16", "F64_F64_F64": "float64"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_that_names_the_operands_is_what_is_computed(preset):
    dtype = PRESETS[preset]
    lhs, rhs = oracle.normal(1, 9, 5, dtype=dtype), oracle.normal(2, 3, 5, 4, dtype=dtype)
    loss = lambda p: lambda a, b: (cj.ragged_dot(a, b, SIZES, p, jnp.float32) ** 2).sum()
    for precision in (preset, lax.DotAlgorithmPreset[preset]):
        ours = jax.value_and_grad(loss(precision), (0, 1))(lhs, rhs)
        jax.tree.map(
            np.testing.assert_array_equal, ours, jax.value_and_grad(loss(None), (0, 1))(lhs, rhs)
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_of_other_operands_is_refused_with_their_types(preset):
    lhs, rhs = oracle.normal(1, 9, 5, dtype="float32"), oracle.normal(2, 3, 5, 4, dtype="bfloat16")
    with pytest.raises(
        NotImplementedError,
        match=f"ragged_dot: precision = {preset} with operands of float32 and bfloat16, "
        f"expected operands of {PRESETS[preset]}",
    ):
        cj.ragged_dot(lhs, rhs, SIZES, preset)
