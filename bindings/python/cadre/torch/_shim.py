"""Loads cadre_torch.so, the operators' kernels, into torch.ops.cadre; cadre/_shims.py finds or builds it."""

import ctypes
from pathlib import Path

import torch

from .. import _library, _shims

#: The oldest torch whose stable ABI the sources ask for.
OLDEST_TORCH = (2, 11)
# TORCH_TARGET_VERSION's own form: major, minor and patch in a byte each, at the top of 64 bits.
TARGET_VERSION = f"0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000ULL"


def check_version(version):
    """Raises an ImportError for a torch without the stable ABI that the shim is made for."""
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(
            f"cadre.torch: torch is {version}, expected {oldest} or newer: pip install 'torch>={oldest}'"
        )


def description():
    """What the shim is made of. It links libtorch_cpu alone: the same file serves CPU and CUDA builds of torch."""
    root = Path(torch.__file__).parent
    return _shims.Shim(
        name="torch",
        sources=("cadre_torch.cc",),
        headers=(
            "bias_grad.h",
            "grouped_gemm.h",
            "grouped_view.h",
            "moe_mlp.h",
            "products.h",
            "quantize.h",
            "row_ops.h",
            "scales_view.h",
            "views.h",
        ),
        framework=f"torch-{torch.__version__}",
        flags=(f"-DTORCH_TARGET_VERSION={TARGET_VERSION}", f"-isystem{root / 'include'}"),
        libraries=(f"-L{root / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-ldl"),
    )


def load():
    """Loads the operators and gives them the process's Context. Returns the file."""
    check_version(torch.__version__)
    with _shims.found(description()) as shim:
        try:
            torch.ops.load_library(str(shim))
            library = ctypes.CDLL(str(shim))
        except OSError as error:
            raise ImportError(
                f"cadre.torch: {shim} can't be loaded into torch {torch.__version__}: {error}"
            ) from error
    library.cadre_torch_set_context.argtypes = (ctypes.c_void_p,)
    library.cadre_torch_set_context.restype = None
    library.cadre_torch_set_context(_library.context())
    return shim


path = load()
