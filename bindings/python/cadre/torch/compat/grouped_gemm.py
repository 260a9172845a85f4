"""The interface of the package grouped_gemm: gmm(a, b, batch_sizes, trans_a=False, trans_b=False)."""

from ..._errors import wrong_value
from .._functional import gmm as _gmm
from .._functional import tgmm as _tgmm


def gmm(a, b, batch_sizes, trans_a=False, trans_b=False):
    """a [m, k] times b [g, k, n] ([g, n, k] with trans_b) for each group of rows; with trans_a, a^T times b [m, n].

    Unlike the original's, batch_sizes may lie on the GPU and may be int32; and rows may be left over: they become zero.
    """
    if trans_a and trans_b:
        raise wrong_value("gmm", "trans_a and trans_b", True, "at most one of them")
    if trans_a:
        return _tgmm(a, b, batch_sizes)
    return _gmm(a, b, batch_sizes, transpose_rhs=trans_b)
