"""cadre: grouped matrix multiplication for mixture-of-experts models.

`import cadre` gives the NumPy front; `import cadre.torch` the PyTorch one.
"""

try:
    from ._library import backends
    from ._library import version as __version__
    from ._numpy import bias_grad, gmm, grouped_gemm, tgmm
    from ._pack import PackedWeights, pack_weights
    from ._scaled import ScaledTensor
except ImportError as error:
    from . import _command

    _command.exit_if_running(error)
    raise

__all__ = [
    "PackedWeights",
    "ScaledTensor",
    "__version__",
    "backends",
    "bias_grad",
    "gmm",
    "grouped_gemm",
    "pack_weights",
    "tgmm",
]
