"""gmm with an activation: its gradient is that of the activation, then that of the product.

Gradients of gradients, torch.func and forward mode run through the product and torch's own ops.
"""

import torch
import torch.autograd.forward_ad as _forward_ad

from .. import _structs
from ._activation import Activation
from ._autograd import gmm_backward
from ._operators import gmm_activated, gmm_list, weighted_activate_grad
from ._transforms import Derivatives

_transform_level = torch._C._functorch.maybe_current_level


def activated_product(activation, keeps_preact, **arguments):
    """(the activation of gmm_list's result, that result if it is kept or the gradient needs it)"""
    if not isinstance(activation, Activation) or activation.kind == _structs.NO_ACTIVATION:
        product = gmm_list.call(**arguments)
        return activation(product), product
    arguments |= {
        "activation": activation.kind,
        "interleaved": activation.interleaved,
        "clamp": [float(each) for each in activation.clamp],
        "keeps_preact": keeps_preact,
    }
    if _transform_level() is not None or _forward_ad._current_level >= 0:
        names = gmm_activated.defaults | arguments
        return _composed(gmm_activated.Arguments(**names))
    return gmm_activated.call(**arguments)


def _composed(a):
    product = gmm_list.call(
        **{name: value for name, value in a._asdict().items() if name in gmm_list.names}
    )
    return Activation(a.activation, a.interleaved, tuple(a.clamp))(product), product


def _kept(needs):
    # All of it for create_graph, which makes the product again.
    tensors = ("group_sizes", "group_offset_tensor", "alpha", "bias_scale", "row_scale")
    return (*tensors, "lhs_rows", "slot_row", "lhs", "rhs", "bias")


def _backward(a, needs, grads, preact):
    dout, dpreact = grads
    if torch.is_grad_enabled():
        return _backward_of_composition(a, needs, dout, dpreact)
    if dout is not None:
        (through,) = weighted_activate_grad.call(
            preact=preact,
            grad=dout,
            activation=a.activation,
            interleaved=a.interleaved,
            clamp=a.clamp,
        )
        dpreact = through if dpreact is None else through + dpreact
    return {} if dpreact is None else gmm_backward(a, needs, dpreact)


def _backward_of_composition(a, needs, *grads):
    """The same gradients made of ops that have gradients themselves."""
    names = [name for name in a._fields if getattr(needs, name)]
    lists = [name for name in names if name in gmm_activated.lists]
    inputs = []
    for name in names:
        inputs += getattr(a, name) if name in lists else [getattr(a, name)]
    given = [(result, grad) for result, grad in zip(_composed(a), grads, strict=True) if grad is not None]
    if not given:
        return {}
    results, grads = zip(*given, strict=True)
    rest = iter(torch.autograd.grad(results, inputs, grads, create_graph=True, allow_unused=True))
    return {
        name: [next(rest) for _ in getattr(a, name)] if name in lists else next(rest)
        for name in names
    }


def _tangent(operator, a, tangents):
    raise NotImplementedError("gmm: tangents of the activated operator itself; call cadre.torch.gmm")


gmm_activated.differentiable(
    Derivatives(_kept, _backward, _tangent, results=(1,), takes_none=True)
)
