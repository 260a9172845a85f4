"""cublasGemmGroupedBatchedEx through ctypes, in the cuBLAS that torch has loaded, on torch's own handle and stream.

Its sizes lie on the host; its pointers lie on the device and are made ahead of the timed call.
"""

import ctypes

import torch

_TYPES = {torch.bfloat16: 14, torch.float16: 2}  # cudaDataType
_COMPUTE_32F = 68
_NO_TRANSPOSE, _TRANSPOSE = 0, 1


def _library():
    """The libcublas of this process: a second copy would bring its own state."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split()[-1]
            if "/libcublas.so" in path:
                return ctypes.CDLL(path)
    raise RuntimeError("torch has loaded no libcublas.so")


def _ints(values):
    return (ctypes.c_int * len(values))(*values)


class GroupedProduct:
    """Row-major d_g = op(a_g) @ op(b_g) for lists of matrices; empty products must be left out.

    `a` and `b` are as they lie in memory: with transpose_a a_g is [k, m], with transpose_b b_g is [n, k].
    """

    def __init__(self, a, b, d, *, transpose_a=False, transpose_b=False):
        library = _library()
        self._call = library.cublasGemmGroupedBatchedEx
        self._call.restype = ctypes.c_int
        self._handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        count = len(d)
        device = d[0].device
        rows = [each.shape[0] for each in d]
        columns = [each.shape[1] for each in d]
        inner = [each.shape[0 if transpose_a else 1] for each in a]
        # Row-major D = A B is column-major D^T = B^T A^T: b comes first, and m and n change places.
        self._arrays = [
            _ints([_TRANSPOSE if transpose_b else _NO_TRANSPOSE] * count),
            _ints([_TRANSPOSE if transpose_a else _NO_TRANSPOSE] * count),
            _ints(columns),
            _ints(rows),
            _ints(inner),
            (ctypes.c_float * count)(*[1.0] * count),
            (ctypes.c_float * count)(*[0.0] * count),
            _ints([each.stride(0) for each in b]),
            _ints([each.stride(0) for each in a]),
            _ints([each.stride(0) for each in d]),
            _ints([1] * count),
        ]
        self._pointers = [
            torch.tensor([each.data_ptr() for each in side], dtype=torch.int64, device=device)
            for side in (b, a, d)
        ]
        self._count = count
        self._type = _TYPES[d[0].dtype]

    def __call__(self):
        transb, transa, n, m, k, alpha, beta, ldb, lda, ldd, sizes = self._arrays
        b, a, d = (ctypes.c_void_p(each.data_ptr()) for each in self._pointers)
        error = self._call(
            self._handle, transb, transa, n, m, k, alpha, b, self._type, ldb, a, self._type, lda,
            beta, d, self._type, ldd, self._count, sizes, _COMPUTE_32F,
        )  # fmt: skip
        if error:
            raise RuntimeError(f"cublasGemmGroupedBatchedEx: error {error}")
