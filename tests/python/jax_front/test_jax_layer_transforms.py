"""The fused layer under JAX's transforms: every one of them against the layer composed of differentiable ops, and what a
gradient keeps."""

import functools

import cadre.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cadre import _options
from cadre.jax import _layer_composed
from jax.sharding import PartitionSpec as P

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 11, 12, 10, 6, 3
RANDOM = np.random.default_rng(7)
IDS = RANDOM.integers(-1, EXPERTS + 1, size=(TOKENS, TOP_K))
OPERANDS = {
    "x": RANDOM.normal(size=(TOKENS, HIDDEN)),
    "weights": RANDOM.uniform(size=(TOKENS, TOP_K)),
    "w13": RANDOM.normal(size=(EXPERTS, 2 * INNER, HIDDEN)) * 0.4,
    "w2": RANDOM.normal(size=(EXPERTS, HIDDEN, INNER)) * 0.4,
    "bias13": RANDOM.normal(size=(EXPERTS, 2 * INNER)),
    "bias2": RANDOM.normal(size=(EXPERTS, HIDDEN)),
}


def primals(dtype=jnp.float64):
    return {name: jnp.asarray(value, dtype) for name, value in OPERANDS.items()}


def tangents(seed=1):
    random = np.random.default_rng(seed)
    return {name: jnp.asarray(random.normal(size=value.shape)) for name, value in OPERANDS.items()}


def fused(p, on_input=False, activation="swiglu", interleaved=False):
    return cadre.jax.moe_mlp(
        p["x"], IDS, p["weights"], p["w13"], p["w2"], bias13=p["bias13"], bias2=p["bias2"],
        weights_on_input=on_input, activation=activation, interleaved=interleaved,
    )  # fmt: skip


def composed(p, on_input=False, activation="swiglu", interleaved=False):
    names = ("group_sizes", "source_row", "slot_row")
    routing = dict(zip(names, _layer_composed.route(jnp.asarray(IDS), EXPERTS)))
    return _layer_composed.layer(
        {**p, **routing, "group_offset": jnp.int32(0)}, activation=_options.ACTIVATIONS[activation],
        interleaved=interleaved, alpha=1.702, limit=7.0, up_offset=1.0, transposed=False,
        weights_on_input=on_input, precision=0,
    )  # fmt: skip


def close(got, expected, tolerance=1e-9):
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for mine, theirs in leaves:
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def primitives_of(function, *args):
    """The names of all primitives in a program, those of inner programs included."""
    names, open_ones = set(), [jax.make_jaxpr(function)(*args).jaxpr]
    while open_ones:
        for equation in open_ones.pop().eqns:
            names.add(equation.primitive.name)
            open_ones += [
                getattr(each, "jaxpr", each)
                for each in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns"))
                if hasattr(getattr(each, "jaxpr", each), "eqns")
            ]
    return names


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "clamped_swiglu"])
def test_both_modes_are_those_of_the_composition(activation, on_input):
    options = {"on_input": on_input, "activation": activation, "interleaved": activation != "swiglu"}
    mine, theirs = (functools.partial(f, **options) for f in (fused, composed))
    p, dots = primals(), tangents()
    close(mine(p), theirs(p))
    close(jax.jvp(mine, (p,), (dots,)), jax.jvp(theirs, (p,), (dots,)))
    loss = [lambda p, f=f: (f(p) ** 3).sum() for f in (mine, theirs)]
    close(jax.jit(jax.grad(loss[0]))(p), jax.grad(loss[1])(p))


@pytest.mark.parametrize("name", OPERANDS)
def test_a_tangent_of_one_operand(name):
    p, dot = primals(), tangents()[name]
    alone = [lambda value, f=f: f({**p, name: value}) for f in (fused, composed)]
    close(*(jax.jvp(f, (p[name],), (dot,)) for f in alone))
    close(*(jax.vjp(f, p[name])[1](jnp.cos(p["x"])) for f in alone))


def test_second_derivatives():
    p, dots = primals(), tangents()
    loss = [lambda p, f=f: (f(p) ** 2).sum() for f in (fused, composed)]

    def over_reverse(f):
        return jax.jvp(jax.grad(f), (p,), (dots,))[1]

    def reverse_over_reverse(f):
        return jax.grad(lambda p: sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (jax.grad(f)(p), dots)))))(p)

    def forward_over_forward(f):
        return jax.jvp(lambda p: jax.jvp(f, (p,), (dots,))[1], (p,), (tangents(2),))[1]

    for derivative in (over_reverse, reverse_over_reverse, forward_over_forward):
        close(*map(derivative, loss), tolerance=1e-8)


def test_vmap_over_any_operand_and_its_gradients():
    many = {name: jnp.stack([value, 0.5 * value, value - 0.25]) for name, value in primals().items()}
    for batched in (("x", "weights"), ("w13", "bias2"), tuple(OPERANDS)):
        axes = {name: 0 if name in batched else None for name in OPERANDS}
        p = {name: many[name] if name in batched else many[name][1] for name in OPERANDS}
        rows = [{n: p[n][i] if n in batched else p[n] for n in p} for i in range(3)]
        close(jax.vmap(fused, in_axes=(axes,))(p), jnp.stack([composed(row) for row in rows]))
        got = jax.grad(lambda p: (jax.vmap(fused, in_axes=(axes,))(p) ** 2).sum())(p)
        expected = jax.grad(
            lambda p: sum((composed({n: p[n][i] if n in batched else p[n] for n in p}) ** 2).sum() for i in range(3))
        )(p)
        close(got, expected)
        close(
            jax.vmap(jax.grad(lambda p: fused(p).sum()), in_axes=(axes,))(p),
            jax.tree.map(lambda *each: jnp.stack(each), *(jax.grad(lambda p: composed(p).sum())(row) for row in rows)),
        )


def test_vmap_over_ids():
    many = jnp.stack([jnp.asarray(IDS), jnp.asarray(IDS[::-1])])
    p = primals()
    got = jax.vmap(lambda ids: cadre.jax.moe_mlp(p["x"], ids, p["weights"], p["w13"], p["w2"]))(many)
    for i in range(2):
        close(got[i], cadre.jax.moe_mlp(p["x"], many[i], p["weights"], p["w13"], p["w2"]))


def test_the_program_is_one_call_forward_and_one_backward():
    p = primals(jnp.bfloat16)
    forward = primitives_of(fused, p)
    assert {"cadre_route", "cadre_moe_mlp"} <= forward
    both = primitives_of(jax.grad(lambda p: fused(p).astype(jnp.float32).sum()), p)
    assert {"cadre_moe_mlp", "cadre_moe_mlp_grad"} <= both
    assert not {"cadre_gmm", "cadre_tgmm", "sort"} & (forward | both)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_keeps_the_operands_the_routing_and_the_preactivation(dtype):
    p = primals(dtype)
    _, pullback = jax.vjp(fused, p)
    kept = {(x.shape, x.dtype.name) for x in jax.tree.leaves(pullback) if hasattr(x, "shape") and x.ndim}
    rows = TOKENS * TOP_K
    expected = {(value.shape, dtype) for value in OPERANDS.values()}
    expected |= {((rows, 2 * INNER), dtype), ((EXPERTS,), "int32"), ((rows,), "int32"), ((TOKENS, TOP_K), "int32")}
    assert kept == expected


def test_checkpoint_runs_the_layer_again():
    p = primals()
    loss = [lambda p, f=f: (f(p) ** 2).sum() for f in (jax.checkpoint(fused), composed)]
    close(*(jax.grad(f)(p) for f in loss))


@pytest.mark.parametrize("shards", [1, 2])
def test_gradients_and_tangents_under_shard_map_with_check_vma(shards):
    if len(jax.devices()) < shards:
        pytest.skip("fewer devices")
    mesh = jax.make_mesh((shards,), ("e",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:shards])

    def body(p):
        part = cadre.jax.moe_mlp(
            p["x"], IDS, p["weights"], p["w13"], p["w2"], bias13=p["bias13"], bias2=p["bias2"],
            num_experts=EXPERTS, group_offset=jax.lax.axis_index("e") * p["w13"].shape[0],
        )  # fmt: skip
        return jax.lax.psum(part, "e")

    specs = {name: P() if name in ("x", "weights") else P("e") for name in OPERANDS}
    sharded = jax.shard_map(body, mesh=mesh, in_specs=(specs,), out_specs=P(), check_vma=True)
    p, dots = primals(), tangents()
    close(jax.jit(sharded)(p), composed(p))
    close(jax.jit(jax.grad(lambda p: (sharded(p) ** 2).sum()))(p), jax.grad(lambda p: (composed(p) ** 2).sum())(p))
    close(jax.jit(lambda p: jax.jvp(sharded, (p,), (dots,)))(p), jax.jvp(composed, (p,), (dots,)))


def test_without_a_handler_the_composition_runs():
    exported = jax.export.export(jax.jit(jax.grad(lambda p: fused(p).sum())), platforms=["tpu"])
    assert "custom_call @cadre" not in exported(primals(jnp.float32)).mlir_module()


def test_export_of_the_layer_and_its_gradient():
    ops = ("route", "moe_mlp", "moe_mlp_grad")
    calls = [jax.export.DisabledSafetyCheck.custom_call(f"cadre_{op}") for op in ops]
    gradient = jax.jit(jax.grad(lambda p: fused(p).sum()))
    p = primals(jnp.float32)
    exported = jax.export.export(gradient, disabled_checks=calls)(p)
    close(jax.export.deserialize(exported.serialize()).call(p), gradient(p))


# ---- grouped_mlp -----------------------------------------------------------------------------

SIZES = jnp.array([4, 0, 3, 2, 1])
SORTED = {
    "x": RANDOM.normal(size=(TOKENS, HIDDEN)),
    "gate_up": RANDOM.normal(size=(5, HIDDEN, 2 * INNER)) * 0.4,
    "down": RANDOM.normal(size=(5, INNER, HIDDEN)) * 0.4,
}
ERF = functools.partial(jax.nn.gelu, approximate=False)


def sorted_rows(p, activation, **options):
    return cadre.jax.grouped_mlp(p["x"], p["gate_up"], p["down"], SIZES, activation=activation, **options)


@pytest.mark.parametrize("activation", [jax.nn.silu, jax.nn.gelu, ERF], ids=["silu", "gelu", "gelu_erf"])
def test_grouped_mlp_is_fused_for_known_gates(activation):
    p = {name: jnp.asarray(value) for name, value in SORTED.items()}
    mine = functools.partial(sorted_rows, activation=activation)
    theirs = functools.partial(sorted_rows, activation=lambda gate: activation(gate))
    assert "cadre_moe_mlp" in primitives_of(mine, p) and "cadre_gmm" not in primitives_of(mine, p)
    assert "cadre_moe_mlp" not in primitives_of(theirs, p)
    dots = {name: jnp.cos(value) for name, value in p.items()}
    close(jax.jvp(mine, (p,), (dots,)), jax.jvp(theirs, (p,), (dots,)))
    assert not np.any(mine(p)[10:]), "tail rows are zero"
    close(*(jax.jit(jax.grad(lambda p, f=f: (f(p) ** 3).sum()))(p) for f in (mine, theirs)))
    close(*(jax.jvp(jax.grad(lambda p, f=f: (f(p) ** 3).sum()), (p,), (dots,))[1] for f in (mine, theirs)))


def test_grouped_mlp_of_a_shard_has_zeros_in_rows_of_others():
    p = {name: jnp.asarray(value) for name, value in SORTED.items()}
    whole = sorted_rows(p, jax.nn.silu)
    part = {**p, "gate_up": p["gate_up"][1:3], "down": p["down"][1:3]}
    got = sorted_rows(part, jax.nn.silu, group_offset=1)
    close(got, jnp.where(((jnp.arange(TOKENS) >= 4) & (jnp.arange(TOKENS) < 7))[:, None], whole, 0))


def test_grouped_mlp_keeps_x_and_the_preactivation():
    p = {name: jnp.asarray(value, jnp.bfloat16) for name, value in SORTED.items()}
    _, pullback = jax.vjp(functools.partial(sorted_rows, activation=jax.nn.silu), p)
    kept = {x.shape for x in jax.tree.leaves(pullback) if hasattr(x, "shape") and x.ndim}
    assert kept == {value.shape for value in SORTED.values()} | {(TOKENS, 2 * INNER), SIZES.shape}


def test_grouped_mlp_of_other_shapes_and_types_is_composed():
    p = {name: jnp.asarray(value, jnp.float32) for name, value in SORTED.items()}
    wider = {**p, "down": jnp.concatenate([p["down"], p["down"]], axis=2)}
    assert sorted_rows(wider, jax.nn.silu).shape == (TOKENS, 2 * HIDDEN)
    mixed = {**p, "x": p["x"].astype(jnp.bfloat16)}
    assert sorted_rows(mixed, jax.nn.silu).dtype == jnp.float32
