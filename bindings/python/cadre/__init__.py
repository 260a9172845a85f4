"""cadre: grouped matrix multiplication for mixture-of-experts models.

`import cadre` gives the NumPy front: gmm, tgmm, grouped_gemm, bias_grad, pack_weights and quantize. `import cadre.torch` gives
the PyTorch front, `import cadre.jax` that of JAX. `cadre.show_versions()` prints what a bug report needs; the command `cadre`
(`cadre --help`) compares, verifies and explains. help(cadre.gmm) shows shapes and an example.

What is wrong with an argument is a ValueError or a TypeError that names op, argument, expected and received. A problem that
no kernel takes is a NotImplementedError, a failure of the library a RuntimeError.
"""

try:
    from ._library import backends
    from ._library import version as __version__
    from ._numpy import bias_grad, gmm, grouped_gemm, tgmm
    from ._pack import PackedWeights, pack_weights
    from ._quantize import amax, dequantize, quantize
    from ._scaled import ScaledTensor
    from ._versions import show_versions
except ImportError as error:
    from . import _command

    _command.exit_if_running(error)
    raise

__all__ = [
    "PackedWeights",
    "ScaledTensor",
    "__version__",
    "amax",
    "backends",
    "bias_grad",
    "dequantize",
    "gmm",
    "grouped_gemm",
    "pack_weights",
    "quantize",
    "show_versions",
    "tgmm",
]
