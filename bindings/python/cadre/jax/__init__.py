"""cadre for JAX: grouped matrix products with jit, grad, vmap, shard_map and export, on CPU and CUDA."""

try:
    import jax as _jax
except ModuleNotFoundError as error:
    raise ImportError("cadre.jax: JAX is not installed: pip install 'jax>=0.10'") from error

# ruff: noqa: F401
from . import ejkernel, expert_parallel, megablox
from ._handlers import check, register
from ._moe_mlp import grouped_mlp, moe_mlp
from ._ops import bias_grad, gmm, grouped_linear, tgmm
from ._quantize import amax, dequantize, quantize
from ._ragged_dot import ragged_dot, ragged_dot_general
from ._scaled import ScaledArray

__all__ = [
    "ScaledArray",
    "amax",
    "bias_grad",
    "check",
    "dequantize",
    "ejkernel",
    "expert_parallel",
    "gmm",
    "grouped_linear",
    "grouped_mlp",
    "megablox",
    "moe_mlp",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "register",
    "tgmm",
]
