"""A layer of experts in JAX: a few steps of training under jit, then with the experts on all devices."""

import math

import cadre.jax
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

TOKENS, DIM, HIDDEN, EXPERTS, TOP_K, STEPS = 64, 16, 32, 8, 2, 20


def parameters(key):
    keys = jax.random.split(key, 3)
    return {
        "router": jax.random.normal(keys[0], (DIM, EXPERTS)) * DIM**-0.5,
        "gate_up": jax.random.normal(keys[1], (EXPERTS, DIM, 2 * HIDDEN)) * DIM**-0.5,
        "down": jax.random.normal(keys[2], (EXPERTS, HIDDEN, DIM)) * HIDDEN**-0.5,
    }


def experts_layer(p, x, group_offset=None):
    """Each token goes to its TOP_K experts; their outputs are summed with the router's weights.

    group_offset: the first of the experts in p where these aren't all; others add nothing.
    """
    weights, experts = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), TOP_K)
    shard = {} if group_offset is None else {"num_experts": EXPERTS, "group_offset": group_offset}
    return cadre.jax.moe_mlp(x, experts, weights, p["gate_up"], p["down"], transposed=True, **shard)


def sharded_layer(p, x):
    """The same with the experts dealt out to the devices: each multiplies the rows of its own, and the sum holds all."""
    devices = jax.devices()[: math.gcd(jax.device_count(), EXPERTS)]
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((len(devices),), ("experts",), axis_types=axis_types, devices=devices)

    def on_one_device(p, x):
        offset = jax.lax.axis_index("experts") * p["gate_up"].shape[0]
        return jax.lax.psum(experts_layer(p, x, offset), "experts")

    specs = {"router": P(), "gate_up": P("experts"), "down": P("experts")}
    return jax.shard_map(on_one_device, mesh=mesh, in_specs=(specs, P()), out_specs=P())(p, x)


@jax.jit
def step(p, x, target):
    def loss(p):
        return ((experts_layer(p, x) - target) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda w, g: w - 2.0 * g, p, gradient)


def main():
    p = parameters(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (TOKENS, DIM))
    target = jax.random.normal(jax.random.key(2), (TOKENS, DIM))
    losses = []
    for _ in range(STEPS):
        value, p = step(p, x, target)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps")
    assert losses[-1] < 0.8 * losses[0], "the loss did not fall"

    # Gradients pass through shard_map as well.
    gradients = [
        jax.jit(jax.grad(lambda p, layer=layer: ((layer(p, x) - target) ** 2).mean()))(p)
        for layer in (experts_layer, sharded_layer)
    ]
    for one, sharded in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert jnp.allclose(one, sharded, atol=1e-5), "the sharded layer differs"
    print(f"experts on {jax.device_count()} device(s): the same gradients")


if __name__ == "__main__":
    main()
