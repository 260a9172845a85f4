"""cadre.jax.expert_parallel.moe_mlp in shard_map: results and gradients of one device, capacity, a mesh of data x expert.

With --slow on 2, 4 and 8 devices, as make test-all has it; else on 4."""

import os
import subprocess
import sys
from pathlib import Path

import cadre.jax as cj
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cadre.jax import expert_parallel as ep
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.four_devices
E, H, I, TOP_K, TOKENS = 8, 12, 10, 3, 16  # tokens of each device
NAMES = ("x", "weights", "w13", "w2", "bias13", "bias2")


def mesh_of(*shape, axes=("expert",)):
    count = int(np.prod(shape))
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(shape, axes, axis_types=kinds, devices=jax.devices()[:count])


def operands(tokens, dtype=jnp.float32, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    normal = lambda *shape: jax.random.normal(next(keys), shape, jnp.float32).astype(dtype)
    x, w13, w2, bias13, bias2, dout = (
        normal(tokens, H), normal(E, 2 * I, H), normal(E, H, I), normal(E, 2 * I), normal(E, H), normal(tokens, H),
    )  # fmt: skip
    weights = jax.random.uniform(next(keys), (tokens, TOP_K)).astype(dtype)
    ids = jax.random.randint(next(keys), (tokens, TOP_K), -1, E + 1)
    return (x, weights, w13, w2, bias13, bias2), ids, dout


def alone(ids, **options):
    def layer(x, weights, w13, w2, bias13, bias2):
        return cj.moe_mlp(x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, **options)

    return layer


def spread(ids, mesh, tokens="expert", **options):
    options = {"axis_name": "expert", **options}

    def body(x, ids, weights, w13, w2, bias13, bias2):
        return ep.moe_mlp(x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, **options)

    specs = (P(tokens),) * 3 + (P("expert"),) * 4
    sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(tokens), check_vma=True)
    return lambda x, weights, *parameters: sharded(x, ids, weights, *parameters)


def results(layer, arguments, dout):
    out, pull = jax.vjp(jax.jit(layer), *arguments)
    return dict(zip(("out", *NAMES), (out, *pull(dout)), strict=True))


def assert_same(found, expected, apart=(), ulps=TOP_K + 1):
    """The same bits, but for those results that are summed in another order or contracted: within so many ulps of the largest."""
    for name, value in expected.items():
        if name in apart:
            wide = lambda each: np.asarray(each, np.float64)
            bound = ulps * float(jnp.finfo(value.dtype).eps) * np.abs(wide(value)).max()
            assert np.abs(wide(found[name]) - wide(value)).max() <= bound, name
        else:
            assert (found[name] == value).all(), name


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_results_and_gradients_are_those_of_one_device(devices, dtype):
    arguments, ids, dout = operands(devices * TOKENS, dtype)
    expected = results(alone(ids), arguments, dout)
    # XLA contracts the product with a weight and the sum into one operation, in f32, where the core has two.
    apart = ("out",) if dtype == jnp.float32 else ()
    assert_same(results(spread(ids, mesh_of(devices)), arguments, dout), expected, apart)


@pytest.mark.slow
def test_weights_on_the_input():
    arguments, ids, dout = operands(4 * TOKENS)
    options = {"weights_on_input": True, "activation": "geglu"}
    expected = results(alone(ids, **options), arguments, dout)
    found = results(spread(ids, mesh_of(4), **options), arguments, dout)
    assert_same(found, expected, apart=("x", "weights"), ulps=H)


@pytest.mark.slow
def test_all_tokens_may_go_to_one_device_and_none_anywhere():
    for low, high in ((E - 1, E), (E, E + 3)):
        arguments, ids, dout = operands(4 * TOKENS)
        ids = jnp.clip(ids, low, high - 1)
        expected = results(alone(ids), arguments, dout)
        assert_same(results(spread(ids, mesh_of(4)), arguments, dout), expected, apart=("out",))


def test_a_mesh_of_data_and_expert():
    """The parameters are the same along `data`: their gradients are sums over it, in an order of XLA's."""
    arguments, ids, dout = operands(4 * TOKENS)
    mesh = mesh_of(2, 2, axes=("data", "expert"))
    found = results(spread(ids, mesh, tokens=("data", "expert")), arguments, dout)
    expected = results(alone(ids), arguments, dout)
    assert_same(found, expected, apart=("out", *NAMES[2:]), ulps=4)


def test_all_gather_adds_the_same_up_over_the_devices():
    arguments, ids, dout = operands(4 * TOKENS)
    found = results(spread(ids, mesh_of(4), exchange="all_gather"), arguments, dout)
    assert_same(found, results(alone(ids), arguments, dout), apart=("out", "x", "weights"), ulps=8)


def test_choices_beyond_the_capacity_are_dropped_and_counted():
    capacity, devices = 5, 4
    arguments, ids, dout = operands(devices * TOKENS)
    kept, lost = np.array(ids), np.zeros(devices, int)
    for device in range(devices):
        room = [capacity] * devices
        for place in np.ndindex(TOKENS, TOP_K):
            at = (device * TOKENS + place[0], place[1])
            if not 0 <= kept[at] < E:
                continue
            target = kept[at] // (E // devices)
            if room[target]:
                room[target] -= 1
            else:
                kept[at], lost[device] = -1, lost[device] + 1
    assert lost.all()
    found = results(spread(ids, mesh_of(devices), capacity=capacity), arguments, dout)
    assert_same(found, results(alone(jnp.array(kept)), arguments, dout), apart=("out",))

    def count(x, ids, weights, w13, w2):
        return ep.moe_mlp(
            x, ids, weights, w13, w2, axis_name="expert", capacity=capacity, return_dropped=True
        )[1][None]

    specs = (P("expert"),) * 5
    counts = jax.shard_map(count, mesh=mesh_of(devices), in_specs=specs, out_specs=P("expert"))
    x, weights, w13, w2 = arguments[:4]
    assert counts(x, ids, weights, w13, w2).tolist() == lost.tolist()


@pytest.mark.slow
def test_training_in_jit_lowers_the_loss():
    arguments, ids, _ = operands(4 * TOKENS)
    layer = spread(ids, mesh_of(4))
    x, weights, *parameters = arguments
    target = jnp.sin(x)

    def loss(parameters):
        return jnp.square(0.01 * layer(x, weights, *parameters) - target).mean()

    @jax.jit
    def step(parameters):
        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, [p - 0.3 * g for p, g in zip(parameters, gradients)]

    values = []
    for _ in range(6):
        value, parameters = step(parameters)
        values.append(float(value))
    assert all(later < earlier for earlier, later in zip(values, values[1:])), values


def test_a_ragged_exchange_is_what_gpus_get():
    """XLA's CPU can't run one. That it can be traced and transposed is what a CPU can show."""
    arguments, ids, dout = operands(4 * TOKENS)
    layer = spread(ids, mesh_of(4), exchange="ragged")
    text = str(jax.make_jaxpr(lambda *a: jax.vjp(layer, *a)[1](dout))(*arguments))
    assert text.count("ragged_all_to_all[") == 6  # rows and results; their gradients and the router weights', both ways
    plain = str(jax.make_jaxpr(spread(ids, mesh_of(4)))(*arguments))
    assert "ragged" not in plain or jax.default_backend() == "gpu"


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({"exchange": "ring"}, ValueError, "exchange = 'ring', expected one of auto, dense"),
        ({"capacity": 0}, ValueError, "capacity = 0, expected 1 or more"),
        ({"capacity": 2.0}, TypeError, "capacity is a float, expected an int"),
        ({"capacity": 4, "exchange": "all_gather"}, ValueError, "capacity = 4, expected None"),
        ({"activation": "swish"}, ValueError, "activation = 'swish', expected one of"),
        ({"axis_name": "ring"}, ValueError, "moe_mlp: axis_name = 'ring', expected a mesh axis of the shard_map"),
        ({"axis_name": ("expert", "ring")}, ValueError, r"axis_name = \('expert', 'ring'\), expected a mesh axis"),
        ({"axis_name": 0}, TypeError, "axis_name = 0, expected the name of a mesh axis"),
        # shard_map's own words, before it calls anything.
        ({"experts": E + 1}, ValueError, r"w13'.*of size 9.*mesh axis 'expert' \(of size 4\), but 4 does not evenly divide 9"),
    ],
)
def test_bad_input_is_named(options, kind, message):
    (x, weights, *parameters), ids, _ = operands(4 * TOKENS)
    more = options.pop("experts", E) - E
    parameters = [jnp.concatenate([each, each[:more]]) for each in parameters]
    with pytest.raises(kind, match=message):
        spread(ids, mesh_of(4), **options)(x, weights, *parameters)


def test_outside_a_shard_map_the_axis_is_named():
    (x, weights, w13, w2, *_), ids, _ = operands(4)
    with pytest.raises(ValueError, match="axis_name = 'expert', expected a mesh axis of the shard_map around the call"):
        ep.moe_mlp(x, ids, weights, w13, w2, axis_name="expert")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eight_devices(dtype):
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_jax_expert_parallel as t
arguments, ids, dout = t.operands(8 * t.TOKENS, {dtype!r})
found = t.results(t.spread(ids, t.mesh_of(8)), arguments, dout)
t.assert_same(found, t.results(t.alone(ids), arguments, dout), apart={("out",) if dtype == "float32" else ()!r})
print("same")
"""
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment
    )
    assert result.stdout == "same\n", result.stderr[-3000:]
