"""Experts spread over a mesh axis, inside shard_map: tokens travel to them and back, or all devices see all tokens.

    moe = functools.partial(cadre.jax.expert_parallel.moe_mlp, axis_name="expert")
    jax.shard_map(moe, mesh=mesh, in_specs=(P("expert"),) * 5, out_specs=P("expert"))(x, ids, weights, w13, w2)

Sorting, counting and the sums are here and in the core's layer; the collectives are JAX's. docs/expert-parallel.md has the contract.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import _options
from .._types import ActivationName
from . import _arguments, _moe_mlp, _named
from ._layer import DIFFERENTIABLE, FIXED, OPTIONAL, moe_mlp_grad_p, moe_mlp_p, route_p
from ._primitives import unify
from ._types import ArrayLike, Precision

_OP = "expert_parallel.moe_mlp"
_EXCHANGES = ("auto", "dense", "ragged", "all_gather")


class _Layer(NamedTuple):
    """What a layer computes and how its rows travel; hashable."""

    axis_name: str
    exchange: str
    capacity: int
    params: tuple  #: of moe_mlp_p, as pairs


class _Way(NamedTuple):
    """Where rows go: made from the ids alone, and needed by both passes."""

    source_slot: jax.Array  #: [rows to send]: the slot of each, -1 for none
    slot_row: jax.Array  #: [t, top_k]: the row of each slot, -1 for none
    splits: tuple  #: the arguments of a ragged exchange there and back; empty for a dense one
    local: tuple  #: group_sizes, source_row, slot_row of the rows that arrive
    dropped: jax.Array


@_named.scope
def moe_mlp(
    x: ArrayLike,
    expert_ids: ArrayLike,
    weights: ArrayLike | None,
    w13: ArrayLike,
    w2: ArrayLike,
    *,
    axis_name: str | tuple[str, ...],
    exchange: Literal["auto", "dense", "ragged", "all_gather"] = "auto",
    capacity: int | None = None,
    return_dropped: bool = False,
    bias13: ArrayLike | None = None,
    bias2: ArrayLike | None = None,
    activation: ActivationName = "swiglu",
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
    transposed: bool = False,
    weights_on_input: bool = False,
    precision: Precision = None,
) -> Any:
    """cadre.jax.moe_mlp of this device's tokens with the experts of all devices along axis_name.

    x [t, h], expert_ids and weights [t, top_k] are this device's; w13, w2 and the biases are those of its experts, as many on
    every device; ids count the experts of all devices, in their order.

    exchange: "dense", an all_to_all of `capacity` rows from each device to each; "ragged", a ragged_all_to_all of as many rows
    as there are, up to `capacity`, which XLA has on GPUs alone; "auto", the second on GPUs and else the first; "all_gather",
    without a capacity: every device sees all tokens and adds what its experts make of them (psum_scatter). capacity: rows from a
    device to a device, default all (t * top_k). Choices beyond it, the last tokens' first, add nothing; with return_dropped the
    result is (out, how many of this device's there were).

    >>> import functools, cadre.jax.expert_parallel
    >>> from jax.sharding import Mesh, PartitionSpec
    >>> moe = functools.partial(cadre.jax.expert_parallel.moe_mlp, axis_name="expert")
    >>> spec = PartitionSpec("expert")
    >>> moe = jax.shard_map(moe, mesh=Mesh(jax.devices()[:1], "expert"), in_specs=(spec,) * 5, out_specs=spec)
    >>> ids, w13, w2 = jnp.array([[0, 2]] * 6), jnp.ones((3, 16, 4)), jnp.ones((3, 4, 8))
    >>> moe(jnp.ones((6, 4)), ids, jnp.full((6, 2), 0.5), w13, w2).shape
    (6, 4)
    """
    _check_axis(axis_name)
    ids = _arguments.as_array(_OP, "expert_ids", expert_ids)
    _arguments.rank_is(_OP, "expert_ids", ids, ("t", "top_k"))
    if exchange not in _EXCHANGES:
        raise ValueError(f"{_OP}: exchange = {exchange!r}, expected one of {', '.join(_EXCHANGES)}")
    if exchange == "auto":
        exchange = "ragged" if jax.default_backend() == "gpu" else "dense"
    if capacity is None:
        capacity = max(ids.size, 1)
    elif exchange == "all_gather":
        raise ValueError(f"{_OP}: capacity = {capacity}, expected None because exchange = 'all_gather'")
    elif isinstance(capacity, bool) or not isinstance(capacity, int):
        raise TypeError(f"{_OP}: capacity is a {type(capacity).__name__}, expected an int")
    if capacity < 1:
        raise ValueError(f"{_OP}: capacity = {capacity}, expected 1 or more")
    options = {
        "activation": activation, "interleaved": interleaved, "alpha": alpha, "limit": limit,
        "up_offset": up_offset, "transposed": transposed, "weights_on_input": weights_on_input,
        "precision": precision,
    }  # fmt: skip
    if exchange == "all_gather":
        out = _by_all_gather(x, ids, weights, w13, w2, axis_name, bias13=bias13, bias2=bias2, **options)
        return (out, jnp.zeros((), jnp.int32)) if return_dropped else out
    # Its checks and errors, on shapes alone: no id is one of this device's experts then.
    jax.eval_shape(
        functools.partial(_moe_mlp.moe_mlp, bias13=bias13, bias2=bias2, **options), x, ids, weights, w13, w2
    )  # fmt: skip
    x = jnp.asarray(x)
    if weights_on_input and weights is None:
        weights_on_input = False
    params = (
        ("activation", _options.ACTIVATIONS[activation]), ("interleaved", bool(interleaved)),
        ("alpha", float(alpha)), ("limit", float(limit)), ("up_offset", float(up_offset)),
        ("transposed", bool(transposed)), ("weights_on_input", False),
        ("precision", _arguments.precision(_OP, precision, x, jnp.asarray(w13))),
    )  # fmt: skip
    layer = _Layer(axis_name, exchange, capacity, params)
    given = tuple(name for name, each in (("bias13", bias13), ("bias2", bias2)) if each is not None)
    biases = [jnp.asarray(each) for each in (bias13, bias2) if each is not None]
    has_weights = weights is not None
    operands = [x, *([jnp.asarray(weights)] if has_weights else []), jnp.asarray(w13), jnp.asarray(w2), *biases]
    # All vary over the same axes: whatever is the same on several devices has its gradient summed by JAX.
    ids, *operands = unify(ids.astype(jnp.int32), *operands)
    way = _way(layer, ids, operands[1 + has_weights].shape[0])
    form = (has_weights, bool(weights_on_input), given)
    out = _exchanged(layer, form, way, *operands)
    return (out, way.dropped) if return_dropped else out


def _check_axis(axis_name):
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if not names or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{_OP}: axis_name = {axis_name!r}, expected the name of a mesh axis or a tuple of names")
    try:
        lax.axis_size(axis_name)
    except NameError:
        expected = "a mesh axis of the shard_map around the call"
        raise ValueError(f"{_OP}: axis_name = {axis_name!r}, expected {expected}") from None


def _by_all_gather(x, ids, weights, w13, w2, axis_name, **options):
    gather = functools.partial(lax.all_gather, axis_name=axis_name, tiled=True)
    local = jnp.shape(w13)[0]
    out = _moe_mlp.moe_mlp(
        gather(x), gather(ids), None if weights is None else gather(weights), w13, w2,
        num_experts=local * lax.axis_size(axis_name), group_offset=lax.axis_index(axis_name) * local,
        **options,
    )  # fmt: skip
    return lax.psum_scatter(out, axis_name, tiled=True)


# ---- where rows go -----------------------------------------------------------------------------


def _starts(sizes):
    return jnp.cumsum(sizes) - sizes


def _way(layer, ids, local_experts):
    devices, capacity = lax.axis_size(layer.axis_name), layer.capacity
    experts, slots = devices * local_experts, ids.size
    flat = ids.reshape(-1)
    exists = (flat >= 0) & (flat < experts)
    device = jnp.where(exists, flat // local_experts, devices)
    stays = exists
    if capacity < slots:
        # The place of a slot among those for its device, in the order of the tokens.
        order = jnp.argsort(device, stable=True)
        row = jnp.zeros_like(flat).at[order].set(jnp.arange(slots, dtype=flat.dtype))
        counts = jnp.bincount(device, length=devices + 1)
        stays = exists & (row - _starts(counts)[device] < capacity)
    key = jnp.where(stays, flat, experts)
    order = jnp.argsort(key, stable=True)
    row = jnp.zeros_like(flat).at[order].set(jnp.arange(slots, dtype=flat.dtype))
    counts = jnp.bincount(key, length=experts + 1)[:experts].astype(jnp.int32).reshape(devices, local_experts)
    sent = counts.sum(1)
    arriving = lax.all_to_all(counts, layer.axis_name, 0, 0, tiled=True)
    if layer.exchange == "dense":
        row = row - _starts(sent)[jnp.where(stays, device, 0)] + device * capacity
        ends = jnp.cumsum(arriving, 1)
        places = jnp.arange(capacity)
        local_ids = (places[None, :, None] >= ends[:, None, :]).sum(-1).reshape(-1)
        splits, rows = (), devices * capacity
    else:
        ends = jnp.cumsum(arriving.reshape(-1))
        places = jnp.arange(devices * capacity)
        group = jnp.searchsorted(ends, places, side="right")
        local_ids = jnp.where(group < ends.size, group % local_experts, local_experts)
        splits, rows = _splits(layer.axis_name, sent, arriving.sum(1)), slots
    slot_row = jnp.where(stays, row, -1)
    source_slot = jnp.full(rows + 1, -1, flat.dtype).at[jnp.where(stays, row, rows)].set(jnp.arange(slots, dtype=flat.dtype))
    local = route_p.bind(local_ids[:, None].astype(jnp.int32), num_experts=local_experts, batch_rank=0)
    dropped = (exists & ~stays).sum(dtype=jnp.int32)
    return _Way(source_slot[:rows], slot_row.reshape(ids.shape), splits, tuple(local), dropped)


def _splits(axis_name, sent, received):
    """(input_offsets, send_sizes, output_offsets, recv_sizes) there, and the same back."""
    exchanged = functools.partial(lax.all_to_all, axis_name=axis_name, split_axis=0, concat_axis=0, tiled=True)
    there, here = _starts(sent), _starts(received)
    return (there, sent, exchanged(here), received), (here, received, exchanged(there), sent)


def _send(layer, way, rows, back=False):
    """Rows to the devices of their experts, or the results back."""
    if layer.exchange == "dense":
        return lax.all_to_all(rows, layer.axis_name, 0, 0, tiled=True)
    size = way.source_slot.size if back else lax.axis_size(layer.axis_name) * layer.capacity
    room = unify(jnp.zeros((size, rows.shape[1]), rows.dtype), rows)[0]
    return lax.ragged_all_to_all(rows, room, *way.splits[back], axis_name=layer.axis_name)


# ---- the layer ---------------------------------------------------------------------------------


def _gather(way, tokens, weights=None):
    """[rows to send, h]: the token of each row, times the weight of its slot if there are weights; zero for rows of no slot."""
    top_k = way.slot_row.shape[1]
    rows = tokens[way.source_slot // top_k]
    if weights is not None:
        wide = jnp.promote_types(rows.dtype, jnp.float32)
        rows = (rows.astype(wide) * weights.reshape(-1)[way.source_slot][:, None].astype(wide)).astype(tokens.dtype)
    return jnp.where((way.source_slot >= 0)[:, None], rows, 0)


def _combine(way, rows, weights, dtype):
    """[t, h]: the sum of a token's rows, times their weights, in the order of its slots, in f32."""
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    out = jnp.zeros((way.slot_row.shape[0], rows.shape[1]), wide)
    for slot in range(way.slot_row.shape[1]):
        index = way.slot_row[:, slot]
        part = rows[index].astype(wide)
        if weights is not None:
            part = part * weights[:, slot, None].astype(wide)
        out = out + jnp.where((index >= 0)[:, None], part, 0)
    return out.astype(dtype)


def _of_slots(way, numbers):
    """[t, top_k]: the number of each slot's row, 0 for slots without one."""
    return jnp.where(way.slot_row >= 0, numbers.reshape(-1)[way.slot_row], 0)


def _experts(layer, form, received, local, parameters, weights=None):
    """The operands of moe_mlp_p for rows that arrived, tokens with one choice each, and its parameters."""
    w13, w2, *biases = parameters
    sizes, source_row, slot_row = local
    named = {
        "x": received, "w13": w13, "w2": w2, "group_sizes": sizes, "group_offset": jnp.zeros(1, sizes.dtype),
        "source_row": source_row, "slot_row": slot_row, "weights": weights, **dict(zip(form[2], biases)),
    }  # fmt: skip
    given = tuple(name for name in OPTIONAL if named.get(name) is not None)
    return unify(*(named[name] for name in FIXED + given)), {"given": given, "batch_rank": 0, **dict(layer.params)}


def _apart(form, operands):
    """x, the weights or None, and the parameters."""
    x, *rest = operands
    return (x, rest[0], rest[1:]) if form[0] else (x, None, rest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _exchanged(layer, form, way, *operands):
    return _forward(layer, form, way, operands, False)[0]


def _forward(layer, form, way, operands, keeps):
    x, weights, parameters = _apart(form, operands)
    on_input = form[1]
    received = _send(layer, way, _gather(way, x, weights if on_input else None))
    bound, params = _experts(layer, form, received, way.local, parameters)
    y, *preact = moe_mlp_p.bind(*bound, keeps_preact=keeps, **params)
    back = _send(layer, way, y, back=True)
    return _combine(way, back, None if on_input else weights, x.dtype), received, preact


def _forward_kept(layer, form, way, *operands):
    out, received, preact = _forward(layer, form, way, operands, True)
    x, weights, parameters = _apart(form, operands)
    return out, (way, received, *preact, x if form[1] else jnp.zeros((0,), x.dtype), weights, tuple(parameters))


def _backward(layer, form, kept, dout):
    way, received, preact, x, weights, parameters = kept
    has_weights, on_input, given = form
    arrived = _send(layer, way, _gather(way, dout))
    row_weights = None
    if has_weights and not on_input:
        numbers = jnp.where(way.source_slot >= 0, weights.reshape(-1)[way.source_slot], 0)[:, None]
        row_weights = _send(layer, way, numbers)
    bound, params = _experts(layer, form, received, way.local, parameters, row_weights)
    wanted = ("x", *(["weights"] if row_weights is not None else []), "w13", "w2", *given)
    wanted = tuple(name for name in DIFFERENTIABLE if name in wanted)
    names = dict(zip(FIXED + params["given"], bound))
    made = moe_mlp_grad_p.bind(
        *bound, preact, arrived, wanted=wanted, dtypes=tuple(names[name].dtype for name in wanted), **params
    )  # fmt: skip
    made = dict(zip(wanted, made, strict=True))
    rows = _send(layer, way, made["x"], back=True)
    gradients = [_combine(way, rows, weights if on_input else None, dout.dtype)]
    if row_weights is not None:
        gradients.append(_of_slots(way, _send(layer, way, made["weights"], back=True)).astype(weights.dtype))
    elif has_weights:
        wide = jnp.promote_types(rows.dtype, jnp.float32)
        dots = (_gather(way, x).astype(wide) * rows.astype(wide)).sum(-1)
        gradients.append(_of_slots(way, dots).astype(weights.dtype))
    gradients += [made[name] for name in ("w13", "w2", *given)]
    return None, *gradients


_exchanged.defvjp(_forward_kept, _backward)
