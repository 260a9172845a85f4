"""vmap over any axis and any subset of operands, nested, and mixed with derivatives."""

import itertools

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest

B, M, K, N, G = 3, 11, 5, 4, 3
SIZES = jnp.array([[4, 0, 5], [1, 2, 3], [0, 0, 0]])


def batched(x, axis):
    """B scaled copies along `axis`, or x itself."""
    if axis is None:
        return x
    return jnp.stack([x * (i + 1) for i in range(B)], axis)


AXES = [
    a
    for a in itertools.product([None, 0, 2], [None, 0, 3], [None, 0, 1])
    if any(x is not None for x in a)
]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_gmm_over_any_axes(axes):
    lhs, rhs = batched(oracle.normal(1, M, K), axes[0]), batched(oracle.normal(2, G, K, N), axes[1])
    sizes = SIZES[0] if axes[2] is None else jnp.moveaxis(SIZES, 0, axes[2])
    oracle.close(
        jax.vmap(cj.gmm, axes)(lhs, rhs, sizes), jax.vmap(oracle.gmm, axes)(lhs, rhs, sizes)
    )


def test_group_offset_can_be_batched():
    lhs, rhs, offsets = oracle.normal(1, M, K), oracle.normal(2, 1, K, N), jnp.arange(3)
    ours = jax.vmap(lambda o: cj.gmm(lhs, rhs, SIZES[1], group_offset=o))(offsets)
    for i in range(3):
        oracle.close(ours[i], oracle.gmm(lhs, rhs, SIZES[1], offset=i))


@pytest.mark.parametrize("axes", [(0, None, 0), (None, 1, None), (1, 1, 0)], ids=str)
def test_tgmm_over_any_axes(axes):
    lhs, rhs = batched(oracle.normal(1, M, K), axes[0]), batched(oracle.normal(2, M, N), axes[1])
    sizes = SIZES[0] if axes[2] is None else SIZES
    oracle.close(
        jax.vmap(cj.tgmm, axes)(lhs, rhs, sizes), jax.vmap(oracle.tgmm, axes)(lhs, rhs, sizes)
    )


def nested(f):
    return jax.vmap(jax.vmap(f, (None, 2, None)), (0, None, 0))


def test_nested_over_different_operands():
    lhs, rhs = batched(oracle.normal(1, M, K), 0), batched(oracle.normal(2, G, K, N), 2)
    oracle.close(nested(cj.gmm)(lhs, rhs, SIZES), nested(oracle.gmm)(lhs, rhs, SIZES))


def test_gradient_of_vmap_sums_over_what_was_shared():
    lhs, rhs = batched(oracle.normal(1, M, K), 0), batched(oracle.normal(2, G, K, N), 2)
    loss = lambda f: lambda a, b: jnp.sin(nested(f)(a, b, SIZES)).sum()
    gradients = jax.jit(jax.grad(loss(cj.gmm), (0, 1)))(lhs, rhs)
    oracle.all_close(gradients, oracle.on_host(jax.grad(loss(oracle.gmm), (0, 1)))(lhs, rhs))


def test_vmap_of_gradient():
    lhs, rhs, bias = (
        batched(oracle.normal(1, M, K), 0),
        oracle.normal(2, G, K, N),
        batched(oracle.normal(3, G, N), 1),
    )
    ours = lambda a, b, c, s: jnp.sin(cj.gmm(a, b, s, bias=c)).sum()
    expected = lambda a, b, c, s: jnp.sin(oracle.gmm(a, b, s) + oracle.bias_rows(M, c, s)).sum()
    mapped = lambda f: jax.vmap(jax.grad(f, (0, 1, 2)), (0, None, 1, 0))(lhs, rhs, bias, SIZES)
    oracle.all_close(mapped(ours), oracle.on_host(mapped)(expected))


SHARED_TYPES = [(jnp.float16, 2**-10), (jnp.bfloat16, 2**-8)]


@pytest.mark.parametrize("dtype, tolerance", SHARED_TYPES, ids=["f16", "bf16"])
@pytest.mark.parametrize("shared", ["lhs", "rhs", "bias"])
def test_gradient_of_a_shared_operand_is_rounded_once(shared, dtype, tolerance):
    """It is a sum over the batch: rounding each entry would cost accuracy, and in f16 the sum itself."""
    sizes, entries = jnp.array([8]), 64
    values = {
        "lhs": oracle.normal(1, entries, 8, K, dtype=dtype),
        "rhs": oracle.normal(2, entries, 1, K, N, dtype=dtype),
        "bias": oracle.normal(3, entries, 1, N, dtype=dtype),
    }
    values[shared] = values[shared][0]
    weights = oracle.normal(4, entries, 8, N, dtype=jnp.float32)
    axes = [None if name == shared else 0 for name in values]

    def loss(product, cast):
        def of(**operands):
            arrays = [cast(operands[name]) for name in values]
            return (jax.vmap(product, axes)(*arrays) * weights).sum()

        return of

    ours = lambda x, w, b: cj.gmm(x, w, sizes, bias=b, preferred_element_type=jnp.float32)
    theirs = lambda x, w, b: oracle.gmm(x, w, sizes) + b
    gradient = jax.grad(lambda v: loss(ours, lambda x: x)(**{**values, shared: v}))(values[shared])
    expected = jax.grad(
        lambda v: loss(theirs, lambda x: x.astype(jnp.float64))(**{**values, shared: v})
    )(values[shared].astype(jnp.float64))
    assert gradient.dtype == dtype
    oracle.close(gradient, expected, tolerance)


def test_partial_gradients_may_be_beyond_the_type():
    """160000 and -160000 fit no f16; their sum over the batch does."""
    lhs = jnp.stack([jnp.full((4, K), 200.0), jnp.full((4, K), -200.0)]).astype(jnp.float16)
    rhs, sizes = jnp.ones((1, K, N), jnp.float16), jnp.array([4])
    product = lambda x, w: cj.gmm(x, w, sizes, preferred_element_type=jnp.float32)
    gradient = jax.grad(lambda w: 200 * jax.vmap(product, (0, None))(lhs, w).sum())(rhs)
    oracle.close(gradient, jnp.zeros((1, K, N)))
