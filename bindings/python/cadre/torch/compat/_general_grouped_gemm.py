"""Transformer Engine's general_grouped_gemm and its form for grouped tensors: D_i = op(B_i) @ op(A_i).

Every operand becomes a GroupedTensor first (_gemm_operands.py). Where B is the rows of one matrix the product is gmm or
tgmm, which have a bias, FP8 and sizes on a device; all else is grouped_gemm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import _structs
from ..._errors import wrong_type, wrong_value
from .._bias_grad import bias_grad
from .._errors import renamed
from .._functional import gmm, tgmm
from .._grouped_gemm import grouped_gemm
from .._grouped_tensor import GroupedTensor
from .._recipes import Weights
from .._scaled import ScaledTensor
from . import _gemm_operands as operands

_LAYOUTS = ("TN", "NN", "NT")


def general_grouped_gemm(
    A: Sequence[Tensor] | Sequence[ScaledTensor] | GroupedTensor,
    B: Sequence[Tensor] | Sequence[ScaledTensor] | GroupedTensor,
    out: list[Tensor],
    quantization_params: Sequence[None] | None,
    out_dtype: torch.dtype | None,
    layout: str = "TN",
    m_splits: Sequence[int] | None = None,
    gelu: bool = False,
    grad: bool = False,
    accumulate: bool = False,
    bias: Sequence[Tensor] | None = None,
    use_bias: bool = False,
    use_split_accumulator: bool = False,
    D_dtype: torch.dtype | None = None,
    single_output: bool = False,
) -> tuple[list[Tensor], Any, list[Tensor]]:
    """(out, bias, gelu_input): writes op(B[i]) @ op(A[i]) to out[i], or adds it there with accumulate.

      TN   y  = x @ w^T    A[i] = w [n, k],    B[i] = x [m_i, k],   out[i] [m_i, n]
      NN   dx = dy @ w     A[i] = w [n, k],    B[i] = dy [m_i, n],  out[i] [m_i, k]
      NT   dw = dy^T @ x   A[i] = x [m_i, k],  B[i] = dy [m_i, n],  out[i] [n, k]

    The operands are lists of matrices, of ScaledTensors of FP8 matrices, or GroupedTensors with both copies. NT of FP8
    multiplies column-wise copies. single_output: out[0] is contiguous and holds all results, one behind the other. With
    use_bias, bias[i] of n elements is added to each row of out[i]; with grad too, the second result is instead the sums of
    the rows of each B[i]. The third is empty. m_splits are the rows of each group. Nothing here is differentiable.

    out's type is that of the results, whatever out_dtype says; sums of FP8 are always as with use_split_accumulator.
    Refused: gelu, quantizers of the output, a D_dtype that isn't out's.

    >>> from cadre.torch.compat.transformer_engine import general_grouped_gemm
    >>> weights, x = [torch.ones(6, 4), torch.ones(6, 4)], [torch.ones(2, 4), torch.ones(3, 4)]
    >>> out = [torch.empty(5, 6)]
    >>> _ = general_grouped_gemm(weights, x, out, [None] * 2, torch.float32, single_output=True)
    >>> out[0][:, 0]
    tensor([4., 4., 4., 4., 4.])
    """
    op = "general_grouped_gemm"
    transa, transb = _transposes(op, layout)
    _refuse(op, gelu, quantization_params)
    splits = None if m_splits is None else [int(size) for size in m_splits]
    wants_sums = bool(grad and use_bias)
    bias = bias if use_bias and not grad else None
    if use_bias and not grad and bias is None:
        raise wrong_value(op, "bias", None, "one for each product, because use_bias = True")
    A = operands.rows(op, "A", A, splits, joined=False) if transb else operands.weights(op, "A", A)
    B = operands.rows(op, "B", B, splits, joined=wants_sums or bias is not None)
    _same_groups(op, A, B)
    _check_splits(op, B, splits)
    if not isinstance(out, (list, tuple)) or not out:
        raise wrong_type(op, "out", out, "a list of tensors")
    if D_dtype is not None and D_dtype != out[0].dtype:
        raise wrong_value(op, "D_dtype", D_dtype, f"None or out[0].dtype = {out[0].dtype}")
    shapes = _shapes(A, B, transa, transb)
    targets = GroupedTensor.list(_views(op, out, shapes) if single_output else out)
    if targets.num_groups != B.num_groups:
        raise wrong_value(op, "len(out)", targets.num_groups, f"len(B) = {B.num_groups}")
    _run(op, A, B, targets, (transa, transb), {"accumulate": bool(accumulate)}, bias, None)
    empty = [out[0].new_empty(0)] * B.num_groups
    if not wants_sums:
        return out, empty if bias is None else bias, empty
    x, sizes = B.as_rows()
    if not isinstance(x, Tensor):
        expected = "False with grad, because B is FP8 (bias_grad sums rows that aren't)"
        raise wrong_value(op, "use_bias", True, expected)
    sums = bias_grad(x, sizes, out=x.new_empty((B.num_groups, x.shape[1]), dtype=out[0].dtype))
    return out, list(sums.unbind(0)), empty


def general_grouped_gemm_for_grouped_tensor(
    A: GroupedTensor | Sequence[Tensor] | Sequence[ScaledTensor],
    B: GroupedTensor,
    out: GroupedTensor | list[Tensor],
    *,
    layout: str = "TN",
    accumulate: bool = False,
    use_split_accumulator: bool = False,
    bias: GroupedTensor | Sequence[Tensor] | Tensor | None = None,
    bias_scale: Tensor | None = None,
    grad: bool = False,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
) -> GroupedTensor | list[Tensor]:
    """out, in which each group is alpha op(B_i) @ op(A_i) + bias_scale bias_i + beta out_i; layouts as general_grouped_gemm's.

    Sizes on a device are never read by the host. FP8 comes with scales (GroupedTensor.quantize) and needs column-wise data
    for A of NN, but in the modes block_128 and tensor, and for both operands of NT. bias [g, n] (or [g, 1, n], or a list), and
    bias_scale, one number for each row, are for B made by GroupedTensor.of_rows, not for NT. alpha and beta hold one number
    or one for each group; accumulate means beta = 1. out must not be FP8. Not differentiable.

    >>> from cadre.torch.compat.transformer_engine import general_grouped_gemm_for_grouped_tensor
    >>> x = cadre.torch.GroupedTensor.of_rows(torch.ones(5, 128), [2, 3]).quantize("block_128", power_of_two=True)
    >>> w = cadre.torch.GroupedTensor.stacked(torch.ones(2, 6, 128)).quantize("block_128", power_of_two=True)
    >>> y = torch.empty(5, 6)
    >>> _ = general_grouped_gemm_for_grouped_tensor(w, x, cadre.torch.GroupedTensor.of_rows(y, [2, 3]))
    >>> y[:, 0]
    tensor([128., 128., 128., 128., 128.])
    """
    op = "general_grouped_gemm_for_grouped_tensor"
    transa, transb = _transposes(op, layout)
    if grad:
        raise NotImplementedError(f"{op}: grad = True, expected False (bias_grad sums the rows of each group)")
    if not isinstance(B, GroupedTensor):
        raise wrong_type(op, "B", B, "a GroupedTensor")
    if bias_scale is not None and bias is None:
        raise wrong_value(op, "bias", None, "a tensor, because bias_scale is given")
    A = operands.rows(op, "A", A, None, joined=False) if transb else operands.weights(op, "A", A)
    targets = out if isinstance(out, GroupedTensor) else GroupedTensor.list(out)
    _same_groups(op, A, B)
    _same_groups(op, targets, B, "out")
    if targets.mode is not None:
        raise wrong_value(op, "out.mode", repr(targets.mode), "None: results are not quantised")
    scalars = {name: _scalar(op, name, value, B) for name, value in (("alpha", alpha), ("beta", beta))}
    scalars["accumulate"] = bool(accumulate) and beta is None
    if isinstance(bias, GroupedTensor):
        bias = bias.tensors[0].squeeze(1) if bias.placement == _structs.STACKED else bias.tensors
    if isinstance(bias, (list, tuple)):
        bias = [each.reshape(-1) for each in bias]
    _run(op, A, B, targets, (transa, transb), scalars, bias, bias_scale)
    return out


def _transposes(op, layout):
    if layout not in _LAYOUTS:
        raise wrong_value(op, "layout", repr(layout), " or ".join(map(repr, _LAYOUTS)))
    return layout[0] == "T", layout[1] == "T"


def _refuse(op, gelu, quantization_params):
    if gelu:
        raise NotImplementedError(f"{op}: gelu = True, expected False (cadre.torch.gmm has activations)")
    for i, each in enumerate(quantization_params or ()):
        if each is not None:
            expected = "None: results are not quantised (cadre.torch.quantize does it)"
            raise wrong_value(op, f"quantization_params[{i}]", type(each).__name__, expected)


def _same_groups(op, one, B, name="A"):
    if one.num_groups != B.num_groups:
        raise wrong_value(op, f"num_groups of {name}", one.num_groups, f"that of B = {B.num_groups}")


def _check_splits(op, B, splits):
    if splits is None:
        return
    if len(splits) != B.num_groups:
        raise wrong_value(op, "len(m_splits)", len(splits), f"len(B) = {B.num_groups}")
    for i, size in enumerate(splits):
        if size != B.shape_of(i)[0]:
            raise wrong_value(op, f"m_splits[{i}]", size, f"B[{i}].shape[0] = {B.shape_of(i)[0]}")


def _shapes(A, B, transa, transb):
    pairs = ((A.shape_of(i), B.shape_of(i)) for i in range(B.num_groups))
    return [(b[1] if transb else b[0], a[0] if transa else a[1]) for a, b in pairs]


def _views(op, out, shapes):
    """The pieces of out[0] that hold the results."""
    whole = out[0]
    if len(out) != 1 or not whole.is_contiguous():
        received = f"{len(out)} tensors" if len(out) != 1 else "a tensor with gaps"
        raise wrong_value(op, "out", received, "one contiguous tensor, because single_output = True")
    sizes = [rows * columns for rows, columns in shapes]
    if sum(sizes) > whole.numel():
        raise wrong_value(op, "out[0].shape", list(whole.shape), f"room for {sum(sizes)} elements")
    pieces = whole.view(-1)[: sum(sizes)].split(sizes)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _scalar(op, name, value, B):
    """gmm's alpha or beta: a number for each group."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise wrong_type(op, name, value, "a torch.Tensor")
    if value.numel() not in (1, B.num_groups):
        raise wrong_value(op, f"{name}.shape", list(value.shape), f"[1] or [{B.num_groups}]")
    return value.reshape(-1).expand(B.num_groups).contiguous()


def _run(op, A, B, out, transposes, scalars, bias, bias_scale):
    transa, transb = transposes
    rows = B.as_rows()
    product = _grouped
    if transb and rows is not None and A.as_rows() is not None and out.placement != _structs.PACKED:
        product = _of_columns
    elif not transb and rows is not None and A.placement != _structs.PACKED:
        # gmm needs weights of one shape and writes one matrix, but it alone knows a bias and FP8 rows.
        fits = len({A.shape_of(i) for i in range(A.num_groups)}) == 1 and _whole(out) is not None
        product = _of_rows if fits or A.mode is not None or bias is not None else _grouped
    if bias is not None and product is not _of_rows:
        expected = "None unless B is made by GroupedTensor.of_rows and layout isn't 'NT'"
        raise wrong_value(op, "bias", "given", expected)
    try:
        product(op, A, B, out, transa, transb, scalars, {"bias": bias, "bias_scale": bias_scale})
    except (ValueError, TypeError, NotImplementedError) as error:
        raise renamed(error, {**_WORDS, **dict.fromkeys(("gmm", "tgmm", "grouped_gemm"), op)}) from None


#: From the words of the ops to those of these functions, for messages.
_WORDS = {
    "lhs": "B",
    "rhs": "A",
    "group_sizes": "B.rows",
    "c.": "out.",
    **{
        f"{ours}{end}": f"{theirs}{end}"
        for ours, theirs in (("a", "B"), ("b", "A"), ("d", "out"))
        for end in (".", "[", " holds")
    },
}


def _of_rows(op, A, B, out, transa, transb, scalars, added):
    """TN and NN of rows: gmm."""
    x, sizes = B.as_rows()
    _row_wise(op, "B", B)
    weights, transposed = _weights(op, A, transa)
    options = {"transpose_rhs": transposed, **added, **scalars}
    whole = _whole(out)
    if whole is not None:
        gmm(x, weights, sizes, out=whole, tail="untouched", **options)
        return
    if sizes.is_cuda:
        expected = f"one matrix or tensors that follow each other in memory, because B.rows is on {sizes.device}"
        raise wrong_value(op, "out", "matrices that lie apart", expected)
    # Matrices that lie apart: their rows in f32 first, so that they are rounded once.
    del options["accumulate"]
    beta = options.pop("beta", None)
    product = gmm(x, weights, sizes, out_dtype=torch.float32, **options)
    for i, (target, part) in enumerate(zip(_matrices(out), product.split(sizes.tolist()), strict=True)):
        if scalars["accumulate"] or beta is not None:
            part = part + target * (1.0 if beta is None else beta[i])
        target.copy_(part)


def _of_columns(op, A, B, out, transa, transb, scalars, added):
    """NT of rows: tgmm."""
    left, right = (_summed_over_rows(op, name, side) for name, side in (("B", B), ("A", A)))
    target = out.tensors[0] if out.placement == _structs.STACKED else list(out.tensors)
    tgmm(left, right, B.rows, out=target, **scalars)


def _grouped(op, A, B, out, transa, transb, scalars, added):
    A, transa = _along(op, "A", A, transa)
    B, transb = _along(op, "B", B, not transb)
    grouped_gemm(B, A, transa=not transb, transb=transa, d=out, **scalars)


def _whole(out):
    """The one matrix whose rows the results are; None where they lie apart."""
    if out.as_rows() is not None:
        return out.as_rows()[0]
    return operands.adjacent(out.tensors) if out.placement == _structs.LIST else None


def _matrices(out):
    return out.tensors[0].unbind(0) if out.placement == _structs.STACKED else out.tensors


def _weights(op, A, transa):
    """(gmm's rhs, its transpose_rhs)"""
    data = A.tensors and (A.tensors[0] if A.placement == _structs.STACKED else list(A.tensors))
    if A.mode is None:
        return data, transa
    rows = ScaledTensor(data, A.scales, A.mode)
    if transa:
        _row_wise(op, "A", A)
        return rows, True
    return Weights(rows, A.columns).for_dx(op, "A")


def _row_wise(op, name, side):
    if side.tensors is None:
        raise wrong_value(op, f"{name}.tensors", None, "row-wise data, because there are columns alone")


def _summed_over_rows(op, name, side):
    """An operand of tgmm."""
    if side.mode is None or (side.mode == "tensor" and side.columns is None):
        return side.as_rows()[0]
    if side.columns is None:
        expected = f"the column-wise copy, because layout = 'NT' sums over rows and {name}.mode = {side.mode!r}"
        raise wrong_value(op, f"{name}.columns", None, expected)
    return side.columns


def _along(op, name, side, along_last):
    """(the operand, whether its last dim is summed over): that of FP8 whose last dim has the scales."""
    if side.mode is None or along_last or side.mode in ("block_128", "tensor"):
        return side, along_last
    if side.columns is None or side.columns.columns:
        expected = f"column-wise data of matrices, because a first dim is summed over and {name}.mode = {side.mode!r}"
        raise wrong_value(op, f"{name}.columns", None, expected)
    copies = side.columns
    form = GroupedTensor.stacked if side.placement == _structs.STACKED else GroupedTensor.list
    return form(copies.data).quantised(copies.scales, copies.mode), True
