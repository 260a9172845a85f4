"""A tiny MoE transformer block trained under jit + shard_map on four devices equals the single-device run."""

import itertools

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.four_devices

TOKENS, DIM, HIDDEN, EXPERTS, TOP_K, STEPS, RATE = 24, 8, 12, 8, 2, 6, 0.3


def parameters():
    scaled = lambda seed, *shape: oracle.normal(seed, *shape) * shape[-2] ** -0.5
    return {
        "qkv": scaled(1, DIM, 3 * DIM),
        "out": scaled(2, DIM, DIM),
        "router": scaled(3, DIM, EXPERTS),
        "gate_up": scaled(4, EXPERTS, DIM, 2 * HIDDEN),
        "down": scaled(5, EXPERTS, HIDDEN, DIM),
    }


def attention(x, p):
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    scores = jnp.where(jnp.tri(x.shape[0], dtype=bool), q @ k.T * DIM**-0.5, -1e30)
    return jax.nn.softmax(scores) @ v @ p["out"]


def moe(x, p, offset):
    """Tokens sorted by expert; the experts in p start at `offset`, rows of others come back as zeros."""
    weights, experts = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), TOP_K)
    order = jnp.argsort(experts.reshape(-1), stable=True)
    sizes = jnp.bincount(experts.reshape(-1), length=EXPERTS)
    rows = cj.grouped_mlp(x[order // TOP_K], p["gate_up"], p["down"], sizes, group_offset=offset)
    return jnp.zeros_like(x).at[order // TOP_K].add(rows * weights.reshape(-1)[order][:, None])


def loss_with(combine, offset):
    def loss(p, x, target):
        x = x + attention(x, p)
        x = x + combine(moe(x, p, offset()))
        return ((x - target) ** 2).mean()

    return loss


def train(loss):
    x, target = oracle.normal(10, TOKENS, DIM), oracle.normal(11, TOKENS, DIM)
    p, losses = parameters(), []
    for _ in range(STEPS):
        value, gradient = loss(p, x, target)
        losses.append(float(value))
        p = jax.tree.map(lambda w, g: w - RATE * g, p, gradient)
    return losses, p


def test_loss_falls_and_equals_the_single_device_run():
    single = jax.jit(jax.value_and_grad(loss_with(lambda y: y, lambda: 0)))

    mesh = jax.make_mesh((4,), ("e",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"qkv": P(), "out": P(), "router": P(), "gate_up": P("e"), "down": P("e")}
    local = loss_with(
        lambda y: jax.lax.psum(y, "e"), lambda: jax.lax.axis_index("e") * (EXPERTS // 4)
    )
    sharded_loss = jax.shard_map(
        local, mesh=mesh, in_specs=(specs, P(), P()), out_specs=P(), check_vma=True
    )
    sharded = jax.jit(jax.value_and_grad(sharded_loss))

    losses, p = train(single)
    sharded_losses, sharded_p = train(sharded)
    assert losses[-1] < 0.8 * losses[0] and all(b < a for a, b in itertools.pairwise(losses))
    oracle.close(jnp.array(sharded_losses), jnp.array(losses), 1e-7)
    oracle.all_close(sharded_p, p, 1e-7)
