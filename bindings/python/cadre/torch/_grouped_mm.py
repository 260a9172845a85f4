"""grouped_mm: what torch.nn.functional.grouped_mm computes, in its four forms, for what it rejects too."""

from __future__ import annotations

import torch

from .._errors import wrong_type, wrong_value
from . import (
    _arguments,
    _autograd,  # noqa: F401 (completes the operators)
    _dtypes,
    _operators,
)
from ._errors import renamed, translated
from ._grouped_gemm import grouped_gemm
from ._types import Sizes, Tensor

_OP = "grouped_mm"
_gmm, _gmm_plain = _operators.gmm.call, _operators.gmm.call_plain
_tgmm = _operators.tgmm.call
#: From the words of the ops below to those of this one, for messages.
_WORDS = {
    "gmm": _OP,
    "tgmm": _OP,
    "grouped_gemm": _OP,
    "lhs": "mat_a",
    "rhs": "mat_b",
    "a.": "mat_a.",
    "b.": "mat_b.",
    "c.": "bias.",
    "group_sizes": "offs",
    "group_ends": "offs",
    "out.dtype": "out_dtype",
    "d.dtype": "out_dtype",
}
_TURNED_WORDS = {**_WORDS, "lhs": "mat_b", "rhs": "mat_a"}


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Sizes | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The product of each group; `offs` holds the end of each group along the dim that two operands divide into groups.

    mat_a [m, k], mat_b [g, k, n], offs along m: [m, n]; rows from offs[-1] on are zero.
    mat_a [g, m, k], mat_b [k, n], offs along n: [m, n], each group with its own columns of mat_b.
    mat_a [m, k], mat_b [k, n], offs along k: [g, m, n].
    mat_a [g, m, k], mat_b [g, k, n], no offs: [g, m, n].

    Beyond F.grouped_mm: any strides and sizes, f64, f32, f16 and bf16, mixed or not; offs of any integer type, on the
    device or the host, or a list; bias [g, n] ([g, m] where offs runs along n); out_dtype; double backward.

    >>> mat_a, mat_b = torch.ones(6, 4), torch.ones(3, 4, 5)
    >>> ends = torch.tensor([2, 2, 5], dtype=torch.int32)  # two rows, none, three; the last row has no group
    >>> cadre.torch.grouped_mm(mat_a, mat_b, offs=ends)[:, 0]
    tensor([4., 4., 4., 4., 4., 0.])
    """
    offs = None if offs is None else _arguments.sizes(_OP, "offs", offs)
    _check(mat_a, mat_b, offs, bias)
    a_rank, b_rank = mat_a.dim(), mat_b.dim()
    try:
        if a_rank == b_rank == 3:
            return _batched(mat_a, mat_b, bias, out_dtype)
        mat_a, mat_b = _arguments.autocast(mat_a, mat_b)
        if a_rank == b_rank == 2:
            return _ragged_inner(mat_a, mat_b, offs, bias, out_dtype)
        if b_rank == 3:
            return _ragged_rows(mat_a, mat_b, offs, False, bias, out_dtype)
        # Transposed, it is the first form; nothing moves in memory.
        return _ragged_rows(mat_b.t(), mat_a, offs, True, bias, out_dtype).t()
    except (RuntimeError, ValueError, TypeError) as error:
        tensors = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "bias": bias}
        error = translated(_OP, error, tensors, out_dtype)
        raise renamed(error, _TURNED_WORDS if a_rank > b_rank else _WORDS) from None


def _ragged_rows(lhs, rhs, ends, transpose_rhs, bias, out_dtype):
    if bias is None and out_dtype is None:
        return _gmm_plain(lhs=lhs, rhs=rhs, group_sizes=ends, ends=True, transpose_rhs=transpose_rhs)
    return _gmm(
        lhs=lhs,
        rhs=rhs,
        group_sizes=ends,
        ends=True,
        bias=bias,
        transpose_rhs=transpose_rhs,
        out_dtype=out_dtype,
    )


def _check(mat_a, mat_b, offs, bias):
    """Shapes, types and devices, in the caller's words; the ops below have others."""
    for name, mat in (("mat_a", mat_a), ("mat_b", mat_b)):
        if not isinstance(mat, torch.Tensor):
            raise wrong_type(_OP, name, mat, "a torch.Tensor")
        if mat.dim() not in (2, 3):
            raise _arguments.wrong_rank(_OP, name, mat, "2 or 3")
    a_rank, b_rank = mat_a.dim(), mat_b.dim()
    if (offs is None) != (a_rank == b_rank == 3):
        received = None if offs is None else "given"
        ends = "the end of each group" if offs is None else None
        ranks = f"mat_a.rank = {a_rank}, mat_b.rank = {b_rank}"
        raise wrong_value(_OP, "offs", received, f"{ends} for {ranks}")
    if offs is not None and offs.dim() != 1:
        raise _arguments.wrong_rank(_OP, "offs", offs, 1)
    k = mat_a.shape[-1]
    if mat_b.shape[-2] != k:
        shapes = f"mat_a.shape = {list(mat_a.shape)}, mat_b.shape = {list(mat_b.shape)}"
        raise wrong_value(_OP, "mat_b.shape[-2]", mat_b.shape[-2], f"k = {k} ({shapes})")
    _dtypes.product(_OP, mat_a.dtype, mat_b.dtype, ("mat_a", "mat_b"))
    if mat_a.device != mat_b.device:
        raise wrong_value(_OP, "mat_b.device", mat_b.device, f"mat_a.device = {mat_a.device}")
    stack, name = (mat_a, "mat_a") if a_rank == 3 else (mat_b, "mat_b")
    groups = offs.shape[0] if stack.dim() == 2 else stack.shape[0]
    if offs is None and mat_b.shape[0] != groups:
        raise wrong_value(_OP, "mat_b.shape[0]", mat_b.shape[0], f"mat_a.shape[0] = {groups}")
    if offs is not None and offs.shape[0] != groups:
        raise wrong_value(_OP, "offs.shape[0]", offs.shape[0], f"{name}.shape[0] = {groups}")
    if bias is not None:
        if not isinstance(bias, torch.Tensor):
            raise wrong_type(_OP, "bias", bias, "a torch.Tensor")
        width = mat_a.shape[1] if a_rank == 3 and b_rank == 2 else mat_b.shape[-1]
        if tuple(bias.shape) != (groups, width):
            raise wrong_value(_OP, "bias.shape", list(bias.shape), [groups, width])


def _ragged_inner(mat_a, mat_b, ends, bias, out_dtype):
    wide = out_dtype
    if bias is not None:
        dtype = out_dtype or _dtypes.product(_OP, mat_a.dtype, mat_b.dtype)
        wide = _dtypes.accumulator(dtype)
    product = _tgmm(
        lhs=mat_a.t(),
        rhs=mat_b,
        group_sizes=ends,
        ends=True,
        num_groups=ends.shape[0],
        out_dtype=wide,
    )
    return product if bias is None else (product + bias.unsqueeze(1)).to(dtype)


def _batched(mat_a, mat_b, bias, out_dtype):
    if bias is None:
        return grouped_gemm(mat_a, mat_b, out_dtype=out_dtype)
    groups, m, n = mat_a.shape[0], mat_a.shape[1], mat_b.shape[2]
    # A view that repeats the bias for every row, added before the one rounding.
    return grouped_gemm(
        mat_a,
        mat_b,
        c=bias.unsqueeze(1).expand(groups, m, n),
        beta=1.0,
        out_dtype=out_dtype,
    )
