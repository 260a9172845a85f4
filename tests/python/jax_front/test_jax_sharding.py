"""shard_map with check_vma on, over four devices: experts sharded, tokens sharded, and both."""

import os
import subprocess
import sys

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


def test_the_result_varies_over_the_axes_that_are_asked_for():
    lhs, rhs = oracle.normal(1, M, K), oracle.normal(2, EXPERTS, K, N)
    over = lambda *axes: jax.sharding.ManualAxisType(varying=frozenset(axes))

    def body(x, w):
        out = cj.ragged_dot(x, w, SIZES, manual_axis_type=over("t", "e"))
        assert jax.typeof(out).manual_axis_type == over("t", "e")
        with pytest.raises(ValueError, match="manual_axis_type = .* expected all of .*'t'"):
            cj.ragged_dot(x, w, SIZES, manual_axis_type=over("e"))
        with pytest.raises(NotImplementedError, match="manual_axis_type = .*varying axes alone"):
            unreduced = jax.sharding.ManualAxisType(unreduced=frozenset({"t"}))
            cj.ragged_dot(x, w, SIZES, manual_axis_type=unreduced)
        return jax.lax.psum(out, "e") / 2

    specs = {"in_specs": (P("t"), P()), "out_specs": P("t")}
    sharded = jax.shard_map(body, mesh=mesh("t", "e"), check_vma=True, **specs)
    out = sharded(jnp.concatenate([lhs, lhs]), rhs)
    oracle.close(out, jnp.concatenate([oracle.gmm(lhs, rhs, SIZES)] * 2))


BAD_ON_ONE_DEVICE = """
import cadre.jax as cj, jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((4,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
body = lambda x, s: jax.lax.psum(cj.gmm(x, jnp.ones((2, 4, 3)), s).sum(), "t")
specs = {"in_specs": (P("t"), P("t")), "out_specs": P(), "check_vma": False}
sum_of = jax.jit(jax.shard_map(body, mesh=mesh, **specs))
print(sum_of(jnp.ones((16, 4)), jnp.array([2, 2] * 4)), flush=True)
sum_of(jnp.ones((16, 4)), jnp.array([2, 2, 2, 2, 2, -7, 2, 2])).block_until_ready()
"""


@pytest.mark.cpu
def test_a_bad_size_on_one_device_is_said_before_the_others_wait_in_vain():
    """XLA ends a process whose collective isn't complete in time; it says nothing of the error that kept a device away."""
    patience = " --xla_cpu_collective_call_{}_timeout_seconds=1"
    flags = "--xla_force_host_platform_device_count=4"
    flags += patience.format("warn_stuck") + patience.format("terminate")
    result = subprocess.run(
        [sys.executable, "-c", BAD_ON_ONE_DEVICE],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        timeout=100,
    )
    assert result.stdout == "192.0\n" and result.returncode != 0
    assert "cadre: gmm: group_sizes[1] = -7, expected 0 or more" in result.stderr
