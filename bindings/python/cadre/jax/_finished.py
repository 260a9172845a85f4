"""From a product in its accumulator's type to what ragged_dot returns: activations, one rounding, axes and sharding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from . import _arguments

_GATES = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def functions_of(op, gate, activation):
    """What is applied to a product, in this order."""
    functions = []
    if gate is not None:
        if gate not in _GATES:
            raise NotImplementedError(
                f"{op}: fuse_gateup_activation = {gate!r}, expected one of {', '.join(_GATES)}"
            )
        functions.append(lambda out: _gated(op, _GATES[gate], out))
    if activation is not None:
        _arguments.function(op, "activation", activation)
        functions.append(activation)
    return functions


def _gated(op, function, out):
    if out.shape[-1] % 2:
        raise ValueError(
            f"{op}: n = {out.shape[-1]}, expected an even number for fuse_gateup_activation"
        )
    gate, up = jnp.split(out, 2, axis=-1)
    return function(gate) * up


def _varying_as(op, wanted, out):
    """Cast to vary over these manual axes (shard_map), which must hold those that it varies over."""
    if not isinstance(wanted, jax.sharding.ManualAxisType):
        raise TypeError(
            f"{op}: manual_axis_type is a {type(wanted).__name__}, expected a ManualAxisType"
        )
    varying = jax.typeof(out).manual_axis_type.varying
    if wanted.unreduced or wanted.reduced:
        raise NotImplementedError(f"{op}: manual_axis_type = {wanted}, expected varying axes alone")
    if not varying <= wanted.varying:
        raise ValueError(
            f"{op}: manual_axis_type = {wanted}, expected all of the operands' axes {sorted(varying)}"
        )
    missing = tuple(sorted(wanted.varying - varying))
    return lax.pcast(out, missing, to="varying") if missing else out


class Finished:
    """A product of `op` on its way to its result: final() is the result's type, of_type() computes it."""

    def finished(self, preferred, functions, manual_axis_type, out_sharding):
        """The product in its final type; functions see what the accumulator holds."""
        final = self.final(preferred)
        if out_sharding is not None:
            _arguments.sharding(self.op, out_sharding)
        out = self.of_type(_arguments.accumulator(final) if functions else final)
        for function in functions:
            out = function(out)
        out = out.astype(final)
        if manual_axis_type is not None:
            out = _varying_as(self.op, manual_axis_type, out)
        return out if out_sharding is None else jax.sharding.reshard(out, out_sharding)
