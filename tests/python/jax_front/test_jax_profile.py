"""In a profile and in a program's text each op stands under its own name, and so do its gradients."""

import functools

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from cadre.jax import ejkernel, expert_parallel, maxtext, megablox
from jax.sharding import Mesh, PartitionSpec

LHS, RHS = oracle.normal(1, 9, 5, dtype="float32"), oracle.normal(2, 3, 5, 4, dtype="float32")
SIZES = jnp.array([3, 0, 4])
NUMBERS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))

IDS, WEIGHTS = jnp.array([[0, 2]] * 9), jnp.full((9, 2), 0.5)
W13 = oracle.normal(3, 3, 8, 5, dtype="float32")


def on_one_device(function):
    """The function of an axis of devices, over an axis of one."""
    spec = PartitionSpec("expert")
    mesh = Mesh(jax.devices()[:1], "expert")
    return jax.shard_map(functools.partial(function, axis_name="expert"), mesh=mesh, in_specs=(spec,) * 5, out_specs=spec)


OPS = {
    "gmm": lambda x, w: cj.gmm(x, w, SIZES),
    "tgmm": lambda x, w: cj.tgmm(x, x[:, :4], SIZES),
    "bias_grad": lambda x, w: cj.bias_grad(x, SIZES),
    "grouped_linear": lambda x, w: cj.grouped_linear(x, w, SIZES, transpose_weight=False),
    "grouped_mlp": lambda x, w: cj.grouped_mlp(x, w, w[:, :2], SIZES),
    "moe_mlp": lambda x, w: cj.moe_mlp(x, IDS, WEIGHTS, W13, w),
    "expert_parallel moe_mlp": lambda x, w: on_one_device(expert_parallel.moe_mlp)(x, IDS, WEIGHTS, W13, w),
    "maxtext gmm": lambda x, w: maxtext.gmm(x, w, SIZES),
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
    # Inside shard_map the transposition's own name comes first.
    assert f"({scope}))/cadre_" in gradient or f"transpose(jvp())/{scope}/cadre_" in gradient


#: Without a gradient.
CONVERSIONS = {
    "quantize": lambda x: cj.quantize(x, "row").data,
    "dequantize": lambda x: cj.dequantize(cj.quantize(x, "row")),
    "amax": lambda x: cj.amax(x, "row"),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_stands_under_its_name(name):
    assert f"/cadre.{name}/" in jax.jit(CONVERSIONS[name]).lower(LHS).as_text(debug_info=True)


def test_fp8_products_stand_under_the_names_of_products():
    def product(x, w):
        return cj.gmm(cj.quantize(x, "row"), cj.quantize(w.swapaxes(1, 2), "row"), SIZES, transpose_rhs=True)

    text = jax.jit(product).lower(LHS, RHS).as_text(debug_info=True)
    assert "/cadre.gmm/" in text and "/cadre.quantize/" in text


def test_every_public_op_is_among_these():
    """A new one without a scope would be nameless in a profile."""
    named = {name.split()[-1] for name in (*OPS, *CONVERSIONS)}
    public = {name for name in cj.__all__ if callable(getattr(cj, name)) and name not in ("ScaledArray", "check", "register")}
    assert public <= named, public - named
