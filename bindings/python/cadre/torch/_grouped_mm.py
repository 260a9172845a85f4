"""grouped_mm: what torch.nn.functional.grouped_mm computes, in its four forms, for what it rejects too."""

import torch

from .._errors import wrong_type, wrong_value
from . import _arguments, _dtypes
from ._errors import renamed
from ._functional import gmm, tgmm
from ._grouped_gemm import grouped_gemm

_OP = "grouped_mm"
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
    "out.dtype": "out_dtype",
    "d.dtype": "out_dtype",
}
_TURNED_WORDS = {**_WORDS, "lhs": "mat_b", "rhs": "mat_a"}


def _sizes(offs):
    """Group sizes from the groups' ends, on the device of `offs`."""
    if not offs.dtype.is_signed:
        offs = offs.to(
            torch.int64
        )  # torch subtracts uint8 alone, and ends that decrease would wrap
    # Two kernels; torch.diff with its zero to prepend takes three.
    sizes = offs.clone()
    sizes[1:].sub_(offs[:-1])
    return sizes


def grouped_mm(mat_a, mat_b, *, offs=None, bias=None, out_dtype=None):
    """The product of each group; `offs` holds the end of each group along the dim that two operands divide into groups.

    mat_a [m, k], mat_b [g, k, n], offs along m: [m, n]; rows from offs[-1] on are zero.
    mat_a [g, m, k], mat_b [k, n], offs along n: [m, n], each group with its own columns of mat_b.
    mat_a [m, k], mat_b [k, n], offs along k: [g, m, n].
    mat_a [g, m, k], mat_b [g, k, n], no offs: [g, m, n].

    Beyond F.grouped_mm: any strides and sizes, f64, f32, f16 and bf16, mixed or not; offs of any integer type, on the
    device or the host, or a list; bias [g, n] ([g, m] where offs runs along n); out_dtype; double backward.
    """
    offs = None if offs is None else _arguments.sizes(_OP, "offs", offs)
    _check(mat_a, mat_b, offs, bias)
    a_rank, b_rank = mat_a.dim(), mat_b.dim()
    try:
        if a_rank == b_rank == 3:
            return _batched(mat_a, mat_b, bias, out_dtype)
        sizes = _sizes(offs)
        if a_rank == b_rank == 2:
            return _ragged_inner(mat_a, mat_b, sizes, bias, out_dtype)
        if b_rank == 3:
            return gmm(mat_a, mat_b, sizes, bias=bias, out_dtype=out_dtype)
        # Transposed, it is the first form; nothing moves in memory.
        return gmm(mat_b.t(), mat_a, sizes, transpose_rhs=True, bias=bias, out_dtype=out_dtype).t()
    except (ValueError, TypeError, NotImplementedError) as error:
        if offs is not None:
            divided = mat_b.shape[1] if a_rank == 3 else mat_a.shape[0 if b_rank == 3 else 1]
            _check_ends(offs, divided)
        raise renamed(error, _TURNED_WORDS if a_rank > b_rank else _WORDS) from None


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


def _check_ends(offs, length):
    """Raises for ends on the host that no groups have; `length`: of the dim that they divide."""
    before = 0
    for i, end in enumerate(offs.tolist() if offs.device.type == "cpu" else ()):
        if not before <= end <= length:
            start = f"offs[{i - 1}] = {before}" if i else 0
            raise wrong_value(_OP, f"offs[{i}]", end, f"{start} to {length}") from None
        before = end


def _ragged_inner(mat_a, mat_b, sizes, bias, out_dtype):
    if bias is None:
        return tgmm(mat_a.t(), mat_b, sizes, out_dtype=out_dtype)
    dtype = out_dtype or _dtypes.product(_OP, mat_a.dtype, mat_b.dtype)
    product = tgmm(mat_a.t(), mat_b, sizes, out_dtype=_dtypes.accumulator(dtype))
    return (product + bias.unsqueeze(1)).to(dtype)


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
