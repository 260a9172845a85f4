"""scaled_grouped_mm: what torch.nn.functional.scaled_grouped_mm computes, on any device, for any sizes and more recipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._errors import wrong_type, wrong_value
from . import (
    _arguments,
    _autograd,  # noqa: F401 (completes the operators)
    _dtypes,
    _operators,
    _scaled,
)
from ._errors import renamed, translated
from ._grouped_gemm import grouped_gemm
from ._scaled import ScaledTensor
from ._types import Sizes, Tensor

_OP = "scaled_grouped_mm"
#: From the words of the ops below to those of this one, for messages.
_WORDS = {
    **dict.fromkeys(("gmm", "tgmm", "grouped_gemm"), _OP),
    "lhs.scales": "scale_a",
    "rhs.scales": "scale_b",
    "a.scales": "scale_a",
    "b.scales": "scale_b",
    "lhs": "mat_a",
    "rhs": "mat_b",
    "a.": "mat_a.",
    "b.": "mat_b.",
    "group_sizes": "offs",
    "out_dtype": "output_dtype",
}
_TURNED_WORDS = {**_WORDS, "lhs": "mat_b", "rhs": "mat_a", "lhs.scales": "scale_b", "rhs.scales": "scale_a"}

# torch's ScalingType and SwizzleType are compared by their numbers: older versions of torch don't have them.
_TENSOR, _ROW, _MX, _ROW_BLOCKS, _SQUARE_BLOCKS = 0, 1, 3, 4, 5
_MODES = {_TENSOR: "tensor", _ROW: "row", _MX: "mx", _ROW_BLOCKS: "block_128", _SQUARE_BLOCKS: "block_128"}
_RECIPES = "TensorWise, RowWise, BlockWise1x32, BlockWise1x128 or BlockWise128x128"
_SWIZZLE_32_4_4 = 1


def scaled_grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | Sequence[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | Sequence[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    offs: Sizes | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """The product of each group of FP8 matrices, with `offs` as in grouped_mm.

    mat_a [m, k], mat_b [g, k, n], offs along m: [m, n]; rows from offs[-1] on are zero.
    mat_a [g, m, k], mat_b [k, n], offs along n: [m, n].
    mat_a [m, k], mat_b [k, n], offs along k: [g, m, n]; TensorWise and RowWise alone.
    mat_a [g, m, k], mat_b [g, k, n], no offs: [g, m, n].

    Scales by recipe, for a matrix that is divided into groups | for a stack of matrices:
      RowWise           mat_a [m], mat_b [n]; with offs along k [g * m], [g * n]  | [g, m], [g, n]
      TensorWise        one number                                               | one, or [g]
      BlockWise1x128    [m, ceil(k/128)]                                         | [g, m, ceil(k/128)], [g, n, ...]
      BlockWise128x128  of mat_b alone                                           | [g, ceil(k/128), ceil(n/128)]
      BlockWise1x32     [m, ceil(k/32)] of float8_e8m0fnu, or swizzled            | [g, n, ceil(k/32)]
    The k of 128x128 scales may be padded to a multiple of 4, as torch.nn.functional.scaled_mm wants it. Recipe, scale and
    swizzle may each be a list of one. Swizzled (SWIZZLE_32_4_4) scales are read as the original lays them out: rows of each
    group padded to 128, [g, ...] flat for a stack.

    Beyond the original, which takes e4m3 in RowWise (and on Blackwell BlockWise1x32) alone: every size and stride, e5m2 on
    one side, bias as in grouped_mm, other types of output_dtype, offs of any integer type on either device.

    >>> mat_a, mat_b = torch.ones(6, 4).to(torch.float8_e4m3fn), torch.ones(3, 4, 5).to(torch.float8_e4m3fn)
    >>> row_wise = 1  # torch.nn.functional.ScalingType.RowWise.value
    >>> ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    >>> cadre.torch.scaled_grouped_mm(
    ...     mat_a, mat_b, torch.full((6,), 0.5), row_wise, torch.ones(3, 5), row_wise, offs=ends
    ... )[0]
    tensor([2., 2., 2., 2., 2.], dtype=torch.bfloat16)
    """
    a_recipe, b_recipe = _one("scale_recipe_a", scale_recipe_a), _one("scale_recipe_b", scale_recipe_b)
    scale_a, scale_b = _one("scale_a", scale_a), _one("scale_b", scale_b)
    swizzle_a, swizzle_b = _one("swizzle_a", swizzle_a), _one("swizzle_b", swizzle_b)
    offs = None if offs is None else _arguments.sizes(_OP, "offs", offs)
    _check(mat_a, mat_b, offs, tuple(contraction_dim))
    a_rank, b_rank = mat_a.dim(), mat_b.dim()
    words = _TURNED_WORDS if a_rank > b_rank else _WORDS
    a = _Side("a", mat_a, scale_a, a_recipe, swizzle_a, offs)
    b = _Side("b", mat_b.mT, scale_b, b_recipe, swizzle_b, offs)
    options = {"fast_accumulation": bool(use_fast_accum)}
    dtype = output_dtype or torch.bfloat16
    try:
        if a_rank == b_rank == 2:
            return _ragged_inner(a, b, offs, bias, dtype, options)
        if a_rank == b_rank == 3:
            return _batched(a, b, bias, dtype, options)
        rows, stack = (a, b) if b_rank == 3 else (b, a)
        out = _ragged_rows(rows.rows(), stack.weights(), offs, bias, dtype, options)
        return out if b_rank == 3 else out.t()
    except (RuntimeError, ValueError, TypeError) as error:
        tensors = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "bias": bias}
        raise renamed(translated(_OP, error, tensors, output_dtype), words) from None


def _ragged_rows(rows, stack, ends, bias, dtype, options):
    lhs, rhs, scales = _scaled.operands("gmm", rows, stack)
    return _operators.gmm.call(
        lhs=lhs, rhs=rhs, group_sizes=ends, ends=True, bias=bias, transpose_rhs=True, out_dtype=dtype, **scales, **options
    )


def _sizes(offs):
    """From the ends of groups to their sizes, where the ends are."""
    ends = offs if offs.dtype == torch.int64 else offs.to(torch.int64)
    return torch.diff(ends, prepend=ends.new_zeros(1))


def _one(argument, value):
    """The value, or the only one of a list: the original takes both."""
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) != 1:
        raise wrong_value(_OP, f"len({argument})", len(value), "1: no recipe here has a second scale")
    return value[0]


def _check(mat_a, mat_b, offs, contraction_dim):
    for name, mat in (("mat_a", mat_a), ("mat_b", mat_b)):
        if not isinstance(mat, torch.Tensor):
            raise wrong_type(_OP, name, mat, "a torch.Tensor")
        if mat.dim() not in (2, 3):
            raise _arguments.wrong_rank(_OP, name, mat, "2 or 3")
        if mat.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise _dtypes.wrong_dtype(_OP, name, mat.dtype, (torch.float8_e4m3fn, torch.float8_e5m2))
    if contraction_dim not in ((), (-1, -2)):
        raise wrong_value(_OP, "contraction_dim", contraction_dim, "() or (-1, -2)")
    if (offs is None) != (mat_a.dim() == mat_b.dim() == 3):
        received = None if offs is None else "given"
        ends = "the end of each group" if offs is None else None
        ranks = f"mat_a.rank = {mat_a.dim()}, mat_b.rank = {mat_b.dim()}"
        raise wrong_value(_OP, "offs", received, f"{ends} for {ranks}")
    if offs is not None and offs.dim() != 1:
        raise _arguments.wrong_rank(_OP, "offs", offs, 1)
    if mat_b.shape[-2] != mat_a.shape[-1]:
        shapes = f"mat_a.shape = {list(mat_a.shape)}, mat_b.shape = {list(mat_b.shape)}"
        raise wrong_value(_OP, "mat_b.shape[-2]", mat_b.shape[-2], f"k = {mat_a.shape[-1]} ({shapes})")


class _Side:
    """One matrix and its scales, with k last: of mat_b the transposed view."""

    def __init__(self, name, data, scale, recipe, swizzle, offs):
        self.name, self.data, self.offs = name, data, offs
        self.recipe = recipe if isinstance(recipe, int) else getattr(recipe, "value", recipe)
        if self.recipe not in _MODES:
            raise wrong_value(_OP, f"scale_recipe_{name}", recipe, _RECIPES)
        self.mode = _MODES[self.recipe]
        _scaled.checked(_OP, f"scale_{name}", scale)
        _scaled.refuse_gradients(_OP, {f"mat_{name}": data, f"scale_{name}": scale})
        swizzled = getattr(swizzle, "value", swizzle) == _SWIZZLE_32_4_4
        if swizzled and self.recipe != _MX:
            raise wrong_value(_OP, f"swizzle_{name}", swizzle, "NO_SWIZZLE but for BlockWise1x32")
        self.scale = self._unswizzled(scale) if swizzled else scale

    def rows(self):
        """The matrix that is divided into groups, as gmm's lhs."""
        if self.recipe == _SQUARE_BLOCKS:
            expected = "BlockWise1x128 for a matrix that is divided into groups"
            raise wrong_value(_OP, f"scale_recipe_{self.name}", "BlockWise128x128", expected)
        scale = self.scale.reshape(1) if self.recipe == _TENSOR and self.scale.dim() == 0 else self.scale
        return ScaledTensor(self.data, scale, self.mode)

    def weights(self):
        """The stack, as gmm's rhs [g, n, k]."""
        if self.recipe == _ROW_BLOCKS:
            expected = "BlockWise128x128 for a stack that meets groups"
            raise wrong_value(_OP, f"scale_recipe_{self.name}", "BlockWise1x128", expected)
        return self.matrices()

    def matrices(self):
        scale = self.scale
        if self.recipe == _TENSOR and scale.dim() == 0:
            scale = scale.reshape(1)
        if self.recipe == _SQUARE_BLOCKS and scale.dim() == 3:
            # As the original's scaled_mm: in mat_b's own order, k first; it may be padded.
            blocks = -(-self.data.shape[-1] // 128)
            if self.name == "b":
                scale = scale.mT
            if scale.shape[-1] == -(-blocks // 4) * 4:
                scale = scale[..., :blocks]
        return ScaledTensor(self.data, scale, self.mode)

    def factors(self, groups):
        """[g, outer] or a number in f32, with which a sum over k of one group is multiplied: for offs along k."""
        if self.recipe == _TENSOR:
            return self.scale.reshape(())
        if self.recipe != _ROW:
            expected = "TensorWise or RowWise where offs divides k"
            raise wrong_value(_OP, f"scale_recipe_{self.name}", self.recipe, expected)
        outer = self.data.shape[0]
        if tuple(self.scale.shape) != (groups * outer,):
            shape = f"[{groups} * {outer}]: a scale for each row in each group"
            raise wrong_value(_OP, f"scale_{self.name}.shape", list(self.scale.shape), shape)
        return self.scale.view(groups, outer)

    def _unswizzled(self, scale):
        """[rows, ceil(k/32)] out of 128 x 4 blocks, in which byte (r % 32) * 16 + r / 32 * 4 + c is row r, column c."""
        blocks = -(-self.data.shape[-1] // 32)
        block_columns = -(-blocks // 4)
        device = scale.device
        row = torch.arange(self.data.shape[-2], device=device)
        if self.data.dim() == 2:
            if self.offs is None:
                raise wrong_value(_OP, "offs", None, "the end of each group")
            # Each group's rows begin on a block of their own.
            sizes = _sizes(self.offs).to(device)
            ends = torch.cumsum(sizes, 0)
            padded = torch.cumsum((sizes + 127) // 128 * 128, 0)
            before = torch.cat([ends.new_zeros(1), padded - ends])
            row = row + before[torch.searchsorted(ends, row, right=True)]
        column = torch.arange(blocks, device=device)
        tile = (row // 128)[:, None] * block_columns + (column // 4)
        index = tile * 512 + ((row % 32) * 16 + row % 128 // 32 * 4)[:, None] + column % 4
        flat = scale.reshape(-1) if self.data.dim() == 2 else scale.reshape(self.data.shape[0], -1)
        self._check_blocks(flat, index, scale)
        return flat.view(torch.uint8)[..., index.clamp_(max=flat.shape[-1] - 1)].view(scale.dtype)

    def _check_blocks(self, flat, index, scale):
        rows, columns = self.data.shape[-2], -(-self.data.shape[-1] // 128) * 4
        needed = rows * columns if self.data.dim() == 2 else -(-rows // 128) * 128 * columns
        if flat.shape[-1] < needed or (self.data.dim() == 3 and flat.shape[-1] != needed):
            expected = f"{needed} scales of 128 x 4 blocks for each matrix"
            raise wrong_value(_OP, f"scale_{self.name}.shape", list(scale.shape), expected)


def _ragged_inner(a, b, offs, bias, dtype, options):
    """The scales belong to rows of the result here, so they multiply it: an epilogue of torch's."""
    groups = offs.shape[0]
    one = torch.ones(1, device=a.data.device)
    operands = (ScaledTensor(side.data.t(), one, "tensor") for side in (a, b))
    lhs, rhs, scales = _scaled.operands("tgmm", *operands, columns=True)
    product = _operators.tgmm.call(
        lhs=lhs, rhs=rhs, group_sizes=offs, ends=True, num_groups=groups, out_dtype=torch.float32, **scales, **options
    )
    for side, dim in ((a, 2), (b, 1)):
        factors = side.factors(groups)
        product = product * (factors if factors.dim() == 0 else factors.unsqueeze(dim))
    return (product if bias is None else product + bias.unsqueeze(1)).to(dtype)


def _batched(a, b, bias, dtype, options):
    c = {}
    if bias is not None:
        groups, m, n = *a.data.shape[:2], b.data.shape[1]
        c = {"c": bias.unsqueeze(1).expand(groups, m, n), "beta": 1.0}
    return grouped_gemm(a.matrices(), b.matrices(), transb=True, out_dtype=dtype, **c, **options)
