"""moe_mlp and grouped_mlp: the experts of a layer as one call of the core's, with their derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from .. import _dtypes, _options, _structs
from .. import _scaled as _modes
from .._types import ActivationName, ScaleMode
from . import _arguments, _named, _scaled_mlp
from ._layer import FIXED, OPTIONAL, moe_mlp_p, route_p
from ._layer_composed import activate_wide, is_gated
from ._ops import gmm_of
from ._primitives import unify
from ._types import ArrayLike, Precision, Sizes

_OP = "moe_mlp"


@_named.scope
def moe_mlp(
    x: ArrayLike,
    expert_ids: ArrayLike,
    weights: ArrayLike | None,
    w13: ArrayLike,
    w2: ArrayLike,
    *,
    bias13: ArrayLike | None = None,
    bias2: ArrayLike | None = None,
    activation: ActivationName = "swiglu",
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
    transposed: bool = False,
    weights_on_input: bool = False,
    num_experts: int | None = None,
    group_offset: ArrayLike | None = None,
    precision: Precision = None,
    recipe: ScaleMode | None = None,
) -> jax.Array:
    """out[t] = sum over j of weights[t, j] * expert(x[t]), for the experts expert_ids[t, j].

    x: [t, h]. expert_ids: [t, top_k] of integers; ids that no expert has are dropped. weights: [t, top_k], or None for 1.
    An expert is activation(x @ w13^T + bias13) @ w2^T + bias2 with w13 [g, 2i, h] and w2 [g, h, i], or with `transposed`
    [g, h, 2i] and [g, i, h].

    activation: "swiglu", "geglu", "geglu_tanh" or "clamped_swiglu" (gpt-oss's, with alpha, limit and up_offset), whose gate
    lies before the up part or, with `interleaved`, beside it; "silu", "gelu", "gelu_tanh", "relu2" or "none" without a gate
    (w13 [g, i, h]). weights_on_input scales tokens on their way in. With num_experts above the number of experts here, these
    are the experts from group_offset on, and others add nothing: the sum over all shards is the layer.

    Rows of an expert are in token order, slots are summed in order in f32. x, weights and the parameters are differentiable, in
    both modes and any number of times. For reverse mode x, the pre-activation [t * top_k, 2i] and the routing are kept.
    recipe: the products in FP8, as in gmm, of x, w13 and w2 of f32, bf16 or f16. For reverse mode, then the only one, the
    copies of rows and weights that the gradients multiply and the pre-activation are kept in FP8; weights multiply rows before
    w2 does.

    >>> x, ids = jnp.ones((7, 4)), jnp.zeros((7, 2), jnp.int32).at[:, 1].set(2)  # experts 0 and 2
    >>> w13, w2 = jnp.ones((3, 10, 4)), jnp.ones((3, 4, 5))
    >>> cadre.jax.moe_mlp(x, ids, jnp.full((7, 2), 0.5), w13, w2).shape
    (7, 4)
    """
    types = _arguments.FLOATS
    if recipe is not None:
        _modes.check_recipe(_OP, recipe)
        types = _arguments.FP8_RESULTS
    x = _arguments.array(_OP, "x", x, ("t", "h"), types)
    ids = _arguments.as_array(_OP, "expert_ids", expert_ids)
    _arguments.rank_is(_OP, "expert_ids", ids, ("t", "top_k"))
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{_OP}: expert_ids.dtype = {ids.dtype.name}, expected an integer type")
    _arguments.equal(_OP, "expert_ids.shape[0]", ids.shape[0], "x.shape[0]", x.shape[0])
    if weights is not None:
        weights = _arguments.floats(_OP, "weights", weights, ("t", "top_k"))
        _arguments.equal(_OP, "weights.shape", weights.shape, "expert_ids.shape", ids.shape)
    if activation not in _options.ACTIVATIONS:
        names = ", ".join(_options.ACTIVATIONS)
        raise ValueError(f"{_OP}: activation = {activation!r}, expected one of {names}")
    kind = _options.ACTIVATIONS[activation]
    interleaved = _arguments.flag(_OP, "interleaved", interleaved)
    transposed = _arguments.flag(_OP, "transposed", transposed)
    w13 = _arguments.array(_OP, "w13", w13, ("g", "h", "2i") if transposed else ("g", "2i", "h"), types)
    w2 = _arguments.array(_OP, "w2", w2, ("g", "i", "h") if transposed else ("g", "h", "i"), types)
    _check_parameters(x, w13, w2, bias13, bias2, kind, transposed)
    local = w13.shape[0]
    if num_experts is None and group_offset is not None:
        raise ValueError(f"{_OP}: group_offset is given without num_experts, expected both")
    total = local if num_experts is None else num_experts
    if total < local:
        raise ValueError(f"{_OP}: num_experts = {total}, expected at least the {local} of w13")

    if not _dtypes.code_of(ids.dtype):
        ids = ids.astype(jnp.int32)
    sizes, source_row, slot_row = route_p.bind(ids, num_experts=total, batch_rank=0)
    operands = {
        "x": x,
        "w13": w13,
        "w2": w2,
        "group_sizes": sizes,
        "group_offset": _arguments.group_offset(_OP, group_offset, sizes),
        "source_row": source_row,
        "slot_row": slot_row,
        "weights": weights,
        "bias13": None if bias13 is None else jnp.asarray(bias13),
        "bias2": None if bias2 is None else jnp.asarray(bias2),
    }
    params = {
        "activation": kind,
        "interleaved": interleaved,
        "alpha": float(alpha),
        "limit": float(limit),
        "up_offset": float(up_offset),
        "transposed": transposed,
        "weights_on_input": _arguments.flag(_OP, "weights_on_input", weights_on_input),
        "precision": _arguments.precision(_OP, precision, x, w13),
    }
    if recipe is not None:
        return _scaled_mlp.experts(_OP, _given(operands), recipe, **params)
    return _bind(operands, **params)


def _given(operands):
    """Those that aren't None, by name and in the primitives' order."""
    return {name: operands[name] for name in FIXED + OPTIONAL if operands.get(name) is not None}


def _bind(operands, **params):
    """The layer's result. Operands by name; None for those left out."""
    operands = _given(operands)
    given = tuple(operands)[len(FIXED) :]
    return moe_mlp_p.bind(
        *unify(*operands.values()), given=given, keeps_preact=False, batch_rank=0, **params
    )[0]


def _check_parameters(x, w13, w2, bias13, bias2, kind, transposed):
    """Shapes that fit each other."""
    inner, outer = (1, 2) if transposed else (2, 1)
    full, h = w13.shape[outer], x.shape[1]
    if is_gated(kind) and full % 2:
        raise ValueError(f"{_OP}: w13 has {full} columns, expected an even number: gate and up parts")
    _arguments.equal(_OP, "w13.h", w13.shape[inner], "x.h", h)
    _arguments.equal(_OP, "w2.g", w2.shape[0], "w13.g", w13.shape[0])
    _arguments.equal(_OP, "w2.i", w2.shape[inner], "the activation's i", full // (2 if is_gated(kind) else 1))
    _arguments.equal(_OP, "w2.h", w2.shape[outer], "x.h", h)
    for name, bias, n in (("bias13", bias13, full), ("bias2", bias2, h)):
        if bias is not None:
            bias = _arguments.floats(_OP, name, bias, ("g", "n"))
            _arguments.equal(_OP, f"{name}.shape", bias.shape, "(g, n)", (w13.shape[0], n))


#: Functions of a gate whose product with the up part is one of the core's activations.
_GATES = {
    jax.nn.silu: _structs.SWIGLU,
    jax.nn.gelu: _structs.GEGLU_TANH,
}


#: Parameters of an activation beside its kind, where none is chosen.
_PLAIN = {"interleaved": False, "alpha": 0.0, "limit": 0.0, "up_offset": 0.0}


def _gate_of(function):
    """The activation that a gate's function makes, or None if the core has none such."""
    if isinstance(function, functools.partial) and not function.args and function.func is jax.nn.gelu:
        kinds = {True: _structs.GEGLU_TANH, False: _structs.GEGLU_ERF}
        alone = set(function.keywords) == {"approximate"}
        return kinds.get(function.keywords["approximate"]) if alone else None
    try:
        return _GATES.get(function)
    except TypeError:  # a callable that can't be hashed
        return None


@_named.scope
def grouped_mlp(
    x: ArrayLike, gate_up: ArrayLike, down: ArrayLike, group_sizes: Sizes, *, activation: Callable[[jax.Array], jax.Array] = jax.nn.silu, group_offset: ArrayLike | None = None, precision: Precision = None, recipe: ScaleMode | None = None
) -> jax.Array:
    """The experts' gated MLP of rows sorted by expert: h = x @ gate_up, out = (activation(gate) * up) @ down.

    gate_up: [g, k, 2h], the gate's columns first. down: [g, h, k_out]. With jax.nn.silu or jax.nn.gelu (also
    functools.partial(jax.nn.gelu, approximate=False)), one float type and k_out = k it is one call, for whose gradients x and
    the pre-activation are kept; else two products with the activation between them. recipe: products in FP8, as in gmm; with
    jax.nn.silu or jax.nn.gelu the pre-activation is kept in FP8, too.

    >>> gate_up, down = jnp.ones((3, 4, 10)), jnp.ones((3, 5, 4))
    >>> cadre.jax.grouped_mlp(jnp.ones((6, 4)), gate_up, down, jnp.array([2, 0, 4])).shape
    (6, 4)
    """
    op = "grouped_mlp"
    _arguments.function(op, "activation", activation)
    gate_up = _arguments.array(op, "gate_up", gate_up, ("g", "k", "2h"))
    if gate_up.shape[-1] % 2:
        raise ValueError(f"{op}: gate_up.shape[2] = {gate_up.shape[-1]}, expected an even number")

    def product(names, lhs, rhs):
        shared = {"group_offset": group_offset, "precision": precision, "recipe": recipe}
        return gmm_of(op, lhs, rhs, group_sizes, names=names, **shared)

    kind = _gate_of(activation)

    def composed(x, gate_up, down):
        preact = product(("x", "gate_up"), x, gate_up)
        if recipe is not None and kind is not None:
            function = functools.partial(activate_wide, activation=kind, **_PLAIN)
            sizes = unify(_arguments.group_sizes_vector(op, group_sizes), preact)[0]
            hidden = _scaled_mlp.activated(function, preact, None, sizes)
        else:
            gate, up = jnp.split(preact, 2, axis=-1)
            hidden = activation(gate) * up
        return product(("hidden", "down"), hidden, down)

    x, down = _arguments.as_array(op, "x", x), _arguments.as_array(op, "down", down)
    # What is wrong with the operands is said by the products, which both ways share.
    out = jax.eval_shape(composed, x, gate_up, down)
    one_type = x.dtype == gate_up.dtype == down.dtype == out.dtype
    if recipe is not None or kind is None or not one_type or x.dtype.name not in _arguments.FLOATS or out.shape != x.shape:
        return composed(x, gate_up, down)
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    operands = {
        "x": x,
        "w13": gate_up,
        "w2": down,
        "group_sizes": sizes,
        "group_offset": _arguments.group_offset(op, group_offset, sizes),
    }
    return _bind(
        operands,
        activation=kind,
        **_PLAIN,
        transposed=True,
        weights_on_input=False,
        precision=_arguments.precision(op, precision, x, gate_up),
    )
