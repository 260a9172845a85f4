"""shard_map with check_vma on, over four devices: experts sharded, tokens sharded, and both."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.four_devices

K, N, EXPERTS = 5, 3, 8
SIZES = jnp.array([3, 0, 4, 2, 1, 0, 5, 1])
M = 18  # a tail of two rows


def mesh(*axes):
    shape = (4,) if len(axes) == 1 else (2, 2)
    return jax.make_mesh(shape, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))


def experts_sharded(lhs, rhs, bias):
    def body(x, w, b):
        offset = jax.lax.axis_index("e") * w.shape[0]
        return jax.lax.psum(cj.gmm(x, w, SIZES, bias=b, group_offset=offset), "e")

    specs = (P(), P("e"), P("e"))
    return jax.shard_map(body, mesh=mesh("e"), in_specs=specs, out_specs=P(), check_vma=True)(
        lhs, rhs, bias
    )


def tokens_sharded(lhs, rhs, bias):
    """Every device has all experts and sorts its own rows: here each holds the same sizes."""
    body = lambda x, w, b: cj.gmm(x, w, SIZES, bias=b)
    return jax.shard_map(
        body, mesh=mesh("t"), in_specs=(P("t"), P(), P()), out_specs=P("t"), check_vma=True
    )(jnp.concatenate([lhs * (i + 1) for i in range(4)]), rhs, bias)


def both_sharded(lhs, rhs, bias):
    def body(x, w, b):
        offset = jax.lax.axis_index("e") * w.shape[0]
        return jax.lax.psum(cj.gmm(x, w, SIZES, bias=b, group_offset=offset), "e")

    specs = (P("t"), P("e"), P("e"))
    return jax.shard_map(
        body, mesh=mesh("t", "e"), in_specs=specs, out_specs=P("t"), check_vma=True
    )(jnp.concatenate([lhs * (i + 1) for i in range(2)]), rhs, bias)


def whole(copies):
    def product(lhs, rhs, bias):
        one = lambda x: oracle.gmm(x, rhs, SIZES) + oracle.bias_rows(M, bias, SIZES)
        return jnp.concatenate([one(lhs * (i + 1)) for i in range(copies)])

    return product


@pytest.mark.parametrize(
    "sharded, copies", [(experts_sharded, 1), (tokens_sharded, 4), (both_sharded, 2)]
)
def test_equals_the_single_device_product_and_gradients(sharded, copies):
    args = oracle.normal(1, M, K), oracle.normal(2, EXPERTS, K, N), oracle.normal(3, EXPERTS, N)
    oracle.close(jax.jit(sharded)(*args), whole(copies)(*args))
    loss = lambda f: lambda *a: jnp.sin(f(*a)).sum()
    gradients = jax.jit(jax.grad(loss(sharded), (0, 1, 2)))(*args)
    oracle.all_close(gradients, oracle.on_host(jax.grad(loss(whole(copies)), (0, 1, 2)))(*args))


def test_tgmm_with_sharded_rows_is_summed():
    lhs, rhs = oracle.normal(1, 4 * M, K), oracle.normal(2, 4 * M, N)
    body = lambda x, y: jax.lax.psum(cj.tgmm(x, y, SIZES), "t")
    out = jax.shard_map(
        body, mesh=mesh("t"), in_specs=(P("t"), P("t")), out_specs=P(), check_vma=True
    )(lhs, rhs)
    parts = [
        oracle.tgmm(lhs[i * M : (i + 1) * M], rhs[i * M : (i + 1) * M], SIZES) for i in range(4)
    ]
    oracle.close(out, sum(parts))
