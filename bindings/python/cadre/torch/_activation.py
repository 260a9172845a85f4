"""The functions between a layer's products, by name."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .. import _options, _structs
from .._errors import wrong_type, wrong_value


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
