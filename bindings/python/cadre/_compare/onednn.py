"""oneDNN's product of f32 matrices, where its library is installed."""

import ctypes
import ctypes.util
import sys
from pathlib import Path

RIVAL = "a loop of oneDNN's sgemm"


def _library():
    """The name or path of libdnnl; None where it isn't found. A wheel puts it beside the interpreter's own libraries."""
    beside = sorted((Path(sys.prefix) / "lib").glob("libdnnl.so*"))
    return ctypes.util.find_library("dnnl") or (str(beside[-1]) if beside else None)


def open_product():
    """(multiply(a [m, k], b [n, k], out [m, n]), "") for C-contiguous f32 arrays, or (None, why there is none)."""
    name = _library()
    if name is None:
        return None, "libdnnl is not installed (Debian: libdnnl-dev, pip: onednn)"
    try:
        sgemm = ctypes.CDLL(name).dnnl_sgemm
    except (OSError, AttributeError) as error:
        return None, str(error)
    # transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc: rows first, the same in every version since 1.0.
    size, pointer, scalar = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    sgemm.argtypes = [ctypes.c_char, ctypes.c_char, size, size, size, scalar, pointer, size, pointer, size, scalar, pointer, size]
    sgemm.restype = ctypes.c_int

    def multiply(a, b, out):
        (m, k), n = a.shape, b.shape[0]
        status = sgemm(b"N", b"T", m, n, k, 1.0, a.ctypes.data, k, b.ctypes.data, k, 0.0, out.ctypes.data, n)
        if status != 0:
            raise RuntimeError(f"dnnl_sgemm: status {status}")

    return multiply, ""
