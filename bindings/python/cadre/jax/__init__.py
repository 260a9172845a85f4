"""cadre for JAX: grouped matrix products with jit, grad, vmap, shard_map and export, on CPU and CUDA."""

from . import ejkernel, megablox
from ._handlers import check
from ._ops import bias_grad, gmm, grouped_linear, grouped_mlp, tgmm
from ._ragged_dot import ragged_dot, ragged_dot_general

__all__ = [
    "bias_grad",
    "check",
    "ejkernel",
    "gmm",
    "grouped_linear",
    "grouped_mlp",
    "megablox",
    "ragged_dot",
    "ragged_dot_general",
    "tgmm",
]
