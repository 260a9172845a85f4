"""What a user of the JAX front writes, for type checkers; see numpy_program.py."""

import jax
import jax.numpy as jnp
from typing_extensions import assert_type

import cadre.jax

x = jnp.ones((6, 4))
w = jnp.ones((3, 4, 5))
sizes = jnp.array([2, 0, 4])
ids = jnp.zeros((6, 2), jnp.int32)

assert_type(cadre.jax.gmm(x, w, sizes, bias=jnp.ones((3, 5)), preferred_element_type=jnp.float32), jax.Array)
assert_type(cadre.jax.tgmm(x, x, [2, 0, 4], group_offset=0, num_groups=3), jax.Array)
assert_type(cadre.jax.bias_grad(x, sizes), jax.Array)
assert_type(cadre.jax.grouped_linear(x, w, sizes, transpose_weight=False), jax.Array)
assert_type(cadre.jax.ragged_dot(x, w, sizes, fuse_gateup_activation="silu"), jax.Array)
numbers = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
assert_type(cadre.jax.ragged_dot_general(x, w, sizes, numbers), jax.Array)
assert_type(cadre.jax.moe_mlp(x, ids, None, w, w, activation="silu", transposed=True), jax.Array)
assert_type(cadre.jax.grouped_mlp(x, w, w, sizes, activation=jax.nn.relu), jax.Array)
assert_type(cadre.jax.megablox.gmm(x, w, sizes, existing_out=x), jax.Array)
assert_type(cadre.jax.ejkernel.grouped_matmul(x, w, sizes), jax.Array)
scaled = cadre.jax.ScaledArray(x, x, "row", columns=False)
quantised = cadre.jax.quantize(x, "block_128", sizes, dtype=jnp.float8_e5m2, columns=True)
assert_type(cadre.jax.dequantize(scaled, sizes, num_rows=6, out_dtype=jnp.float32), jax.Array)
assert_type(cadre.jax.amax(x, "mx"), jax.Array)
assert_type(cadre.jax.gmm(scaled, scaled, sizes, fast_accumulation=True), jax.Array)
assert_type(cadre.jax.gmm(x, w, sizes, recipe="block_128"), jax.Array)
assert_type(cadre.jax.grouped_linear(x, w, sizes, transpose_weight=False, recipe="row"), jax.Array)
assert_type(cadre.jax.ragged_dot(x, w, sizes, recipe="tensor"), jax.Array)
assert_type(cadre.jax.ragged_dot_general(x, w, sizes, numbers, recipe="mx"), jax.Array)
assert_type(cadre.jax.moe_mlp(x, ids, None, w, w, recipe="block_128"), jax.Array)
assert_type(cadre.jax.grouped_mlp(x, w, w, sizes, recipe="row"), jax.Array)
assert_type(cadre.jax.tgmm(scaled, scaled, sizes), jax.Array)
assert_type(cadre.jax.ragged_dot(scaled, scaled, sizes), jax.Array)
spread = cadre.jax.expert_parallel.moe_mlp(x, ids, None, w, w, axis_name="expert", exchange="ragged")
cadre.jax.register()
cadre.jax.check()

cadre.jax.gmm(x, w)  # type: ignore  # no group_sizes
cadre.jax.gmm(x, w, sizes, recipe="block")  # type: ignore
cadre.jax.tgmm(x, x, sizes, num_groups="3")  # type: ignore
cadre.jax.ragged_dot(x, w, sizes, fuse_gateup_activation="swish")  # type: ignore
cadre.jax.moe_mlp(x, ids, None, w, w, activation="swish")  # type: ignore
cadre.jax.grouped_mlp(x, w, w, sizes, activation="silu")  # type: ignore
cadre.jax.quantize(x, "block")  # type: ignore
cadre.jax.dequantize(x)  # type: ignore
cadre.jax.expert_parallel.moe_mlp(x, ids, None, w, w)  # type: ignore  # no axis_name
