"""What the experts of a layer compute, as a composition of differentiable ops: for gates that no kernel knows, for torch.func's
transforms, and for gradients of gradients."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .. import _options, _structs
from .._errors import wrong_type, wrong_value
from ._functional import gmm
from ._operators import combine, combine_grad, permute


class Activation(NamedTuple):
    """The function between the two products. `clamp`: alpha, limit and up_offset of gpt-oss's."""

    kind: int
    interleaved: bool
    clamp: tuple[float, float, float]

    @property
    def is_gated(self) -> bool:
        return self.kind >= _structs.SWIGLU

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.is_gated:
            return _WITHOUT_GATE[self.kind](hidden)
        if self.interleaved:
            gate, up = hidden[..., 0::2], hidden[..., 1::2]
        else:
            gate, up = hidden.chunk(2, -1)
        if self.kind != _structs.CLAMPED_SWIGLU:
            return _GATES[self.kind](gate) * up
        alpha, limit, up_offset = self.clamp
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + up_offset)


_gelu_tanh = functools.partial(F.gelu, approximate="tanh")
_WITHOUT_GATE = {
    _structs.NO_ACTIVATION: lambda x: x,
    _structs.SILU: F.silu,
    _structs.GELU_TANH: _gelu_tanh,
    _structs.GELU_ERF: F.gelu,
    _structs.RELU2: lambda x: F.relu(x).square(),
}
_GATES = {
    _structs.SWIGLU: F.silu,
    _structs.GEGLU_TANH: _gelu_tanh,
    _structs.GEGLU_ERF: F.gelu,
}

def activation_of(op, name, interleaved, clamp):
    """An Activation from its name, or the caller's own function."""
    if callable(name):
        return name
    if not isinstance(name, str):
        raise wrong_type(op, "activation", name, "a name or a function")
    if name not in _options.ACTIVATIONS:
        expected = f"{', '.join(map(repr, _options.ACTIVATIONS))} or a function"
        raise wrong_value(op, "activation", repr(name), expected)
    return Activation(_options.ACTIVATIONS[name], interleaved, clamp)


def composed(a, activation):
    """The layer of the operator's arguments `a`, with any function as its activation."""
    rows = permute.call(x=a.x, source_row=a.source_row, slot_row=a.slot_row)
    where = {"slot_row": a.slot_row, "source_row": a.source_row}
    weights = a.weights
    if a.weights_on_input and weights is not None:
        # The weight of each row, as the gradient of a sum of ones.
        ones = weights.new_ones((weights.shape[0], 1))
        (factors,) = combine_grad.call(
            dout=ones, weights=weights, dy_dtype=weights.dtype, **where
        )
        rows, weights = (rows * factors).to(rows.dtype), None
    offset = a.group_offset if a.group_offset_tensor is None else a.group_offset_tensor
    product = functools.partial(gmm, transpose_rhs=not a.transposed, group_offset=offset)
    hidden = product(rows, _given(a.w13, 2), a.group_sizes, bias=_given(a.bias13, 1))
    y = product(activation(hidden), _given(a.w2, 2), a.group_sizes, bias=_given(a.bias2, 1))
    return combine.call(
        y=y,
        weights=weights,
        shared=a.shared,
        residual=a.residual,
        out_dtype=a.out_dtype or a.x.dtype,
        **where,
    )


def _given(tensors, rank):
    """A list of the operator's as gmm takes it: nothing, one stack of tensors of that rank, or a list of them."""
    if not tensors:
        return None
    return tensors[0] if tensors[0].dim() > rank else list(tensors)
