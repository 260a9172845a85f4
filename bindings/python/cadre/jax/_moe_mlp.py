"""moe_mlp: the experts of a layer from tokens to tokens, of cadre's products and JAX's own ops around them."""

import functools

import jax
import jax.numpy as jnp

from . import _arguments, _named
from ._ops import gmm_of

_OP = "moe_mlp"


def _clamped_swiglu(gate, up, alpha, limit, up_offset):
    gate = jnp.minimum(gate, limit)
    up = jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + up_offset)


_ALONE = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "none": lambda x: x,
}
_GATED = {
    "swiglu": _ALONE["silu"],
    "geglu": _ALONE["gelu"],
    "geglu_tanh": _ALONE["gelu_tanh"],
    "clamped_swiglu": None,
}


def _activate(pre, activation, interleaved, clamp):
    """In f32 (f64 stays f64), rounded to the pre-activation's type."""
    wide = pre.astype(jnp.promote_types(pre.dtype, jnp.float32))
    if activation in _ALONE:
        return _ALONE[activation](wide).astype(pre.dtype)
    if interleaved:
        gate, up = wide[:, 0::2], wide[:, 1::2]
    else:
        gate, up = jnp.split(wide, 2, axis=-1)
    if activation == "clamped_swiglu":
        return _clamped_swiglu(gate, up, *clamp).astype(pre.dtype)
    return (_GATED[activation](gate) * up).astype(pre.dtype)


@_named.scope
def moe_mlp(
    x,
    expert_ids,
    weights,
    w13,
    w2,
    *,
    bias13=None,
    bias2=None,
    activation="swiglu",
    interleaved=False,
    alpha=1.702,
    limit=7.0,
    up_offset=1.0,
    transposed=False,
    weights_on_input=False,
    num_experts=None,
    group_offset=None,
    precision=None,
):
    """out[t] = sum over j of weights[t, j] * expert(x[t]), for the experts expert_ids[t, j].

    x: [t, h]. expert_ids: [t, top_k] of integers; ids that no expert has are dropped. weights: [t, top_k], or None for 1.
    An expert is activation(x @ w13^T + bias13) @ w2^T + bias2 with w13 [g, 2i, h] and w2 [g, h, i], or with `transposed`
    [g, h, 2i] and [g, i, h].

    activation: "swiglu", "geglu", "geglu_tanh" or "clamped_swiglu" (gpt-oss's, with alpha, limit and up_offset), whose gate
    lies before the up part or, with `interleaved`, beside it; "silu", "gelu", "gelu_tanh", "relu2" or "none" without a gate
    (w13 [g, i, h]). weights_on_input scales tokens on their way in. With num_experts above the number of experts here, these
    are the experts from group_offset on, and others add nothing: the sum over all shards is the layer.

    Rows of an expert are in token order, slots are summed in order in f32. Everything is differentiable as JAX's own ops are.
    """
    x = _arguments.floats(_OP, "x", x, ("t", "h"))
    ids = _arguments.as_array(_OP, "expert_ids", expert_ids)
    _arguments.rank_is(_OP, "expert_ids", ids, ("t", "top_k"))
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{_OP}: expert_ids.dtype = {ids.dtype.name}, expected an integer type")
    _arguments.equal(_OP, "expert_ids.shape[0]", ids.shape[0], "x.shape[0]", x.shape[0])
    if weights is not None:
        weights = _arguments.floats(_OP, "weights", weights, ("t", "top_k"))
        _arguments.equal(_OP, "weights.shape", weights.shape, "expert_ids.shape", ids.shape)
    if activation not in _ALONE and activation not in _GATED:
        names = ", ".join((*_GATED, *_ALONE))
        raise ValueError(f"{_OP}: activation = {activation!r}, expected one of {names}")
    interleaved = _arguments.flag(_OP, "interleaved", interleaved)
    transposed = _arguments.flag(_OP, "transposed", transposed)
    w13 = _arguments.floats(_OP, "w13", w13, ("g", "h", "2i") if transposed else ("g", "2i", "h"))
    w2 = _arguments.floats(_OP, "w2", w2, ("g", "i", "h") if transposed else ("g", "h", "i"))
    full = w13.shape[2 if transposed else 1]
    if activation in _GATED and full % 2:
        raise ValueError(f"{_OP}: w13 has {full} columns, expected an even number: gate and up parts")
    local = w13.shape[0]
    if num_experts is None and group_offset is not None:
        raise ValueError(f"{_OP}: group_offset is given without num_experts, expected both")
    total = local if num_experts is None else num_experts
    if total < local:
        raise ValueError(f"{_OP}: num_experts = {total}, expected at least the {local} of w13")
    offset = group_offset if group_offset is not None else (0 if total > local else None)

    tokens, top_k = ids.shape
    flat = ids.reshape(-1)
    exists = (flat >= 0) & (flat < total)
    key = jnp.where(exists, flat, total).astype(jnp.int32)
    order = jnp.argsort(key, stable=True)  # the slot of each row
    sizes = jnp.bincount(key, length=total + 1)[:total].astype(jnp.int32)
    row_of_slot = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    rows = x[order // top_k]
    if weights is not None:
        # A dropped slot's weight plays no part, whatever it is.
        weights = jnp.where(exists.reshape(tokens, top_k), weights, 0)
        if weights_on_input:
            rows = (rows * weights.reshape(-1)[order][:, None]).astype(x.dtype)

    def product(names, lhs, rhs, bias):
        return gmm_of(
            _OP, lhs, rhs, sizes, names=names, transpose_rhs=not transposed, bias=bias,
            group_offset=offset, precision=precision,
        )  # fmt: skip

    pre = product(("x", "w13"), rows, w13, bias13)
    inner = _activate(pre, activation, interleaved, (alpha, limit, up_offset))
    y = product(("activation(x @ w13)", "w2"), inner, w2, bias2)
    wide = jnp.promote_types(y.dtype, jnp.float32)
    out = jnp.zeros((tokens, y.shape[1]), wide)
    slots = row_of_slot.reshape(tokens, top_k)
    for slot in range(top_k):
        part = y[slots[:, slot]].astype(wide)
        if weights is not None and not weights_on_input:
            part = part * weights[:, slot, None].astype(wide)
        out = out + part
    return out.astype(x.dtype)
