"""quantize, dequantize and amax: between float tensors and FP8 data with scales. Nothing is read by the host."""

from __future__ import annotations

from typing import Any

import torch

from .. import _options
from .. import _scaled as _modes
from .._errors import wrong_type, wrong_value
from .._types import ActivationName, ScaleMode
from . import _arguments, _operators, _scaled
from ._errors import translated
from ._activation import Activation, activation_of
from ._scaled import ScaledTensor
from ._types import Sizes, Tensor

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_RESULTS = (torch.float32, torch.bfloat16, torch.float16)


def quantize(
    x: Tensor,
    mode: ScaleMode,
    group_sizes: Sizes | None = None,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    rows: bool = True,
    columns: bool = False,
    power_of_two: bool = False,
    amax_floor: float = 0.0,
    scale_dtype: torch.dtype | None = None,
    source_row: Tensor | None = None,
    row_scale: Tensor | None = None,
    activation: ActivationName = "none",
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    up_offset: float = 1.0,
) -> Any:
    """FP8 data of x with scales by `mode`, as a ScaledTensor; with rows and columns both, the two of them.

    x: rows [m, k] of f32, bf16 or f16, or weights [g, n, k]. `rows` are scaled along k, for gmm; `columns` is the copy for
    tgmm, scaled along the rows of each group of group_sizes (default: one group), or of weights [g, k, n], scaled along n:
    what gmm reads for the gradient of its input. Both are made in one pass.

    Scales are amax / 448 (e5m2: 57344), rounded up to a power of two with power_of_two, and always in "mx" and in
    scale_dtype=torch.float8_e8m0fnu. amax_floor: the least amax that counts; DeepGEMM's is 1e-4.

    Rows may be taken by index, row r being row_scale[r] * activation(x[source_row[r]]), with zeros for -1: source_row as
    route makes it, activation, interleaved, alpha, limit and up_offset as in moe_mlp. Not differentiable.

    >>> x = torch.tensor([[1.0, 2.0, -4.0], [0.5, 0.0, 0.25]])
    >>> rows = cadre.torch.quantize(x, "row", power_of_two=True)
    >>> rows.scales  # powers of two above 4 / 448 and 0.5 / 448
    tensor([0.0156, 0.0020])
    >>> cadre.torch.dequantize(rows, out_dtype=torch.float32)
    tensor([[ 1.0000,  2.0000, -4.0000],
            [ 0.5000,  0.0000,  0.2500]])
    """
    op = "quantize"
    mode_code = _mode(op, mode)
    if dtype not in _FP8:
        raise TypeError(f"{op}: dtype = {dtype}, expected {_FP8[0]} or {_FP8[1]}")
    if not rows and not columns:
        raise wrong_value(op, "rows", rows, "True, or columns = True")
    if scale_dtype is None:
        scale_dtype = torch.float8_e8m0fnu if mode == "mx" else torch.float32
    fn = activation_of(op, activation, interleaved, (alpha, limit, up_offset))
    if not isinstance(fn, Activation):
        raise wrong_type(op, "activation", activation, "a name")
    _not_differentiable(op, {"x": x, "row_scale": row_scale})
    sizes = None if group_sizes is None else _arguments.sizes(op, "group_sizes", group_sizes)
    try:
        made = _operators.quantize.call(
            x=x,
            source_row=source_row,
            row_scale=row_scale,
            activation=fn.kind,
            interleaved=_options.flag(op, "interleaved", fn.interleaved),
            clamp=[float(each) for each in fn.clamp],
            group_sizes=sizes,
            dtype=dtype,
            scale_dtype=scale_dtype,
            mode=mode_code,
            power_of_two=_options.flag(op, "power_of_two", power_of_two),
            amax_floor=float(amax_floor),
            wants_rows=_options.flag(op, "rows", rows),
            wants_columns=_options.flag(op, "columns", columns),
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise translated(op, error, {"x": x, "row_scale": row_scale}) from None
    copy_of_rows = columns and x.dim() == 2
    tensors = [
        ScaledTensor(data, scales, mode, columns=copy)
        for data, scales, copy in zip(made[::2], made[1::2], [False] * rows + [copy_of_rows] * columns)
    ]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def dequantize(
    x: ScaledTensor,
    group_sizes: Sizes | None = None,
    *,
    num_rows: int | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The values of a ScaledTensor, in f32, bf16 or f16: [m, k], or [g, n, k] of weights.

    group_sizes: of rows, where they aren't one group; rows behind the last group become zero. A column-wise copy needs
    num_rows, the m of the rows that it was made of.

    >>> weights = cadre.torch.quantize(torch.ones(3, 4, 5), "tensor")
    >>> cadre.torch.dequantize(weights).shape
    torch.Size([3, 4, 5])
    """
    op = "dequantize"
    if not isinstance(x, ScaledTensor):
        raise wrong_type(op, "x", x, "a ScaledTensor")
    scales = _scaled.checked(op, "x.scales", x.scales)
    for name, value in (("x.data", x.data), ("x.scales", scales)):
        if not isinstance(value, torch.Tensor):
            raise wrong_type(op, name, value, "one torch.Tensor")
    _not_differentiable(op, {"x.scales": scales})
    if out_dtype not in _RESULTS:
        raise TypeError(f"{op}: out_dtype = {out_dtype}, expected {', '.join(map(str, _RESULTS))}")
    if x.columns != (num_rows is not None):
        expected = "the number of rows, because x is a column-wise copy" if x.columns else None
        raise wrong_value(op, "num_rows", num_rows, expected)
    try:
        return _operators.dequantize.call(
            x=x.data,
            scales=scales,
            mode=_modes.MODES[x.mode],
            columns=x.columns,
            group_sizes=None if group_sizes is None else _arguments.sizes(op, "group_sizes", group_sizes),
            num_rows=num_rows or 0,
            out_dtype=out_dtype,
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise translated(op, error, {}) from None


def amax(x: Tensor, mode: ScaleMode, group_sizes: Sizes | None = None) -> Tensor:
    """The largest finite magnitude that would share each scale of `mode`, in f32 and in the shape of the scales.

    x is [m, k], or weights [g, n, k]. group_sizes [g]: of rows, where they aren't one group.

    >>> cadre.torch.amax(torch.tensor([[1.0, -4.0], [0.5, 0.0]]), "row")
    tensor([4.0000, 0.5000])
    """
    op = "amax"
    _not_differentiable(op, {"x": x})
    try:
        return _operators.amax.call(
            x=x,
            mode=_mode(op, mode),
            group_sizes=None if group_sizes is None else _arguments.sizes(op, "group_sizes", group_sizes),
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        raise translated(op, error, {"x": x}) from None


def _mode(op, mode):
    if mode not in _modes.MODES:
        raise wrong_value(op, "mode", repr(mode), " or ".join(map(repr, _modes.MODES)))
    return _modes.MODES[mode]


def _not_differentiable(op, tensors):
    _arguments.refuse_gradients(op, tensors, f"{op} is not differentiable")
