"""gmm, tgmm and bias_grad on torch tensors: CPU and CUDA, differentiable, compilable."""

from __future__ import annotations

from typing import Any, overload

import torch

from .. import _options
from .._errors import wrong_type, wrong_value
from .._types import Precision, Tail
from . import (
    _arguments,
    _autograd,  # noqa: F401 (completes the operators)
    _dtypes,
    _operators,
    _scaled,
)
from ._errors import translated
from ._types import Operand, Operands, Out, Sizes, Tensor, Tensors

_gmm, _gmm_plain = _operators.gmm.call, _operators.gmm.call_plain
_tgmm = _operators.tgmm.call
_Tensor = torch.Tensor
_any_autocast = torch._C._is_any_autocast_enabled


def gmm(
    lhs: Operand,
    rhs: Operands,
    group_sizes: Sizes,
    *,
    transpose_rhs: bool = False,
    alpha: float | Tensor | None = None,
    bias: Tensors | None = None,
    bias_scale: Tensor | None = None,
    row_scale: Tensor | None = None,
    out: Out | None = None,
    out_dtype: torch.dtype | None = None,
    c: Tensors | None = None,
    beta: float | Tensor | None = None,
    accumulate: bool = False,
    tail: Tail = "zero",
    group_offset: int | Tensor = 0,
    precision: Precision = "default",
    fast_accumulation: bool = False,
) -> Out:
    """out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs[g]) + bias_scale[r] * bias[g]) + beta_g * c[r], g the group of row r.

    lhs [m, k]; rhs [g, k, n] (or [g, n, k] with transpose_rhs), one tensor or a list of g matrices; group_sizes: a
    tensor of any integer type on lhs's device or the host, or a list; sizes on a device are never read by the host.
    bias [g, n] (or a list), bias_scale [m], row_scale [m]; alpha is a number or a [g] tensor; group_offset is an int or a
    tensor. All of lhs, rhs, alpha, bias, bias_scale and row_scale are differentiable, any number of times.

    Rows behind the last group become zero (tail="zero"), must not exist ("forbid"), or keep what they hold
    ("untouched", with out). `out`, c, beta and accumulate write into a given buffer and are not differentiable.
    `out` and c are [m, n], or lists with a matrix for each group of its rows, or more (on a device: of one number of rows).

    lhs and rhs may be ScaledTensors of FP8 data; such a call is not differentiable. fast_accumulation lets sums of FP8
    products keep fewer bits than f32 has.

    >>> lhs, rhs = torch.ones(6, 4), torch.ones(3, 4, 5, requires_grad=True)
    >>> out = cadre.torch.gmm(lhs, rhs, torch.tensor([2, 0, 4]))
    >>> out.shape
    torch.Size([6, 5])
    >>> out.sum().backward()
    >>> rhs.grad[:, 0, 0]  # rows of each group
    tensor([2., 0., 4.])
    """
    if not isinstance(group_sizes, _Tensor):
        group_sizes = _arguments.sizes("gmm", "group_sizes", group_sizes)
    if transpose_rhs is not False and transpose_rhs is not True:
        transpose_rhs = _options.flag("gmm", "transpose_rhs", transpose_rhs)
    try:
        if (
            alpha is bias is bias_scale is row_scale is out is out_dtype is c is beta is None
            and tail == "zero"
            and precision == "default"
            and not accumulate
            and type(group_offset) is int
            and group_offset == 0
            and isinstance(lhs, _Tensor)
            and isinstance(rhs, _Tensor)
            and not fast_accumulation
            and not _any_autocast()
        ):
            return _gmm_plain(
                lhs=lhs, rhs=rhs, group_sizes=group_sizes, transpose_rhs=transpose_rhs
            )
        offset_tensor, group_offset = _arguments.group_offset("gmm", group_offset)
        alpha_value, alpha = _arguments.scalars("gmm", "alpha", alpha, 1.0)
        tail_code = _options.tail("gmm", tail)
        precision_code = _options.precision("gmm", precision)
        fast_accumulation = _options.flag("gmm", "fast_accumulation", fast_accumulation)
        lhs, rhs, scales = _scaled.operands("gmm", lhs, rhs)
        if scales:
            given = (("bias", bias), ("alpha", alpha), ("bias_scale", bias_scale), ("row_scale", row_scale))
            _scaled.refuse_gradients("gmm", dict(given))
        lhs, rhs = _arguments.autocast(lhs, rhs)
        if out is not None or c is not None or beta is not None or accumulate:
            options = {
                "group_sizes": group_sizes,
                "alpha": alpha,
                "bias_scale": bias_scale,
                "row_scale": row_scale,
                "group_offset_tensor": offset_tensor,
                "group_offset": group_offset,
                "transpose_rhs": transpose_rhs,
                "alpha_value": alpha_value,
                "tail": tail_code,
                "precision": precision_code,
                "fast_accumulation": fast_accumulation,
                **_scaled.as_lists(scales),
            }
            return _gmm_into(lhs, rhs, bias, options, out, out_dtype, c, beta, accumulate)
        if tail == "untouched":
            raise wrong_value(
                "gmm", "tail", "'untouched' without out", "an out whose tail rows are kept"
            )
        call = _gmm
        listed = rhs, bias, scales.get("rhs_scales")
        if any(isinstance(each, (list, tuple)) for each in listed):
            rhs, bias = _lists(rhs, bias)
            scales = _scaled.as_lists(scales)
            call = _operators.gmm_list.call
        return call(
            lhs=lhs,
            rhs=rhs,
            group_sizes=group_sizes,
            alpha=alpha,
            bias=bias,
            bias_scale=bias_scale,
            row_scale=row_scale,
            group_offset_tensor=offset_tensor,
            group_offset=group_offset,
            transpose_rhs=transpose_rhs,
            alpha_value=alpha_value,
            tail=tail_code,
            precision=precision_code,
            fast_accumulation=fast_accumulation,
            out_dtype=out_dtype,
            **scales,
        )
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {
            "lhs": lhs,
            "rhs": rhs,
            "group_sizes": group_sizes,
            "alpha": alpha,
            "bias": bias,
            "bias_scale": bias_scale,
            "row_scale": row_scale,
            "c": c,
            "out": out,
        }
        raise translated("gmm", error, tensors, out_dtype) from None


def _lists(rhs, bias):
    """gmm_list's and gmm_out's rhs and bias."""
    rhs = _arguments.one_or_list("gmm", "rhs", rhs, 2)
    return rhs, _arguments.one_or_list("gmm", "bias", bias, 1)


def _rows_or_list(argument, value):
    """gmm's out or c as (tensors, is it a list): one tensor has the rows of all groups, a list those of each."""
    if isinstance(value, (list, tuple)):
        return list(value), True
    if isinstance(value, torch.Tensor) and value.dim() != 2:
        raise _arguments.wrong_rank("gmm", argument, value, 2)
    return [] if value is None else [value], False


def _gmm_into(lhs, rhs, bias, options, out, out_dtype, c, beta, accumulate):
    """gmm with a buffer or with c. `options`: the arguments that gmm's operators share."""
    rhs, bias = _lists(rhs, bias)
    beta_value, beta = _beta("gmm", beta, accumulate)
    inputs = {"lhs": lhs, "rhs": rhs, "bias": bias, "c": c, "beta": beta}
    scales = {name: options[name] for name in ("alpha", "bias_scale", "row_scale")}
    _arguments.refuse_gradients("gmm", {**inputs, **scales})
    if out is None:
        if c is None:
            raise wrong_value("gmm", "out", None, "a tensor, because accumulate or beta adds to it")
        dtype = out_dtype or _dtypes.product("gmm", lhs.dtype, rhs[0].dtype)
        n = rhs[0].shape[-2 if options["transpose_rhs"] else -1]
        # With beta the library keeps rows that no group covers, so they must hold something.
        out = lhs.new_zeros((lhs.shape[0], n), dtype=dtype)
    elif out_dtype is not None:
        raise wrong_value("gmm", "out_dtype", out_dtype, "None because out is given")
    c, c_is_list = _rows_or_list("c", c)
    _, out_is_list = _rows_or_list("out", out)
    _operators.gmm_out.call(
        lhs=lhs,
        rhs=rhs,
        bias=bias,
        c=c,
        beta=beta,
        beta_value=beta_value,
        c_is_list=c_is_list,
        out_is_list=out_is_list,
        out=_arguments.outputs("gmm", "out", out),
        **options,
    )
    return out


def _beta(op, beta, accumulate):
    if _options.flag(op, "accumulate", accumulate) and beta is not None:
        raise wrong_value(op, "beta", beta, "None because accumulate is given")
    return (1.0, None) if accumulate else _arguments.scalars(op, "beta", beta, 0.0)


def tgmm(
    lhs: Operand,
    rhs: Operand,
    group_sizes: Sizes,
    *,
    num_groups: int | None = None,
    alpha: float | Tensor | None = None,
    out: Out | None = None,
    out_dtype: torch.dtype | None = None,
    c: Tensors | None = None,
    beta: float | Tensor | None = None,
    accumulate: bool = False,
    group_offset: int | Tensor = 0,
    precision: Precision = "default",
    fast_accumulation: bool = False,
) -> Out:
    """out[i] = alpha_i * (lhs[rows of group i]^T @ rhs[rows of group i]) + beta_i * c[i]: the weight gradient of gmm.

    lhs [m, k], rhs [m, n]; the result is [g, k, n], where g is num_groups (default: every group of group_sizes from
    group_offset on). lhs, rhs and alpha are differentiable. `out`, one tensor or a list of g matrices (one main_grad for
    each expert, f32 if you like), is written in place, or with accumulate added to, and is not differentiable.

    lhs and rhs may be ScaledTensors, column-wise copies of FP8 data unless their mode is "tensor"; such a call is not
    differentiable.

    >>> main_grad = torch.ones(3, 4, 5)
    >>> x, dy = torch.ones(6, 4, dtype=torch.bfloat16), torch.ones(6, 5, dtype=torch.bfloat16)
    >>> cadre.torch.tgmm(x, dy, torch.tensor([2, 0, 4]), out=main_grad, accumulate=True)[:, 0, 0]
    tensor([3., 1., 5.])
    """
    if not isinstance(group_sizes, torch.Tensor):
        group_sizes = _arguments.sizes("tgmm", "group_sizes", group_sizes)
    try:
        offset_tensor, group_offset = _arguments.group_offset("tgmm", group_offset)
        alpha_value, alpha = _arguments.scalars("tgmm", "alpha", alpha, 1.0)
        lhs, rhs, scales = _scaled.operands("tgmm", lhs, rhs, columns=True)
        if scales:
            _scaled.refuse_gradients("tgmm", {"alpha": alpha})
        scales["fast_accumulation"] = _options.flag("tgmm", "fast_accumulation", fast_accumulation)
        lhs, rhs = _arguments.autocast(lhs, rhs)
        precision_code = _options.precision("tgmm", precision)
        if out is None:
            if c is not None or beta is not None or accumulate:
                expected = "a tensor, because accumulate, beta or c is given"
                raise wrong_value("tgmm", "out", None, expected)
            groups = _local_groups("tgmm", group_sizes, group_offset, offset_tensor, num_groups)
            return _tgmm(
                lhs=lhs,
                rhs=rhs,
                group_sizes=group_sizes,
                alpha=alpha,
                group_offset_tensor=offset_tensor,
                group_offset=group_offset,
                num_groups=groups,
                alpha_value=alpha_value,
                precision=precision_code,
                out_dtype=out_dtype,
                **scales,
            )
        for name, value in (("out_dtype", out_dtype), ("num_groups", num_groups)):
            if value is not None:
                raise wrong_value("tgmm", name, value, "None because out is given")
        beta_value, beta = _beta("tgmm", beta, accumulate)
        _arguments.refuse_gradients(
            "tgmm", {"lhs": lhs, "rhs": rhs, "alpha": alpha, "c": c, "beta": beta}
        )
        _operators.tgmm_out.call(
            lhs=lhs,
            rhs=rhs,
            group_sizes=group_sizes,
            alpha=alpha,
            group_offset_tensor=offset_tensor,
            group_offset=group_offset,
            alpha_value=alpha_value,
            precision=precision_code,
            c=_arguments.one_or_list("tgmm", "c", c, 2),
            beta=beta,
            beta_value=beta_value,
            out=_arguments.outputs("tgmm", "out", out, 2),
            **scales,
        )
        return out
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {
            "lhs": lhs,
            "rhs": rhs,
            "group_sizes": group_sizes,
            "alpha": alpha,
            "c": c,
            "out": out,
        }
        raise translated("tgmm", error, tensors, out_dtype) from None


def _local_groups(op, group_sizes, group_offset, offset_tensor, num_groups):
    if num_groups is not None:
        if isinstance(num_groups, (bool, float)):
            raise wrong_type(op, "num_groups", num_groups, "an int")
        if type(num_groups) is int and num_groups < 0:
            raise wrong_value(op, "num_groups", num_groups, "0 or more")
        return num_groups
    if offset_tensor is not None:
        raise wrong_value(op, "num_groups", None, "a number, because group_offset is a tensor")
    if not 0 <= group_offset <= group_sizes.shape[0]:
        expected = f"0 to {group_sizes.shape[0]}, the number of group_sizes"
        raise wrong_value(op, "group_offset", group_offset, expected)
    return group_sizes.shape[0] - group_offset


@overload
def bias_grad(
    dy: Tensor,
    group_sizes: Sizes,
    *,
    bias: None = None,
    bias_scale: Tensor | None = None,
    num_groups: int | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: int | Tensor = 0,
) -> Out: ...


@overload
def bias_grad(
    dy: Tensor,
    group_sizes: Sizes,
    *,
    bias: Tensors,
    bias_scale: Tensor | None = None,
    num_groups: int | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: int | Tensor = 0,
) -> tuple[Out, Tensor]: ...


def bias_grad(
    dy: Tensor,
    group_sizes: Sizes,
    *,
    bias: Tensors | None = None,
    bias_scale: Tensor | None = None,
    num_groups: int | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: int | Tensor = 0,
) -> Any:
    """The gradients of gmm's bias and bias_scale from dy [m, n], the gradient of its output; without a sync.

    Returns dbias [g, n], dbias[i] = sum of bias_scale[r] * dy[r] over group i's rows; where `bias` [g, n] is given,
    returns (dbias, dbias_scale [m]) with dbias_scale[r] = dot(dy[r], bias[g]), zero in rows that no group covers.
    `out`, one tensor or a list of g vectors, takes dbias, and with accumulate has it added.

    >>> cadre.torch.bias_grad(torch.ones(6, 2), torch.tensor([2, 0, 4]))
    tensor([[2., 2.],
            [0., 0.],
            [4., 4.]])
    """
    if not isinstance(group_sizes, torch.Tensor):
        group_sizes = _arguments.sizes("bias_grad", "group_sizes", group_sizes)
    try:
        offset_tensor, group_offset = _arguments.group_offset("bias_grad", group_offset)
        accumulate = _options.flag("bias_grad", "accumulate", accumulate)
        where = {
            "dy": dy,
            "group_sizes": group_sizes,
            "group_offset_tensor": offset_tensor,
            "group_offset": group_offset,
        }
        if out is None:
            if accumulate:
                expected = "a tensor, because accumulate adds to it"
                raise wrong_value("bias_grad", "out", None, expected)
            if num_groups is None and bias is not None:
                num_groups = len(bias)
            groups = _local_groups(
                "bias_grad", group_sizes, group_offset, offset_tensor, num_groups
            )
            dbias = _operators.bias_grad.call(bias_scale=bias_scale, num_groups=groups, **where)
        else:
            if num_groups is not None:
                expected = "None because out is given"
                raise wrong_value("bias_grad", "num_groups", num_groups, expected)
            _arguments.refuse_gradients("bias_grad", {"dy": dy, "bias_scale": bias_scale})
            dbias = out
            _operators.bias_grad_out.call(
                bias_scale=bias_scale,
                accumulate=accumulate,
                out=_arguments.outputs("bias_grad", "out", out, 1),
                **where,
            )
        if bias is None:
            return dbias
        vectors = _arguments.one_or_list("bias_grad", "bias", bias, 1)
        return dbias, _operators.bias_scale_grad.call(bias=vectors, **where)
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {
            "dy": dy,
            "group_sizes": group_sizes,
            "bias": bias,
            "bias_scale": bias_scale,
            "out": out,
        }
        raise translated("bias_grad", error, tensors) from None


def check(device: torch.device | str | int | None = None) -> None:
    """Waits for the current stream of a CUDA device and raises if group sizes or offsets on it were bad.

    They are not looked at by the host when an op is called; an op that met bad ones has touched nothing outside its
    tensors and has treated the groups from the first bad one on as tail.

    >>> cadre.torch.check("cpu")  # on a CPU the call itself has raised
    """
    like = torch.empty(0, device=device)
    try:
        _operators.check.call(like=like)
    except RuntimeError as error:
        raise translated("check", error, {}) from None
