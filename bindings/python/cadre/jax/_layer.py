"""The primitives of a layer of experts and their rules. Operands have leading batch dims as those of the products have.

| primitive | operands | results |
|---|---|---|
| route_p | expert_ids [t, top_k] | group_sizes, source_row, slot_row |
| moe_mlp_p | x, w13, w2, group_sizes, group_offset, then `given` | out [t, h]; preact [m, 2i] with keeps_preact |
| tangent_p | those of moe_mlp_p, preact, then tangents of the operands `of` | out's tangent |
| moe_mlp_grad_p | those of moe_mlp_p, preact, dout | the gradients `wanted` |

A derivative's first step is the layer with its pre-activation and tangent_p, which is linear in the tangents; transposed it is
moe_mlp_grad_p, MoeMlp's backward pass. So reverse mode keeps the operands and the pre-activation. To the rules preact is a copy
of what the operands say, and carries no tangent: second derivatives are those of the composition (_layer_composed.py).
"""

import functools

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from . import _layer_composed, _lowering
from ._primitives import (
    batch_shape,
    cotangent_dtype,
    cotangent_of,
    define_batching,
    result_aval,
    run_compiled,
)

FIXED = ("x", "w13", "w2", "group_sizes", "group_offset")
#: What may stand behind them, in this order; the indices both or neither.
OPTIONAL = ("source_row", "slot_row", "weights", "bias13", "bias2")
#: What has a gradient, in the order of moe_mlp_grad's results.
DIFFERENTIABLE = ("x", "weights", "w13", "w2", "bias13", "bias2")

route_p = Primitive("cadre_route")
moe_mlp_p = Primitive("cadre_moe_mlp")
tangent_p = Primitive("cadre_moe_mlp_tangent")
moe_mlp_grad_p = Primitive("cadre_moe_mlp_grad")
for _primitive in (route_p, moe_mlp_p, moe_mlp_grad_p):
    _primitive.multiple_results = True


def _by_name(operands, given):
    """The operands of a layer by their names, and what stands behind them."""
    names = FIXED + given
    return dict(zip(names, operands)), list(operands[len(names) :])


def _of_layer(params):
    """The parameters that say what a layer computes."""
    apart = ("given", "keeps_preact", "of", "wanted", "dtypes", "batch_rank")
    return {name: value for name, value in params.items() if name not in apart}


# ---- what they are ---------------------------------------------------------------------------


def _route_aval(ids, *, num_experts, batch_rank):
    batch, (tokens, top_k) = ids.shape[:batch_rank], ids.shape[batch_rank:]
    shapes = (num_experts,), (tokens * top_k,), (tokens, top_k)
    return [result_aval(ids, batch, shape, np.int32) for shape in shapes]


def _moe_mlp_aval(*operands, given, keeps_preact, transposed, batch_rank, **_):
    o, _ = _by_name(operands, given)
    x, batch = o["x"], batch_shape(operands, batch_rank)
    results = [result_aval(x, batch, x.shape[batch_rank:], x.dtype)]
    if keeps_preact:
        m = o["source_row"].shape[-1] if "source_row" in o else x.shape[batch_rank]
        full = o["w13"].shape[-1 if transposed else -2]
        results.append(result_aval(x, batch, (m, full), x.dtype))
    return results


def _tangent_aval(*operands, batch_rank, **_):
    x = operands[0]
    return result_aval(x, batch_shape(operands, batch_rank), x.shape[batch_rank:], x.dtype)


def _grad_aval(*operands, given, wanted, dtypes, batch_rank, **_):
    o, _ = _by_name(operands, given)
    batch = batch_shape(operands, batch_rank)
    return [
        result_aval(o["x"], batch, o[name].shape[batch_rank:], dtype)
        for name, dtype in zip(wanted, dtypes)
    ]


# ---- composed of other ops -------------------------------------------------------------------


def _route_composed(ids, *, num_experts, batch_rank):
    entry = functools.partial(_layer_composed.route, num_experts=num_experts)
    return list(_layer_composed.over_batch(entry, [ids], batch_rank))


def _moe_mlp_composed(*operands, given, keeps_preact, batch_rank, **params):
    def entry(*each):
        o, _ = _by_name(each, given)
        pre = _layer_composed.preactivation(o, **params)
        out = _layer_composed.result(pre, o, **params)
        return [out, pre] if keeps_preact else [out]

    return _layer_composed.over_batch(entry, operands, batch_rank)


def _tangent_composed(*operands, given, of, batch_rank, anew=False, **params):
    def entry(*each):
        o, (preact, *dots) = _by_name(each, given)
        dots = dict(zip(of, dots))
        if anew:
            return _layer_composed.tangent_anew(o, dots, **params)
        return _layer_composed.tangent(o, preact, dots, **params)

    return _layer_composed.over_batch(entry, operands, batch_rank)


def _grad_composed(*operands, given, wanted, dtypes, batch_rank, **params):
    def entry(*each):
        o, (_, dout) = _by_name(each, given)
        gradients = _layer_composed.gradients(o, dout, wanted, **params)
        return [gradients[name].astype(dtype) for name, dtype in zip(wanted, dtypes)]

    return _layer_composed.over_batch(entry, operands, batch_rank)


# ---- derivatives -----------------------------------------------------------------------------


def _moe_mlp_jvp(primals, tangents, *, given, keeps_preact, **params):
    dots = {
        name: dot for name, dot in zip(FIXED + given, tangents) if type(dot) is not ad.Zero
    }
    shared = {"given": given, **params}
    out, preact = moe_mlp_p.bind(*primals, keeps_preact=True, **shared)
    out_dot = tangent_p.bind(*primals, preact, *dots.values(), of=tuple(dots), **shared)
    if not keeps_preact:
        return [out], [out_dot]
    return [out, preact], [out_dot, ad.Zero(jax.typeof(preact).to_tangent_aval())]


def _tangent_transpose(cotangent, *operands, given, of, batch_rank, **params):
    o, (preact, *dots) = _by_name(operands, given)
    nothing = [None] * (len(operands) - len(dots))
    if type(cotangent) is ad.Zero:
        return nothing + [None] * len(dots)
    asked = {name: dot for name, dot in zip(of, dots) if ad.is_undefined_primal(dot)}
    wanted = tuple(name for name in DIFFERENTIABLE if name in asked)
    made = moe_mlp_grad_p.bind(
        *o.values(), preact, cotangent, given=given, wanted=wanted, batch_rank=batch_rank, **params,
        dtypes=tuple(cotangent_dtype(asked[name], cotangent, batch_rank) for name in wanted),
    )  # fmt: skip
    bars = {
        name: cotangent_of(asked[name], bar, cotangent, batch_rank)
        for name, bar in zip(wanted, made, strict=True)
    }
    return nothing + [bars.get(name) for name in of]


def _jvp_of(primitive, composed):
    """Tangents by differentiating a composition of the operands alone."""

    def jvp(primals, tangents, **params):
        result = primitive.bind(*primals, **params)
        moved = [i for i, dot in enumerate(tangents) if type(dot) is not ad.Zero]

        def of_moved(*some):
            operands = list(primals)
            for i, value in zip(moved, some):
                operands[i] = value
            return composed(*operands, **params)

        _, result_dot = jax.jvp(of_moved, [primals[i] for i in moved], [tangents[i] for i in moved])
        return result, result_dot

    return jvp


# ---- registration ----------------------------------------------------------------------------


def _bits(names, order):
    return sum(1 << order.index(name) for name in names)


def _attributes(params):
    """What the handlers are told (bindings/jax/layer_handlers.cc)."""
    given = [name for name in params["given"] if name != "slot_row"]
    order = [name for name in OPTIONAL if name != "slot_row"]
    told = {**_of_layer(params), "batch_rank": params["batch_rank"], "given": _bits(given, order)}
    if "wanted" in params:
        told["wanted"] = _bits(params["wanted"], DIFFERENTIABLE)
    else:
        told["keeps_preact"] = params["keeps_preact"]
    return told


def _define(primitive, aval, composed, attributes=None):
    primitive.def_impl(functools.partial(run_compiled, primitive))
    primitive.def_abstract_eval(aval)
    define_batching(primitive)
    _lowering.register_composed(primitive, composed, attributes)


_define(route_p, _route_aval, _route_composed, lambda params: {"batch_rank": params["batch_rank"]})
_define(moe_mlp_p, _moe_mlp_aval, _moe_mlp_composed, _attributes)
_define(tangent_p, _tangent_aval, _tangent_composed)
_define(moe_mlp_grad_p, _grad_aval, _grad_composed, _attributes)
ad.primitive_jvps[moe_mlp_p] = _moe_mlp_jvp
ad.primitive_jvps[tangent_p] = _jvp_of(tangent_p, functools.partial(_tangent_composed, anew=True))
ad.primitive_jvps[moe_mlp_grad_p] = _jvp_of(moe_mlp_grad_p, _grad_composed)
ad.primitive_transposes[tangent_p] = _tangent_transpose
