"""Operands quantised as qwix does it, through a stand-in with QArray's fields: products against those of the values they stand for.
test_jax_tokamax.py has the real ones."""

import dataclasses
import functools
from typing import Any

import cadre.jax as cj
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

SIZES = [3, 0, 129, 1, 33]
G, M, K, N = len(SIZES), 170, 96, 64  # four rows are tail
RNG = np.random.default_rng(4)
TYPES = {"int8": jnp.int8, "int4": jnp.int4, "e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}
#: Scales of weights [g, k, n] that the sums are multiplied by.
OUTER = {"expert and column": (G, 1, N), "column": (1, 1, N), "expert": (G, 1, 1), "one": (1, 1, 1), "tiles": (G, 1, N // 8)}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["qvalue", "scale", "zero_point"], meta_fields=["qtype"]
)
@dataclasses.dataclass
class QArray:
    qvalue: Any
    scale: Any
    zero_point: Any = None
    qtype: Any = None
    shape = property(lambda self: self.qvalue.shape)
    ndim = property(lambda self: self.qvalue.ndim)


def spread(scale, shape):
    for axis, size in enumerate(shape):
        scale = np.repeat(scale, size // scale.shape[axis], axis=axis)
    return scale


def quantised(shape, scale_shape, kind, scale_dtype=np.float32, zero_point=False):
    """(QArray, its values in f64)"""
    codes = jnp.asarray(RNG.integers(-7, 8, shape) if kind.startswith("int") else RNG.standard_normal(shape), TYPES[kind])
    scale = jnp.asarray(RNG.uniform(0.25, 2, scale_shape), scale_dtype)
    values, zeros = np.asarray(codes, "f8"), None
    if zero_point:
        zeros = jnp.asarray(RNG.integers(-3, 4, scale_shape), TYPES[kind])
        values = values - spread(np.asarray(zeros, "f8"), shape)
    return QArray(codes, scale, zeros), values * spread(np.asarray(scale, "f8"), shape)


def plain(*shape, dtype=jnp.bfloat16):
    array = jnp.asarray(RNG.standard_normal(shape), dtype)
    return array, np.asarray(array, "f8")


def close(out, expected, magnitude, k=K):
    oracle.assert_close(np.asarray(out), expected, magnitude, k)


@pytest.mark.parametrize("scale_shape", OUTER.values(), ids=OUTER)
@pytest.mark.parametrize("kind", TYPES)
def test_weights_alone(kind, scale_shape):
    (lhs, lhs_values), (rhs, rhs_values) = plain(M, K), quantised((G, K, N), scale_shape, kind)
    out = jax.jit(cj.ragged_dot)(lhs, rhs, jnp.array(SIZES))
    assert out.dtype == jnp.float32  # that of the scales
    expected = oracle.gmm(lhs_values, rhs_values, SIZES)
    close(out, *expected, K + 2)
    bf16 = cj.ragged_dot(lhs, rhs, jnp.array(SIZES), preferred_element_type="bfloat16")
    close(bf16, *expected, K + 2)


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("int8", "e4m3")])
@pytest.mark.parametrize("scale_shape", OUTER.values(), ids=OUTER)
def test_both_operands(kinds, scale_shape):
    lhs, lhs_values = quantised((M, K), (M, 1), kinds[0])
    rhs, rhs_values = quantised((G, K, N), scale_shape, kinds[1])
    out = jax.jit(cj.ragged_dot)(lhs, rhs, jnp.array(SIZES))
    close(out, *oracle.gmm(lhs_values, rhs_values, SIZES), K + 3)


@pytest.mark.parametrize("inner, zero_point", [(K, False), (K // 32, False), (1, True)])
def test_what_varies_along_k_is_dequantised(inner, zero_point):
    lhs, lhs_values = plain(M, K, dtype=jnp.float32)
    rhs, rhs_values = quantised((G, K, N), (G, inner, N), "int8", zero_point=zero_point)
    out = jax.jit(cj.ragged_dot)(lhs, rhs, jnp.array(SIZES))
    close(out, *oracle.gmm(lhs_values, rhs_values, SIZES), K + 2)


def test_weights_stored_the_other_way_and_groups_along_k():
    numbers = jax.lax.RaggedDotDimensionNumbers
    (lhs, lhs_values), (rhs, rhs_values) = plain(M, K), quantised((G, N, K), (G, N, 1), "int8")
    transposed = numbers((((1,), (2,)), ((), ())), (0,), (0,))
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True)
    close(cj.ragged_dot_general(lhs, rhs, jnp.array(SIZES), transposed), expected, magnitude, K + 2)
    close(cj.gmm(lhs, rhs, SIZES, transpose_rhs=True), expected, magnitude, K + 2)
    rhs, rhs_values = quantised((M, N), (M, 1), "int8")
    inner = numbers((((0,), (0,)), ((), ())), (0,), ())
    expected, magnitude = oracle.tgmm(lhs_values, rhs_values, SIZES)
    close(cj.ragged_dot_general(lhs, rhs, jnp.array(SIZES), inner), expected, magnitude, max(SIZES) + 2)


def test_local_groups_bias_and_existing_rows():
    (lhs, lhs_values), (rhs, rhs_values) = plain(M, K), quantised((2, K, N), (2, 1, N), "int8")
    bias, kept = RNG.standard_normal((2, N)).astype("f4"), np.full((M, N), 7, "f4")
    out = jax.jit(cj.gmm)(lhs, rhs, jnp.array(SIZES), group_offset=jnp.array(2), bias=bias, existing_out=kept)
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, group_offset=2, bias=bias)
    begin, end = sum(SIZES[:2]), sum(SIZES[:4])
    close(out[begin:end], expected[begin:end], magnitude[begin:end], K + 3)
    assert (np.delete(out, np.s_[begin:end], axis=0) == 7).all()


@pytest.mark.parametrize("kind", ["int8", "e4m3"])
def test_tail_rows_are_zero_whatever_scales_they_have(kind):
    lhs, _ = quantised((M, K), (M, 1), kind)
    lhs.scale = lhs.scale.at[sum(SIZES) :].set(jnp.nan)
    rhs, _ = quantised((G, K, N), (G, 1, N), kind)
    rhs.scale = rhs.scale.at[1].set(jnp.nan)  # nobody's
    out = np.asarray(cj.ragged_dot(lhs, rhs, jnp.array(SIZES)))
    assert np.isfinite(out).all() and not out[sum(SIZES) :].any() and out[: sum(SIZES)].any()


PAIRS = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")]


@pytest.mark.parametrize("product", [cj.gmm, cj.ragged_dot], ids=["gmm", "ragged_dot"])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_fp8_without_scales_has_scale_1(types, product):
    values = [RNG.standard_normal(shape) for shape in ((M, K), (G, K, N))]
    lhs, rhs = (jnp.asarray(each, TYPES[kind]) for each, kind in zip(values, types))
    lhs_scale, rhs_scale = (jnp.asarray(RNG.uniform(0.25, 2, shape), "f4") for shape in ((M, 1), (G, 1, N)))
    plain_lhs, plain_rhs = np.asarray(lhs, "f8"), np.asarray(rhs, "f8")
    out = product(lhs, QArray(rhs, rhs_scale), jnp.array(SIZES))
    close(out, *oracle.gmm(plain_lhs, plain_rhs * np.asarray(rhs_scale), SIZES), K + 2)
    out = product(QArray(lhs, lhs_scale), rhs, jnp.array(SIZES))
    close(out, *oracle.gmm(plain_lhs * np.asarray(lhs_scale), plain_rhs, SIZES), K + 2)


@pytest.mark.parametrize("product", [cj.gmm, cj.ragged_dot], ids=["gmm", "ragged_dot"])
def test_a_scaled_array_beside_a_qarray_is_refused_by_name(product):
    lhs, rhs = quantised((M, K), (M, 1), "e4m3")[0], quantised((G, K, N), (G, 1, N), "e4m3")[0]
    rows = cj.ScaledArray(lhs.qvalue, lhs.scale[:, 0], "row")
    weights = cj.ScaledArray(rhs.qvalue, rhs.scale[:, 0], "row")
    expected = "is a QArray, expected a ScaledArray because the other operand is one"
    with pytest.raises(TypeError, match=f"{product.__name__}: rhs {expected}"):
        product(rows, rhs, jnp.array(SIZES))
    with pytest.raises(TypeError, match=f"{product.__name__}: lhs {expected}"):
        product(lhs, weights, jnp.array(SIZES))


def test_vmap_of_activations():
    rhs, _ = quantised((G, K, N), (G, 1, N), "e4m3")
    lhs, _ = plain(2, M, K)
    out = jax.vmap(lambda x: cj.ragged_dot(x, rhs, jnp.array(SIZES)))(lhs)
    for i in range(2):
        np.testing.assert_array_equal(out[i], cj.ragged_dot(lhs[i], rhs, jnp.array(SIZES)))


@pytest.mark.parametrize("kind", ["int8", "e4m3"])
def test_activations_and_scales_have_gradients(kind):
    lhs, _ = plain(M, K, dtype=jnp.float32)
    rhs, rhs_values = quantised((G, K, N), (G, 1, N), kind)
    dy, dy_values = plain(M, N, dtype=jnp.float32)
    loss = lambda lhs, scale: (cj.ragged_dot(lhs, QArray(rhs.qvalue, scale), jnp.array(SIZES)) * dy).sum()
    dx, dscale = jax.jit(jax.grad(loss, (0, 1)))(lhs, rhs.scale)
    expected, magnitude = oracle.gmm(dy_values, rhs_values, SIZES, transpose_rhs=True)
    close(dx, expected, magnitude, N + 2)
    of_weights, magnitude = oracle.tgmm(np.asarray(lhs, "f8"), dy_values, SIZES)
    codes = np.asarray(rhs.qvalue, "f8")
    expected = (of_weights * codes).sum(1, keepdims=True)
    close(dscale, expected, (magnitude * abs(codes)).sum(1, keepdims=True), K * max(SIZES))


def test_activation_comes_before_rounding():
    (lhs, _), (rhs, _) = plain(M, K), quantised((G, K, N), (G, 1, N), "int8", jnp.bfloat16)
    out = cj.ragged_dot(lhs, rhs, jnp.array(SIZES), activation=jax.nn.relu)
    assert out.dtype == jnp.bfloat16 and (out >= 0).all() and (out > 0).any()


class AsQArray:
    """tokamax's: a value that becomes a QArray."""

    def __init__(self, made):
        self.as_qarray = lambda: made


def test_what_becomes_a_qarray_is_taken():
    (lhs, _), (rhs, _) = plain(M, K), quantised((G, K, N), (G, 1, N), "int8")
    out = cj.ragged_dot(lhs, AsQArray(rhs), jnp.array(SIZES))
    np.testing.assert_array_equal(out, cj.ragged_dot(lhs, rhs, jnp.array(SIZES)))


@dataclasses.dataclass
@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=[])
class SomebodysArray:
    value: Any


REFUSED = {
    "nf4": (lambda q: dataclasses.replace(q, qtype="nf4"), "ragged_dot: rhs is quantised to nf4 with scales of float32"),
    "uint8": (lambda q: dataclasses.replace(q, qvalue=q.qvalue.astype("u1")), "rhs is quantised to uint8 with scales of"),
    "another library's": (SomebodysArray, "rhs is a SomebodysArray, expected an array, a ScaledArray or a QArray"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_taken_is_left_to_the_next_implementation(case):
    change, message = REFUSED[case]
    with pytest.raises(NotImplementedError, match=message):
        cj.ragged_dot(plain(M, K)[0], change(quantised((G, K, N), (G, 1, N), "int8")[0]), jnp.array(SIZES))


def test_shapes_are_named():
    lhs, rhs = plain(M, K)[0], quantised((G, K, N), (G, 1, N), "int8")[0]
    with pytest.raises(TypeError, match=r"ragged_dot: lhs.shape = \(96,\), expected \[m, k\]"):
        cj.ragged_dot(lhs[0], rhs, jnp.array(SIZES))
    with pytest.raises(ValueError, match=r"gmm: rhs.k = 64, expected lhs.k = 96"):
        cj.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    with pytest.raises(ValueError, match=r"gmm: bias.shape = \(5, 3\), expected \(g, n\) = \(5, 64\)"):
        cj.gmm(lhs, rhs, SIZES, bias=jnp.ones((G, 3)))
