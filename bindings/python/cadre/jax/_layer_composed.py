"""A layer of experts composed of cadre's products and JAX's own ops: what runs where XLA has no handler (a TPU), what forward
mode takes its tangents from, and what is differentiated more than once."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from .. import _structs
from ._primitives import gmm_p, unify


def _gelu(approximate):
    return functools.partial(jax.nn.gelu, approximate=approximate)


_ALONE = {
    _structs.NO_ACTIVATION: lambda x: x,
    _structs.SILU: jax.nn.silu,
    _structs.GELU_TANH: _gelu(True),
    _structs.GELU_ERF: _gelu(False),
    _structs.RELU2: lambda x: jnp.square(jax.nn.relu(x)),
}
_GATES = {
    _structs.SWIGLU: jax.nn.silu,
    _structs.GEGLU_TANH: _gelu(True),
    _structs.GEGLU_ERF: _gelu(False),
}


def is_gated(kind):
    return kind >= _structs.SWIGLU


def activate_wide(pre, *, activation, interleaved, alpha, limit, up_offset):
    """Of a pre-activation in f32 or f64, in that type."""
    if not is_gated(activation):
        return _ALONE[activation](pre)
    gate, up = (pre[:, 0::2], pre[:, 1::2]) if interleaved else jnp.split(pre, 2, axis=-1)
    if activation != _structs.CLAMPED_SWIGLU:
        return _GATES[activation](gate) * up
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + up_offset)


def _activate(pre, **activation):
    """In f32 (f64 stays f64), rounded to the pre-activation's type."""
    wide = pre.astype(jnp.promote_types(pre.dtype, jnp.float32))
    return activate_wide(wide, **activation).astype(pre.dtype)


def route(ids, num_experts):
    """group_sizes, source_row and slot_row as cadre's route gives them."""
    flat = ids.reshape(-1)
    key = jnp.where((flat >= 0) & (flat < num_experts), flat, num_experts).astype(jnp.int32)
    order = jnp.argsort(key, stable=True)  # the slot of each row
    sizes = jnp.zeros(num_experts, jnp.int32).at[key].add(1, mode="drop")
    dropped = key[order] == num_experts
    source = jnp.where(dropped, -1, order // max(ids.shape[1], 1))
    rows = jnp.arange(order.size, dtype=jnp.int32)
    slots = jnp.zeros(order.size, jnp.int32).at[order].set(jnp.where(dropped, -1, rows))
    return sizes, source.astype(jnp.int32), slots.reshape(ids.shape)


def preactivation(o, *, transposed, weights_on_input, precision, **_):
    """[m, 2i] from the operands by name."""
    rows = o["x"]
    if "source_row" in o:
        rows = rows[jnp.maximum(o["source_row"], 0)]
        if weights_on_input and "weights" in o:
            weights, slots = _weights_and_slots(o)
            places = jnp.where(slots < 0, rows.shape[0], slots)
            factors = jnp.zeros(rows.shape[0], weights.dtype).at[places].set(weights, mode="drop")
            rows = (rows * factors[:, None]).astype(rows.dtype)
    return _product(o, rows, "w13", "bias13", transposed, precision)


def _weights_and_slots(o):
    """A dropped slot's weight plays no part, whatever it is."""
    slots = o["slot_row"]
    return jnp.where(slots < 0, jnp.zeros((), o["weights"].dtype), o["weights"]), slots


def _product(o, rows, weight, bias, transposed, precision):
    operands = [rows, o[weight], o["group_sizes"], o["group_offset"]]
    if bias in o:
        operands.append(o[bias])
    shared = {"batch_rank": 0, "precision": precision, "out_dtype": o["x"].dtype}
    return gmm_p.bind(*unify(*operands), transpose_rhs=not transposed, **shared)


def result(pre, o, *, transposed, weights_on_input, precision, **activation):
    """[t, h] from the pre-activation and the operands by name. Slots are summed in order in f32."""
    inner = _activate(pre, **activation)
    y = _product(o, inner, "w2", "bias2", transposed, precision)
    if "source_row" not in o:
        return y
    wide = jnp.promote_types(y.dtype, jnp.float32)
    weighs = "weights" in o and not weights_on_input
    weights, slots = _weights_and_slots(o) if weighs else (None, o["slot_row"])
    out = jnp.zeros((slots.shape[0], y.shape[1]), wide)
    for slot in range(slots.shape[1]) if y.shape[0] else ():
        rows = slots[:, slot, None]
        part = jnp.where(rows < 0, 0, y[jnp.maximum(rows[:, 0], 0)].astype(wide))
        out = out + (part * weights[:, slot, None].astype(wide) if weighs else part)
    return out.astype(o["x"].dtype)


def layer(o, **params):
    return result(preactivation(o, **params), o, **params)


def tangent(o, preact, dots, **params):
    """The layer's tangent for tangents of some operands, by name. `preact`: as the layer left it."""

    def first(some):
        return preactivation(o | some, **params)

    def second(pre, some):
        return result(pre, o | some, **params)

    primals = {name: o[name] for name in dots}
    _, preact_dot = jax.jvp(first, (primals,), (dots,))
    return jax.jvp(second, (preact, primals), (preact_dot, dots))[1]


def tangent_anew(o, dots, **params):
    """The same from the operands alone, so that it can be differentiated."""
    primals = {name: o[name] for name in dots}
    return jax.jvp(lambda some: layer(o | some, **params), (primals,), (dots,))[1]


def gradients(o, dout, wanted, **params):
    """Those of the operands `wanted`, by name."""
    primals = {name: o[name] for name in wanted}
    _, transposed = jax.vjp(lambda some: layer(o | some, **params), primals)
    return transposed(dout.astype(o["x"].dtype))[0]


def over_batch(entry, operands, batch_rank):
    """`entry` of each batch entry; dims of size 1 are broadcast."""
    if not batch_rank:
        return entry(*operands)
    axes = [None if x.shape[0] == 1 else 0 for x in operands]
    inner = functools.partial(_inner, entry, batch_rank - 1)
    operands = [lax.squeeze(x, (0,)) if axis is None else x for x, axis in zip(operands, axes)]
    if all(axis is None for axis in axes):
        return jax.tree.map(lambda value: value[None], inner(*operands))
    return jax.vmap(inner, in_axes=axes)(*operands)


def _inner(entry, batch_rank, *operands):
    return over_batch(entry, operands, batch_rank)
