"""A layer of experts in JAX: route, sort, multiply, weigh; a few steps of training under jit."""

import cadre.jax
import jax
import jax.numpy as jnp

TOKENS, DIM, HIDDEN, EXPERTS, TOP_K, STEPS = 64, 16, 32, 8, 2, 20


def parameters(key):
    keys = jax.random.split(key, 3)
    return {
        "router": jax.random.normal(keys[0], (DIM, EXPERTS)) * DIM**-0.5,
        "gate_up": jax.random.normal(keys[1], (EXPERTS, DIM, 2 * HIDDEN)) * DIM**-0.5,
        "down": jax.random.normal(keys[2], (EXPERTS, HIDDEN, DIM)) * HIDDEN**-0.5,
    }


def experts_layer(p, x):
    """Each token goes to its TOP_K experts; their outputs are summed with the router's weights."""
    weights, experts = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), TOP_K)
    order = jnp.argsort(experts.reshape(-1), stable=True)  # rows sorted by expert
    sizes = jnp.bincount(experts.reshape(-1), length=EXPERTS)  # stays on the device
    rows = cadre.jax.grouped_mlp(x[order // TOP_K], p["gate_up"], p["down"], sizes)
    return jnp.zeros_like(x).at[order // TOP_K].add(rows * weights.reshape(-1)[order][:, None])


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


if __name__ == "__main__":
    main()
