"""moe_mlp: the experts of a mixture-of-experts layer, from tokens to tokens, as one operator with its gradients."""

from __future__ import annotations

import functools

import torch
import torch.autograd.forward_ad as _forward_ad

from .. import _options
from .._errors import wrong_value
from .._types import Activation as ActivationArgument
from .._types import ScaleMode
from . import _arguments, _operators, _packed, _scaled_mlp
from ._activation import Activation, activation_of
from ._errors import renamed, translated
from ._experts import composed
from ._packed import PackedWeights
from ._recipes import recipe_of
from ._routing import Routing, route
from ._scaled import ScaledTensor
from ._transforms import Derivatives
from ._types import Operands, Tensor, Tensors

_OP = "moe_mlp"
_transform_level = torch._C._functorch.maybe_current_level


def moe_mlp(
    x: Tensor,
    expert_ids: Tensor | Routing,
    weights: Tensor | None,
    w13: Operands | tuple[ScaledTensor, ScaledTensor],
    w2: Operands | tuple[ScaledTensor, ScaledTensor],
    *,
    bias13: Tensors | None = None,
    bias2: Tensors | None = None,
    activation: ActivationArgument = "swiglu",
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
    transposed: bool = False,
    weights_on_input: bool = False,
    shared: Tensor | None = None,
    residual: Tensor | None = None,
    num_experts: int | None = None,
    group_offset: int | Tensor = 0,
    out_dtype: torch.dtype | None = None,
    packed_w13: PackedWeights | None = None,
    packed_w2: PackedWeights | None = None,
    recipe: ScaleMode | None = None,
) -> Tensor:
    """out[t] = sum over j of weights[t, j] * expert(x[t]) + shared[t] + residual[t], for the experts expert_ids[t, j].

    x [t, h]; expert_ids [t, top_k] of any integer type (ids that no expert has are dropped), or what route() made of them;
    weights [t, top_k], or None for 1. An expert is activation(x @ w13^T + bias13) @ w2^T + bias2 with w13 [g, 2i, h] and
    w2 [g, h, i], or with `transposed` [g, h, 2i] and [g, i, h]; one tensor or a list with a matrix for each expert.

    activation: "swiglu", "geglu", "geglu_tanh" or "clamped_swiglu" (gpt-oss's, with alpha, limit and up_offset), whose gate
    lies before the up part or, with `interleaved`, beside it; "silu", "gelu", "gelu_tanh", "relu2" or "none" without a gate
    (w13 [g, i, h]); or a function of the rows [m, 2i], which then runs between two products of its own.
    weights_on_input scales tokens on their way in. With num_experts above the number of experts here, these are the
    experts from group_offset (an int or a tensor) on, and others add nothing.

    recipe="block_128", "row", "tensor" or "mx" computes the products in FP8 (docs/fp8.md). w13 and w2 are quantised in
    every call then, unless they are FP8 already: ScaledTensors [g, 2i, h] and [g, h, i], or what quantize(w, recipe,
    columns=True) made of them. It is differentiable once.

    x, weights, the parameters, shared and residual are differentiable, any number of times. For backward x, the
    pre-activation [t * top_k, 2i] and the routing are kept. packed_w13 and packed_w2 are what pack_weights made of w13 and
    w2, for inference on a CPU.

    >>> x, logits = torch.randn(7, 4), torch.randn(7, 3)
    >>> w13, w2 = torch.randn(3, 10, 4), torch.randn(3, 4, 5)  # three experts, 5 wide inside
    >>> weights, ids = cadre.torch.select_experts(logits, top_k=2)
    >>> cadre.torch.moe_mlp(x, ids, weights, w13, w2).shape
    torch.Size([7, 4])
    """
    fn = activation_of(_OP, activation, interleaved, (alpha, limit, up_offset))
    offset_tensor, offset = _arguments.group_offset(_OP, group_offset)
    recipe = recipe_of(_OP, recipe)
    try:
        if recipe is not None:
            for name, packed in (("packed_w13", packed_w13), ("packed_w2", packed_w2)):
                if packed is not None:
                    raise wrong_value(_OP, name, "given", "None, because a recipe is given")
            where = {
                "weights_on_input": _options.flag(_OP, "weights_on_input", weights_on_input),
                "transposed": _options.flag(_OP, "transposed", transposed),
                "group_offset": offset if offset_tensor is None else offset_tensor,
                "out_dtype": out_dtype,
            }
            parameters = w13, w2, bias13, bias2
            added = {"shared": shared, "residual": residual}
            return _scaled(recipe, fn, x, expert_ids, num_experts, weights, parameters, where, **added)
        if isinstance(w13, ScaledTensor) or isinstance(w2, ScaledTensor):
            raise wrong_value(_OP, "recipe", None, "the mode of the scales, because w13 or w2 is a ScaledTensor")
        x, w13, w2 = _autocast(x, w13, w2)
        w13 = _arguments.one_or_list(_OP, "w13", w13, 2)
        w2 = _arguments.one_or_list(_OP, "w2", w2, 2)
        if isinstance(expert_ids, Routing):
            if num_experts is not None:
                expected = "None, because the tokens are routed"
                raise wrong_value(_OP, "num_experts", num_experts, expected)
        elif num_experts is None:
            if offset_tensor is not None or offset:
                raise wrong_value(_OP, "num_experts", None, "a number, because group_offset is given")
            num_experts = w13[0].shape[0] if w13 and w13[0].dim() == 3 else len(w13)
        routing = routed(expert_ids, num_experts)
        arguments = {
            "x": x,
            "w13": w13,
            "w2": w2,
            "bias13": _arguments.one_or_list(_OP, "bias13", bias13, 1),
            "bias2": _arguments.one_or_list(_OP, "bias2", bias2, 1),
            "group_sizes": routing.group_sizes,
            "source_row": routing.source_row,
            "slot_row": routing.slot_row,
            "weights": weights,
            "group_offset_tensor": offset_tensor,
            "group_offset": offset,
            "transposed": _options.flag(_OP, "transposed", transposed),
            "activation": fn.kind if isinstance(fn, Activation) else 0,
            "interleaved": _options.flag(_OP, "interleaved", interleaved),
            "clamp": [float(alpha), float(limit), float(up_offset)],
            "weights_on_input": _options.flag(_OP, "weights_on_input", weights_on_input),
            "shared": shared,
            "residual": residual,
            "keeps_preact": _arguments.wants_gradients(x, weights, bias13, bias2, w13, w2),
            "out_dtype": out_dtype,
        }
        if packed_w13 is not None or packed_w2 is not None:
            wanting = {name: arguments[name] for name in _GRADIENTS}
            for name, packed in (("packed_w13", packed_w13), ("packed_w2", packed_w2)):
                arguments[name] = _packed.address(_OP, name, packed, wanting)
        transformed = _transform_level() is not None or _forward_ad._current_level >= 0
        if transformed or not isinstance(fn, Activation):
            return composed(_operators.moe_mlp.Arguments(**_operators.moe_mlp.defaults | arguments), fn)
        return _operators.moe_mlp.call(**arguments)[0]
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {
            "x": x,
            "weights": weights,
            "w13": w13,
            "w2": w2,
            "bias13": bias13,
            "bias2": bias2,
            "shared": shared,
            "residual": residual,
        }
        raise translated(_OP, error, tensors, out_dtype) from None


def _scaled(recipe, fn, x, expert_ids, num_experts, weights, parameters, where, **added):
    """moe_mlp in FP8. parameters: w13, w2, bias13 and bias2."""
    if not isinstance(fn, Activation):
        raise wrong_value(_OP, "activation", "a function", "a name, because a recipe is given")
    w13, w2, *biases = parameters
    layer, matrices, num_local = _scaled_mlp.stateless(recipe, fn, w13, w2, **where)
    routing = routed(expert_ids, num_local if num_experts is None else num_experts)
    biases = [] if biases == [None, None] else biases
    return _scaled_mlp.run(layer, x, routing, weights, matrices, biases, **added)


def routed(expert_ids, num_experts):
    """The Routing of expert ids, or the one that is given in their place."""
    if isinstance(expert_ids, Routing):
        return expert_ids
    try:
        return route(expert_ids, num_experts)
    except (ValueError, TypeError) as error:
        raise renamed(error, {"route": _OP}) from None


def _autocast(x, w13, w2):
    _, w2 = _arguments.autocast(x, w2)
    x, w13 = _arguments.autocast(x, w13)
    return x, w13, w2


_PARAMETERS = ("w13", "w2", "bias13", "bias2")
#: What moe_mlp_grad gives the gradients of, in its order.
_GRADIENTS = ("x", "weights", *_PARAMETERS)
_OF_BOTH = set(_operators.moe_mlp.names) & set(_operators.moe_mlp_grad.names)


def _kept(needs):
    return ("x", "weights", *_PARAMETERS, "group_sizes", "source_row", "slot_row", "group_offset_tensor")


def _grad(**arguments):
    return _operators.moe_mlp_grad.call(**arguments)


def _grad_over_preact(preact, wanted, **arguments):
    """The same with d_preact in the place of the pre-activation, which nobody reads again."""
    made = iter(
        _operators.moe_mlp_gradients(
            _operators.moe_mlp_grad.Arguments(preact=preact, wanted=wanted, **arguments)
        )
    )
    names = ("dx", "dweights", "dw13", "dw2", "dbias13", "dbias2")
    into = {name: [next(made)] if each else [] for name, each in zip(names, wanted, strict=True)}
    # Only the gradients of w2, bias2 and weights on the output can do without d_preact.
    is_read = into["dx"] or into["dw13"] or into["dbias13"]
    _operators.moe_mlp_grad_into.call(
        preact=preact,
        dw_beta=0.0,
        phase=0,
        d_preact=[preact] if is_read else [],
        activated=[],
        **into,
        **arguments,
    )
    return [each for name in names for each in into[name]]


def _backward(a, needs, grads, preact, grad=_grad):
    dout = grads[0]
    if dout is None:
        return {}
    gradients = {
        name: dout.to(getattr(a, name).dtype)
        for name in ("shared", "residual")
        if getattr(needs, name)
    }
    wanted = [bool(getattr(needs, name)) for name in _GRADIENTS]
    if not any(wanted):
        return gradients
    if torch.is_grad_enabled():
        return gradients | _backward_of_composition(a, needs, dout)
    shared = {name: value for name, value in a._asdict().items() if name in _OF_BOTH}
    results = iter(grad(preact=preact, dout=dout, wanted=wanted, **shared))
    for name in (name for name, each in zip(_GRADIENTS, wanted, strict=True) if each):
        stack = next(results)
        if name in _PARAMETERS:
            first, rank = getattr(a, name)[0], 1 if name.startswith("bias") else 2
            gradients[name] = [stack] if first.dim() > rank else list(stack.unbind(0))
        else:
            gradients[name] = stack
    return gradients


def _backward_of_composition(a, needs, dout):
    """The same gradients made of ops that have gradients themselves: for create_graph."""
    names = [name for name in _GRADIENTS if getattr(needs, name)]
    inputs = [
        each
        for name in names
        for each in (getattr(a, name) if name in _PARAMETERS else [getattr(a, name)])
    ]
    alone = a._replace(shared=None, residual=None)
    out = composed(alone, Activation(a.activation, a.interleaved, tuple(a.clamp)))
    rest = iter(torch.autograd.grad(out, inputs, dout, create_graph=True, allow_unused=True))
    return {
        name: [next(rest) for _ in getattr(a, name)] if name in _PARAMETERS else next(rest)
        for name in names
    }


def _tangent(operator, a, tangents):
    raise NotImplementedError("moe_mlp: tangents of the operator itself; call cadre.torch.moe_mlp")


_operators.moe_mlp.differentiable(
    Derivatives(
        _kept,
        _backward,
        _tangent,
        results=(1,),
        takes_none=True,
        consuming=functools.partial(_backward, grad=_grad_over_preact),
    )
)
