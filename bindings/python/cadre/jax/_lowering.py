"""How the primitives become programs: calls of the handlers on a CPU and on CUDA, and lax.ragged_dot_general elsewhere."""

import jax
import numpy as np
from jax.interpreters import mlir

from . import _arguments, _handlers, _workspace


def _attributes(names, params):
    """The parameters a handler takes, in the types XLA passes on."""
    kept = {name: params[name] for name in names}
    return {
        name: value if isinstance(value, bool) else np.int64(value) for name, value in kept.items()
    }


def _in_mesh(avals):
    """Inside shard_map, where other devices may wait for this one in a collective."""
    manual = jax.sharding.AxisType.Manual
    return any(manual in aval.sharding.mesh.axis_types for aval in avals)


def _lower_cpu(name, names, context, *operands, **params):
    _handlers.register()
    attributes = _attributes(names, params) | {"in_mesh": _in_mesh(context.avals_in)}
    return jax.ffi.ffi_lowering(name)(context, *operands, **attributes)


def _lower_cuda(name, names, context, *operands, **params):
    """The handler's second result is its workspace, so that XLA owns that memory too."""
    _handlers.register()
    size = _workspace.size_bytes(name, context.avals_in, context.avals_out[0], params)
    workspace = jax.core.ShapedArray((size,), np.uint8)
    with_workspace = context.replace(avals_out=[context.avals_out[0], workspace])
    lowering = jax.ffi.ffi_lowering(name)
    return lowering(with_workspace, *operands, **_attributes(names, params))[:1]


def has_handler(arrays, result):
    """Whether the handlers take operands of these types and write a result of this one."""
    return _arguments.multiplies([x.dtype for x in arrays], result.dtype)


def register(primitive, by_lax, attributes, sizes_at):
    """`by_lax`: the same result made with lax. `attributes`: the parameters of the handler. `sizes_at`: the position of the group
    sizes, with the offset behind them."""
    other = mlir.lower_fun(by_lax, multiple_results=False)

    def lowering(by_handler):
        def lower(context, *operands, **params):
            avals = context.avals_in
            if has_handler(avals[:sizes_at] + avals[sizes_at + 2 :], context.avals_out[0]):
                return by_handler(primitive.name, attributes, context, *operands, **params)
            return other(context, *operands, **params)

        return lower

    mlir.register_lowering(primitive, lowering(_lower_cpu), platform="cpu")
    mlir.register_lowering(primitive, lowering(_lower_cuda), platform="cuda")
    mlir.register_lowering(primitive, other)
