"""In a profile and in a program's text each op stands under its own name, and so do its gradients."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from cadre.jax import ejkernel, megablox

LHS, RHS = oracle.normal(1, 9, 5, dtype="float32"), oracle.normal(2, 3, 5, 4, dtype="float32")
SIZES = jnp.array([3, 0, 4])
NUMBERS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))

OPS = {
    "gmm": lambda x, w: cj.gmm(x, w, SIZES),
    "tgmm": lambda x, w: cj.tgmm(x, x[:, :4], SIZES),
    "bias_grad": lambda x, w: cj.bias_grad(x, SIZES),
    "grouped_linear": lambda x, w: cj.grouped_linear(x, w, SIZES, transpose_weight=False),
    "grouped_mlp": lambda x, w: cj.grouped_mlp(x, w, w[:, :2], SIZES),
    "ragged_dot": lambda x, w: cj.ragged_dot(x, w, SIZES),
    "ragged_dot_general": lambda x, w: cj.ragged_dot_general(x, w, SIZES, NUMBERS),
    "megablox gmm": lambda x, w: megablox.gmm(x, w, SIZES),
    "megablox tgmm": lambda x, w: megablox.tgmm(x.T, x, SIZES),
    "grouped_matmul": lambda x, w: ejkernel.grouped_matmul(x, w, SIZES),
    "transposed_grouped_matmul": lambda x, w: ejkernel.transposed_grouped_matmul(x.T, x, SIZES),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_and_its_gradient_stand_under_its_name(name):
    text = lambda f: jax.jit(f).lower(LHS, RHS).as_text(debug_info=True)
    scope = f"cadre.{name.split()[-1]}"
    assert f"/{scope}/" in text(OPS[name])
    gradient = text(jax.grad(lambda x, w: jnp.sin(OPS[name](x, w)).sum()))
    assert f"({scope}))/cadre_" in gradient
