"""grouped_gemm.backend: the products alone, outside autograd, into a given tensor if you like."""

from __future__ import annotations

import torch

from ...._errors import wrong_value
from ..._errors import renamed
from ..._functional import gmm as _gmm
from ..._functional import tgmm as _tgmm
from ..._types import Sizes, Tensor

#: From the words of gmm and tgmm to those of this package, for messages.
WORDS = {
    "lhs": "a",
    "rhs": "b",
    "out": "c",
    "group_sizes": "batch_sizes",
    "transpose_rhs": "trans_b",
    "tgmm": "gmm",
}


@torch.no_grad()
def gmm(
    a: Tensor,
    b: Tensor,
    batch_sizes: Sizes,
    trans_a: bool = False,
    trans_b: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """a [m, k] times b [g, k, n] ([g, n, k] with trans_b) for each group of rows; with trans_a, a^T times b [m, n].

    The result is written to c where it is given, and returned. Rows of c that no group covers keep what they hold.

    >>> from cadre.torch.compat import grouped_gemm
    >>> a, b = torch.ones(6, 4), torch.ones(6, 5)
    >>> grouped_gemm.backend.gmm(a, b, torch.tensor([2, 0, 4]), trans_a=True)[:, 0, 0]
    tensor([2., 0., 4.])
    """
    if trans_a and trans_b:
        raise wrong_value("gmm", "trans_a and trans_b", True, "at most one of them")
    try:
        if trans_a:
            return _tgmm(a, b, batch_sizes, out=c)
        tail = "zero" if c is None else "untouched"
        return _gmm(a, b, batch_sizes, transpose_rhs=trans_b, out=c, tail=tail)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise renamed(error, WORDS) from None
