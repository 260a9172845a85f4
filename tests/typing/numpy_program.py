"""What a user of the NumPy front writes, for type checkers: what each call gives, and calls that must be refused.

A line with `type: ignore` is a mistake that a checker has to find; tests/python/test_types.py fails if it doesn't.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import cadre

x = np.ones((6, 4), np.float32)
w = np.ones((3, 4, 5), np.float32)
sizes = [2, 0, 4]
packed = cadre.pack_weights(w, lhs_dtype=np.float32)
rows: list[NDArray[np.float32]] = [np.ones((2, 5), np.float32), np.ones((4, 5), np.float32)]

assert_type(cadre.gmm(x, w, sizes), NDArray[Any])
assert_type(cadre.gmm(x, list(w), np.array(sizes), out_dtype=ml_dtypes.bfloat16), NDArray[Any])
assert_type(cadre.gmm(x, w, sizes, packed_rhs=packed, alpha=0.5, tail="forbid", group_offset=np.int64(0)), NDArray[Any])
assert_type(cadre.gmm(x, w, [2, 4], out=rows), list[NDArray[np.float32]])
assert_type(cadre.tgmm(x, x, sizes, num_groups=2), NDArray[Any])
assert_type(cadre.bias_grad(x, sizes), NDArray[Any])
assert_type(cadre.bias_grad(x, sizes, bias=w[:, 0]), tuple[NDArray[Any], NDArray[Any]])
products = cadre.grouped_gemm([x, w[0]], [w[0], w[1].T], alpha=[1.0, 2.0])
assert_type(packed.size_bytes, int)
assert_type(packed.kernel, str)
assert_type(cadre.backends(), tuple[str, ...])
assert_type(cadre.__version__, str)

cadre.gmm(x, w)  # type: ignore  # no group_sizes
cadre.gmm(x, w, "2, 0, 4")  # type: ignore
cadre.gmm(x, w, sizes, tail="zeros")  # type: ignore
cadre.gmm(x, w, sizes, transposed_rhs=True)  # type: ignore
cadre.gmm(x, w, sizes, packed_rhs=w)  # type: ignore
cadre.tgmm(x, x, sizes, group_offset=0.5)  # type: ignore
cadre.bias_grad(x, sizes, bias=w[:, 0]).shape  # type: ignore  # a tuple
cadre.pack_weights(w, transpose_rhs=1.0)  # type: ignore
