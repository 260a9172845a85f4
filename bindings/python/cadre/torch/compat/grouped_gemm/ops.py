"""grouped_gemm.ops: the product with its gradients."""

from __future__ import annotations

from ..._errors import renamed
from ..._functional import gmm as _gmm
from ..._types import Sizes, Tensor
from . import backend

__all__ = ["backend", "gmm"]


def gmm(a: Tensor, b: Tensor, batch_sizes: Sizes, trans_b: bool = False) -> Tensor:
    """a [m, k] times b [g, k, n] ([g, n, k] with trans_b) for each group of rows.

    Beyond the original: any device, float type and strides; batch_sizes of any integer type, on the host or the device;
    rows that no group covers become zero; differentiable any number of times.

    >>> from cadre.torch.compat import grouped_gemm
    >>> a, b = torch.ones(6, 4), torch.ones(3, 4, 5)
    >>> grouped_gemm.ops.gmm(a, b, torch.tensor([2, 0, 4])).shape
    torch.Size([6, 5])
    """
    try:
        return _gmm(a, b, batch_sizes, transpose_rhs=trans_b)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise renamed(error, backend.WORDS) from None
