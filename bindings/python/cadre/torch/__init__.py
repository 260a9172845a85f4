"""The PyTorch front: grouped products as operators with autograd, vmap, torch.compile and CUDA graphs.

Importing it loads the operators (torch.ops.cadre); without a prebuilt cadre_torch.so they are compiled once.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise ImportError("cadre.torch: PyTorch is not installed: pip install 'torch>=2.11'") from error

# _shim comes first: it loads the operators that all else here refers to.
# ruff: noqa: F401, I001
from . import _shim
from . import _autograd
from . import _flops
from ._bias_grad import bias_grad
from ._functional import check, gmm, tgmm
from ._grouped_gemm import grouped_gemm
from ._grouped_linear import GroupedLinear
from ._grouped_mlp import GroupedMLP
from ._grouped_mm import grouped_mm
from ._grouped_tensor import GroupedTensor
from ._moe_mlp import moe_mlp
from ._mxfp4 import mxfp4_weights
from ._packed import pack_weights
from ._quantize import amax, dequantize, quantize
from ._routing import Routing, combine, permute, route, select_experts
from ._scaled import ScaledTensor
from ._scaled_grouped_mm import scaled_grouped_mm
from . import compat

__all__ = [
    "GroupedLinear",
    "GroupedMLP",
    "GroupedTensor",
    "Routing",
    "ScaledTensor",
    "amax",
    "bias_grad",
    "check",
    "combine",
    "compat",
    "dequantize",
    "gmm",
    "grouped_gemm",
    "grouped_mm",
    "moe_mlp",
    "mxfp4_weights",
    "pack_weights",
    "permute",
    "quantize",
    "route",
    "scaled_grouped_mm",
    "select_experts",
    "tgmm",
]
