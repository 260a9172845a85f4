"""A layer of experts written for tokamax, with cadre as the first `implementation=` of its grouped products. Needs tokamax.

    pip install 'tokamax>=0.0.12,<0.1' && python examples/16_tokamax.py
"""

import importlib.util
import sys

import cadre.jax
import jax
import jax.numpy as jnp

if importlib.util.find_spec("tokamax") is None:
    sys.exit("examples/16_tokamax.py: this example needs tokamax: pip install 'tokamax>=0.0.12,<0.1'")

import tokamax
from absl import flags

ROWS, DIM, HIDDEN, EXPERTS, STEPS = 96, 16, 32, 4, 20
#: Tried in order: what cadre refuses (quantised operands, say) falls to the next one.
CADRE_FIRST = (cadre.jax.ragged_dot, "xla")


def layer(p, rows, sizes, implementation):
    """rows [m, dim] sorted by expert, sizes [experts]: two grouped products around a gate."""
    options = {"preferred_element_type": jnp.float32, "implementation": implementation}
    hidden = tokamax.ragged_dot(rows, p["gate_up"], sizes, **options)
    gate, up = jnp.split(hidden, 2, axis=1)
    return tokamax.ragged_dot(jax.nn.silu(gate) * up, p["down"], sizes, **options)


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    p = {
        "gate_up": jax.random.normal(keys[0], (EXPERTS, DIM, 2 * HIDDEN)) * DIM**-0.5,
        "down": jax.random.normal(keys[1], (EXPERTS, HIDDEN, DIM)) * HIDDEN**-0.5,
    }
    rows, target = jax.random.normal(keys[2], (ROWS, DIM)), jax.random.normal(keys[3], (ROWS, DIM))
    sizes = jnp.array([40, 0, 50, 6], jnp.int32)  # an expert without rows

    def loss(p, implementation):
        return ((layer(p, rows, sizes, implementation) - target) ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (ours, gradient), (theirs, expected) = step(p, CADRE_FIRST), step(p, "xla")
    assert jnp.allclose(ours, theirs, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(one, other, atol=1e-5), "tokamax's own gradients are others"
    print("cadre inside tokamax: the values and gradients of its own implementation")
    losses = []
    for _ in range(STEPS):
        value, gradient = step(p, CADRE_FIRST)
        p = jax.tree.map(lambda w, g: w - 5.0 * g, p, gradient)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {STEPS} steps")
    assert losses[-1] < 0.5 * losses[0], "the loss did not fall"


if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()  # tokamax reads its flags from absl
    main()
