"""Weights packed ahead for inference on a CPU: the library's, from torch tensors and types."""

from __future__ import annotations

import torch

from .. import _pack
from .._errors import wrong_type, wrong_value
from . import _arguments, _dtypes
from ._types import Tensors

PackedWeights = _pack.PackedWeights
_OP = "pack_weights"
_REASON = "packed weights are for inference"


def pack_weights(
    rhs: Tensors,
    *,
    transpose_rhs: bool = False,
    lhs_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> PackedWeights:
    """Packs weights for inference on the CPU: gmm(lhs, rhs, group_sizes, packed_rhs=pack_weights(rhs)).

    rhs [g, k, n] (or [g, n, k] with transpose_rhs, as moe_mlp's w13 and w2 are), one tensor or a list of g matrices.
    lhs_dtype is the type of the lhs that it will meet (default: that of rhs), out_dtype that of the result (default: what
    gmm gives for the two). Results have the same bits as without, and it costs a second copy of the weights, which must
    not change afterwards.

    >>> x, w = torch.randn(6, 4), torch.randn(3, 4, 5)
    >>> sizes, packed = torch.tensor([2, 0, 4]), cadre.torch.pack_weights(w)
    >>> torch.equal(cadre.torch.gmm(x, w, sizes, packed_rhs=packed), cadre.torch.gmm(x, w, sizes))
    True
    """
    listed = isinstance(rhs, (list, tuple))
    for i, each in enumerate(rhs if listed else (rhs,)):
        name = f"rhs[{i}]" if listed else "rhs"
        if not isinstance(each, torch.Tensor):
            raise wrong_type(_OP, name, each, "a torch.Tensor")
        if each.device.type != "cpu":
            raise wrong_value(_OP, f"{name}.device", each.device, "cpu: on a GPU weights are read as they lie")
    codes = [
        _code(name, dtype) for name, dtype in (("lhs_dtype", lhs_dtype), ("out_dtype", out_dtype))
    ]
    rhs = [each.detach() for each in rhs] if listed else rhs.detach()
    return _pack.packed(rhs, transpose_rhs, *codes)


def _code(argument, dtype):
    """0 for None: the library's default."""
    if dtype is None:
        return 0
    if dtype not in _dtypes.CODES:
        raise TypeError(f"{_OP}: {argument} = {dtype!r}, expected a torch.dtype that gmm takes")
    return _dtypes.CODES[dtype]


def address(op, argument, packed, tensors):
    """What the operators take, 0 for None. `tensors`: those of the call, none of which may want a gradient."""
    if packed is None:
        return 0
    if not isinstance(packed, PackedWeights):
        raise wrong_type(op, argument, packed, "what pack_weights returned")
    _arguments.refuse_gradients(op, tensors, _REASON)
    return packed.address
