"""First and second derivatives against those of the einsum oracle, with n != k throughout."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest

SIZES = jnp.array([4, 0, 5, 1, 0, 2, 3, 1])  # eight groups, two empty, a tail of two rows
M, K, N = 18, 5, 3


def operands(transpose_rhs):
    rhs = (8, N, K) if transpose_rhs else (8, K, N)
    return oracle.normal(1, M, K), oracle.normal(2, *rhs), oracle.normal(3, 8, N)


def losses(transpose_rhs):
    def ours(lhs, rhs, bias):
        return jnp.sin(cj.gmm(lhs, rhs, SIZES, transpose_rhs=transpose_rhs, bias=bias)).sum()

    def expected(lhs, rhs, bias):
        return jnp.sin(
            oracle.gmm(lhs, rhs, SIZES, transpose_rhs) + oracle.bias_rows(M, bias, SIZES)
        ).sum()

    return ours, expected


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_gradients_have_the_operands_layout(transpose_rhs):
    ours, expected = losses(transpose_rhs)
    args = operands(transpose_rhs)
    gradients = jax.grad(ours, (0, 1, 2))(*args)
    assert [g.shape for g in gradients] == [a.shape for a in args]
    oracle.all_close(gradients, oracle.on_host(jax.grad(expected, (0, 1, 2)))(*args))


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_forward_mode(transpose_rhs):
    ours, expected = losses(transpose_rhs)
    args = operands(transpose_rhs)
    tangents = tuple(oracle.normal(9, *a.shape) for a in args)
    forward = oracle.on_host(jax.jvp)(expected, args, tangents)
    oracle.all_close(jax.jvp(ours, args, tangents), forward)
    oracle.all_close(jax.jacfwd(ours, 1)(*args), oracle.on_host(jax.jacfwd(expected, 1))(*args))


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_second_derivatives(transpose_rhs):
    ours, expected = losses(transpose_rhs)
    args = operands(transpose_rhs)
    hessian = lambda f: jax.jit(jax.hessian(f, (0, 1, 2)))(*args)
    oracle.all_close(hessian(ours), oracle.on_host(hessian)(expected))
    squared = lambda f: lambda *a: (jax.grad(f)(*a) ** 2).sum()
    second = lambda f: jax.grad(squared(f), (0, 1))(*args)
    oracle.all_close(second(ours), oracle.on_host(second)(expected))


def test_tgmm_and_bias_grad_differentiate():
    lhs, rhs = oracle.normal(1, M, K), oracle.normal(2, M, N)
    ours = lambda a, b: jnp.sin(cj.tgmm(a, b, SIZES)).sum() + jnp.cos(cj.bias_grad(b, SIZES)).sum()
    ones = jnp.ones((M, 1))
    expected = lambda a, b: (
        jnp.sin(oracle.tgmm(a, b, SIZES)).sum() + jnp.cos(oracle.tgmm(ones, b, SIZES)).sum()
    )
    for derivative in (jax.grad, jax.hessian):
        both = lambda f, d=derivative: d(f, (0, 1))(lhs, rhs)
        oracle.all_close(both(ours), oracle.on_host(both)(expected))


def test_sharded_gradients_are_zero_in_foreign_rows():
    lhs, rhs = oracle.normal(1, M, K), oracle.normal(2, 3, K, N)
    ours = lambda a, b: (cj.gmm(a, b, SIZES, group_offset=2) ** 2).sum()
    expected = lambda a, b: (oracle.gmm(a, b, SIZES, offset=2) ** 2).sum()
    lhs_bar, rhs_bar = jax.grad(ours, (0, 1))(lhs, rhs)
    oracle.all_close((lhs_bar, rhs_bar), oracle.on_host(jax.grad(expected, (0, 1)))(lhs, rhs))
    assert (lhs_bar[:4] == 0).all() and (lhs_bar[12:] == 0).all()


WITH_COTANGENTS = {
    "gmm": (lambda a, b, s: cj.gmm(a, b, s), [(M, K), (8, K, N)]),
    "gmm with bias": (lambda a, b, c, s: cj.gmm(a, b, s, bias=c), [(M, K), (8, K, N), (8, N)]),
    "tgmm": (lambda a, b, s: cj.tgmm(a, b, s), [(M, K), (M, N)]),
    "bias_grad": (lambda a, s: cj.bias_grad(a, s), [(M, N)]),
}


@pytest.mark.parametrize("op, shapes", WITH_COTANGENTS.values(), ids=WITH_COTANGENTS)
def test_one_cotangent_for_each_operand(op, shapes):
    operands = [oracle.normal(seed, *shape) for seed, shape in enumerate(shapes)]
    out, pullback = jax.vjp(op, *operands, SIZES)
    *cotangents, sizes_bar = pullback(jnp.ones_like(out))
    assert [x.shape for x in cotangents] == shapes
    assert sizes_bar.dtype == jax.dtypes.float0


def test_backward_gives_bf16_gradients_from_an_f32_result():
    lhs, rhs = (
        oracle.normal(1, M, K, dtype=jnp.bfloat16),
        oracle.normal(2, 8, K, N, dtype=jnp.bfloat16),
    )
    loss = lambda a, b: (cj.gmm(a, b, SIZES, preferred_element_type=jnp.float32) ** 2).sum()
    gradients = jax.grad(loss, (0, 1))(lhs, rhs)
    assert [g.dtype for g in gradients] == [jnp.bfloat16, jnp.bfloat16]
    wide = [x.astype(jnp.float64) for x in (lhs, rhs)]
    expected = jax.grad(lambda a, b: (oracle.gmm(a, b, SIZES) ** 2).sum(), (0, 1))
    oracle.all_close(gradients, oracle.on_host(expected)(*wide), 2.0**-7)
