"""How the primitives become programs: calls of the handlers on a CPU and on CUDA, and lax.ragged_dot_general elsewhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from . import _arguments, _handlers, _workspace


def _typed(attributes):
    """Attributes of a handler in the types that XLA passes on."""
    kinds = {bool: bool, float: np.float64, int: np.int64}
    return {name: kinds.get(type(value), np.int64)(value) for name, value in attributes.items()}


def _in_mesh(avals):
    """Inside shard_map, where other devices may wait for this one in a collective."""
    manual = jax.sharding.AxisType.Manual
    return any(manual in aval.sharding.mesh.axis_types for aval in avals)


def _lower_cpu(name, attributes, context, *operands, zeroed=(), **params):
    _handlers.register()
    attributes = _typed(attributes(params)) | {"in_mesh": _in_mesh(context.avals_in)}
    return _call(name, context, operands, zeroed, attributes)


def _lower_cuda(name, attributes, context, *operands, zeroed=(), **params):
    """The handler's last result is its workspace, so that XLA owns that memory too."""
    _handlers.register()
    size = _workspace.size_bytes(name, context.avals_in, context.avals_out, params)
    workspace = jax.core.ShapedArray((size,), np.uint8)
    with_workspace = context.replace(avals_out=[*context.avals_out, workspace])
    return _call(name, with_workspace, operands, zeroed, _typed(attributes(params)))[:-1]


def _zero_bits(aval):
    """e8m0 has no zero: of its own zeros would be NaN."""
    if aval.dtype.itemsize != 1:
        return jnp.zeros(aval.shape, aval.dtype)
    return jax.lax.bitcast_convert_type(jnp.zeros(aval.shape, jnp.uint8), aval.dtype)


def _call(name, context, operands, zeroed, attributes):
    """`zeroed`: results that begin as zeros. They are operands, too, behind all others, in the same memory."""
    begin = [context.avals_out[i] for i in zeroed]
    made = []
    for aval in begin:
        zeros = mlir.lower_fun(functools.partial(_zero_bits, aval), multiple_results=False)
        made += zeros(context.replace(avals_in=[], avals_out=[aval]))
    aliases = {len(operands) + i: result for i, result in enumerate(zeroed)}
    lowering = jax.ffi.ffi_lowering(name, operand_output_aliases=aliases)
    with_zeros = context.replace(avals_in=[*context.avals_in, *begin])
    return lowering(with_zeros, *operands, *made, **attributes)


def has_handler(arrays, result):
    """Whether the handlers take operands of these types and write a result of this one."""
    return _arguments.multiplies([x.dtype for x in arrays], result.dtype)


def register(primitive, by_lax, attributes, sizes_at):
    """`by_lax`: the same result made with lax. `attributes`: the parameters of the handler. `sizes_at`: the position of the group
    sizes, with the offset behind them."""
    other = mlir.lower_fun(by_lax, multiple_results=False)

    def kept(params):
        return {name: params[name] for name in attributes}

    def lowering(by_handler):
        def lower(context, *operands, **params):
            avals = context.avals_in
            if has_handler(avals[:sizes_at] + avals[sizes_at + 2 :], context.avals_out[0]):
                return by_handler(primitive.name, kept, context, *operands, **params)
            return other(context, *operands, **params)

        return lower

    mlir.register_lowering(primitive, lowering(_lower_cpu), platform="cpu")
    mlir.register_lowering(primitive, lowering(_lower_cuda), platform="cuda")
    mlir.register_lowering(primitive, other)


def register_composed(primitive, composed, attributes=None):
    """`composed`: the same results made of other ops. `attributes`: the handler's, from the parameters; None if there is no
    handler."""
    other = mlir.lower_fun(composed, multiple_results=primitive.multiple_results)
    mlir.register_lowering(primitive, other)
    if attributes is None:
        return
    for platform, by_handler in (("cpu", _lower_cpu), ("cuda", _lower_cuda)):
        lower = functools.partial(by_handler, primitive.name, attributes)
        mlir.register_lowering(primitive, lower, platform=platform)


def register_handler(primitive, op, attributes, zeroed):
    """A primitive that is a handler alone. `zeroed`: which results begin as zeros, from the parameters."""

    def refuse(context, *_, **__):
        platforms = ", ".join(context.module_context.platforms)
        raise NotImplementedError(f"{op}: the platform is {platforms}, expected cpu or cuda")

    mlir.register_lowering(primitive, refuse)
    for platform, by_handler in (("cpu", _lower_cpu), ("cuda", _lower_cuda)):

        def lower(context, *operands, by_handler=by_handler, **params):
            return by_handler(primitive.name, attributes, context, *operands, zeroed=zeroed(params), **params)

        mlir.register_lowering(primitive, lower, platform=platform)
