"""moe_mlp against a plain loop over tokens and slots in float64, its derivatives, and a layer dealt out over devices."""

import math

import cadre.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 13, 12, 10, 5, 3
GATED = ("swiglu", "geglu", "geglu_tanh", "clamped_swiglu")
ALONE = ("silu", "gelu", "gelu_tanh", "relu2", "none")


def activated(name, pre, interleaved, alpha=1.702, limit=7.0, up_offset=1.0):
    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    def gelu(v):
        return 0.5 * v * (1 + np.vectorize(math.erf)(v / math.sqrt(2)))

    def gelu_tanh(v):
        return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    functions = {
        "silu": lambda v: v * sigmoid(v), "swiglu": lambda v: v * sigmoid(v), "gelu": gelu, "geglu": gelu,
        "gelu_tanh": gelu_tanh, "geglu_tanh": gelu_tanh, "relu2": lambda v: np.maximum(v, 0) ** 2, "none": lambda v: v,
    }  # fmt: skip
    if name in ALONE:
        return functions[name](pre)
    gate, up = (pre[0::2], pre[1::2]) if interleaved else np.split(pre, 2)
    if name == "clamped_swiglu":
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return gate * sigmoid(alpha * gate) * (up + up_offset)
    return functions[name](gate) * up


def by_loops(x, ids, weights, w13, w2, name, interleaved=False, bias13=None, bias2=None, on_input=False):
    """w13 [g, 2i, h], w2 [g, h, i]."""
    out = np.zeros((x.shape[0], w2.shape[1]))
    for t in range(x.shape[0]):
        for j in range(ids.shape[1]):
            e = ids[t, j]
            if not 0 <= e < w13.shape[0]:
                continue
            weight = 1.0 if weights is None else weights[t, j]
            row = x[t] * (weight if on_input else 1.0)
            pre = w13[e] @ row + (0 if bias13 is None else bias13[e])
            y = w2[e] @ activated(name, pre, interleaved) + (0 if bias2 is None else bias2[e])
            out[t] += y * (1.0 if on_input else weight)
    return out


def operands(name, seed=0, top_k=TOP_K, tokens=TOKENS):
    random = np.random.default_rng(seed)
    full = INNER * (2 if name in GATED else 1)
    return {
        "x": random.normal(size=(tokens, HIDDEN)),
        "ids": random.integers(-1, EXPERTS + 1, size=(tokens, top_k)),
        "weights": random.uniform(size=(tokens, top_k)),
        "w13": random.normal(size=(EXPERTS, full, HIDDEN)) * 0.5,
        "w2": random.normal(size=(EXPERTS, HIDDEN, INNER)) * 0.5,
        "bias13": random.normal(size=(EXPERTS, full)),
        "bias2": random.normal(size=(EXPERTS, HIDDEN)),
    }


def f32(value):
    return jnp.asarray(value, jnp.float32)


@pytest.mark.parametrize("name", GATED + ALONE)
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_activation_and_layout(name, interleaved):
    o = operands(name)
    expected = by_loops(o["x"], o["ids"], o["weights"], o["w13"], o["w2"], name, interleaved, o["bias13"], o["bias2"])
    for transposed in (False, True):
        w13, w2 = (o[n].transpose(0, 2, 1) if transposed else o[n] for n in ("w13", "w2"))
        call = jax.jit(
            lambda x, ids, w, w13, w2, b13, b2, transposed=transposed: cadre.jax.moe_mlp(
                x, ids, w, w13, w2, bias13=b13, bias2=b2, activation=name, interleaved=interleaved, transposed=transposed
            )
        )
        got = call(f32(o["x"]), o["ids"], f32(o["weights"]), f32(w13), f32(w2), f32(o["bias13"]), f32(o["bias2"]))
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("on_input", [False, True])
def test_weights_on_either_side_and_none(on_input):
    o = operands("swiglu", 1)
    expected = by_loops(o["x"], o["ids"], o["weights"], o["w13"], o["w2"], "swiglu", on_input=on_input)
    got = cadre.jax.moe_mlp(
        f32(o["x"]), o["ids"], f32(o["weights"]), f32(o["w13"]), f32(o["w2"]), weights_on_input=on_input
    )
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
    got = cadre.jax.moe_mlp(f32(o["x"]), o["ids"], None, f32(o["w13"]), f32(o["w2"]))
    expected = by_loops(o["x"], o["ids"], None, o["w13"], o["w2"], "swiglu")
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def test_dropped_slots_play_no_part():
    o = operands("swiglu", 2)
    ids = np.full_like(o["ids"], -1)
    ids[:, 1] = o["ids"][:, 1]
    weights = np.where((ids >= 0) & (ids < EXPERTS), o["weights"], np.nan)
    got = cadre.jax.moe_mlp(f32(o["x"]), ids, f32(weights), f32(o["w13"]), f32(o["w2"]))
    expected = by_loops(o["x"], ids, o["weights"], o["w13"], o["w2"], "swiglu")
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
    none = cadre.jax.moe_mlp(f32(o["x"]), np.full_like(ids, EXPERTS), f32(o["weights"]), f32(o["w13"]), f32(o["w2"]))
    assert not np.any(none)


@pytest.mark.parametrize("tokens, top_k", [(0, 2), (1, 1), (3, 16)])
def test_odd_numbers_of_tokens_and_slots(tokens, top_k):
    o = operands("swiglu", 3, top_k, tokens)
    got = cadre.jax.moe_mlp(f32(o["x"]), o["ids"], f32(o["weights"]), f32(o["w13"]), f32(o["w2"]))
    expected = by_loops(o["x"], o["ids"], o["weights"], o["w13"], o["w2"], "swiglu")
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def test_gradients_are_those_of_dense_experts():
    o = operands("swiglu", 4)

    def layer(x, weights, w13, w2):
        return (cadre.jax.moe_mlp(x, o["ids"], weights, w13, w2) ** 2).sum()

    def dense(x, weights, w13, w2):
        chosen = jax.nn.one_hot(o["ids"], EXPERTS) * weights[..., None]  # ids that no expert has give zeros
        gate, up = jnp.split(jnp.einsum("th,eih->tei", x, w13), 2, axis=-1)
        y = jnp.einsum("tei,ehi->teh", jax.nn.silu(gate) * up, w2)
        return (jnp.einsum("tke,teh->th", chosen, y) ** 2).sum()

    arguments = [f32(o[n]) for n in ("x", "weights", "w13", "w2")]
    got = jax.jit(jax.grad(layer, argnums=(0, 1, 2, 3)))(*arguments)
    for mine, expected in zip(got, jax.grad(dense, argnums=(0, 1, 2, 3))(*arguments), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=5e-3, atol=5e-3)


def test_shards_of_the_experts_add_up():
    o = operands("swiglu", 5)
    whole = cadre.jax.moe_mlp(f32(o["x"]), o["ids"], f32(o["weights"]), f32(o["w13"]), f32(o["w2"]))
    parts = [
        cadre.jax.moe_mlp(
            f32(o["x"]), o["ids"], f32(o["weights"]), f32(o["w13"][a:b]), f32(o["w2"][a:b]),
            num_experts=EXPERTS, group_offset=a,
        )
        for a, b in ((0, 2), (2, 5))
    ]  # fmt: skip
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-5, atol=1e-5)


def test_under_shard_map():
    o = operands("swiglu", 6)
    devices = jax.devices()[: math.gcd(jax.device_count(), EXPERTS)]
    mesh = jax.make_mesh((len(devices),), ("e",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)

    def body(x, ids, weights, w13, w2):
        offset = jax.lax.axis_index("e") * w13.shape[0]
        part = cadre.jax.moe_mlp(x, ids, weights, w13, w2, num_experts=EXPERTS, group_offset=offset)
        return jax.lax.psum(part, "e")

    specs = (P(), P(), P(), P("e"), P("e"))
    sharded = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P()))
    arguments = (f32(o["x"]), jnp.asarray(o["ids"]), f32(o["weights"]), f32(o["w13"]), f32(o["w2"]))
    np.testing.assert_allclose(sharded(*arguments), cadre.jax.moe_mlp(*arguments), rtol=1e-5, atol=1e-5)


def test_bad_input_is_named():
    o = {n: f32(v) if n != "ids" else v for n, v in operands("swiglu").items()}
    good = (o["x"], o["ids"], o["weights"], o["w13"], o["w2"])
    cases = [
        (TypeError, "moe_mlp: expert_ids.dtype = float32", (o["x"], o["weights"], o["weights"], o["w13"], o["w2"]), {}),
        (ValueError, "moe_mlp: expert_ids.shape\\[0\\]", (o["x"], o["ids"][1:], o["weights"], o["w13"], o["w2"]), {}),
        (ValueError, "moe_mlp: weights.shape", (o["x"], o["ids"], o["weights"][:, 1:], o["w13"], o["w2"]), {}),
        (ValueError, "moe_mlp: activation = 'swish', expected one of swiglu", good, {"activation": "swish"}),
        (ValueError, "moe_mlp: w13 has 19 columns", (*good[:3], o["w13"][:, 1:], o["w2"]), {}),
        (ValueError, "moe_mlp: group_offset is given without num_experts", good, {"group_offset": 1}),
        (ValueError, "moe_mlp: num_experts = 2, expected at least the 5", good, {"num_experts": 2}),
        (ValueError, "moe_mlp: w13", (*good[:3], o["w13"][0], o["w2"]), {}),
    ]
    for error, message, arguments, options in cases:
        with pytest.raises(error, match=message):
            cadre.jax.moe_mlp(*arguments, **options)
