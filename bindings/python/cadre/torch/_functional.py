"""gmm and tgmm on torch tensors: CPU and CUDA, differentiable, compilable."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from .. import _options
from .._errors import wrong_value
from .._types import Activation, Precision, Tail
from . import (
    _arguments,
    _autograd,  # noqa: F401 (completes the operators)
    _dtypes,
    _operators,
    _packed,
    _scaled,
)
from ._activated import activated_product
from ._activation import activation_of
from ._bias_grad import local_groups
from ._errors import translated
from ._packed import PackedWeights
from ._routing import Routing
from ._row_index import indices, rows_of
from ._types import Operand, Operands, Out, Sizes, Tensor, Tensors

_gmm, _gmm_plain = _operators.gmm.call, _operators.gmm.call_plain
_tgmm = _operators.tgmm.call
_Tensor = torch.Tensor
_any_autocast = torch._C._is_any_autocast_enabled


@overload
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
    lhs_rows: Tensor | Routing | None = None,
    activation: Activation | None = None,
    interleaved: bool = False,
    clamp: tuple[float, float, float] = (1.702, 7.0, 1.0),
    preactivation: Literal[False] = False,
    packed_rhs: PackedWeights | None = None,
) -> Out: ...


@overload
def gmm(
    lhs: Operand, rhs: Operands, group_sizes: Sizes, *, preactivation: Literal[True], **options: Any
) -> tuple[Tensor, Tensor]: ...


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
    lhs_rows: Tensor | Routing | None = None,
    activation: Activation | None = None,
    interleaved: bool = False,
    clamp: tuple[float, float, float] = (1.702, 7.0, 1.0),
    preactivation: bool = False,
    packed_rhs: PackedWeights | None = None,
) -> Any:
    """out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs[g]) + bias_scale[r] * bias[g]) + beta_g * c[r], g the group of row r.

    lhs [m, k]; rhs [g, k, n] (or [g, n, k] with transpose_rhs), one tensor or a list of g matrices; group_sizes: a
    tensor of any integer type on lhs's device or the host, or a list; sizes on a device are never read by the host.
    bias [g, n] (or a list), bias_scale [m], row_scale [m]; alpha is a number or a [g] tensor; group_offset is an int or a
    tensor. All of lhs, rhs, alpha, bias, bias_scale and row_scale are differentiable, any number of times.

    Rows behind the last group become zero (tail="zero"), must not exist ("forbid"), or keep what they hold
    ("untouched", with out). `out`, c, beta and accumulate write into a given buffer and are not differentiable.
    `out` and c are [m, n], or lists with a matrix for each group of its rows, or more (on a device: of one number of rows).

    lhs_rows [m]: row r of the product is lhs[lhs_rows[r]], or zeros where that is -1: an index, or what route() returned,
    which a gradient of lhs needs.

    activation: a name as moe_mlp takes it (clamp: alpha, limit and up_offset of clamped_swiglu) or a function. The result
    is [m, n / 2] with a gate; with preactivation=True a pair with the [m, n] that it was applied to. packed_rhs is what
    pack_weights made of rhs, for inference on a CPU.

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
            and lhs_rows is activation is packed_rhs is None
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
        others = {"bias": bias, "alpha": alpha, "bias_scale": bias_scale, "row_scale": row_scale}
        if scales:
            _scaled.refuse_gradients("gmm", others)
        lhs, rhs = _arguments.autocast(lhs, rhs)
        index = indices("gmm", lhs=(lhs, lhs_rows))
        options = {
            "group_sizes": group_sizes,
            "alpha": alpha,
            "bias_scale": bias_scale,
            "row_scale": row_scale,
            "lhs_rows": index["lhs_rows"],
            "group_offset_tensor": offset_tensor,
            "group_offset": group_offset,
            "transpose_rhs": transpose_rhs,
            "alpha_value": alpha_value,
            "tail": tail_code,
            "precision": precision_code,
            "packed_rhs": _packed.address(
                "gmm", "packed_rhs", packed_rhs, {"lhs": lhs, "rhs": rhs, **others}
            ),
        }
        if activation is not None:
            given = {"out": out, "c": c, "beta": beta, "accumulate": accumulate or None, "lhs.scales": scales or None}
            for name, value in given.items():
                if value is not None:
                    raise wrong_value("gmm", name, "given", "none because there is an activation")
            fn = activation_of("gmm", activation, interleaved, clamp)
            watched = _arguments.wants_gradients(lhs, rhs, *others.values())
            rhs, bias = _lists(rhs, bias)
            out, product = activated_product(
                fn,
                preactivation or watched,
                lhs=lhs,
                rhs=rhs,
                bias=bias,
                slot_row=index["slot_row"],
                out_dtype=out_dtype,
                **options,
            )
            return (out, product) if preactivation else out
        options["fast_accumulation"] = fast_accumulation
        if out is not None or c is not None or beta is not None or accumulate:
            options |= _scaled.as_lists(scales)
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
        options |= {"slot_row": index["slot_row"], "out_dtype": out_dtype}
        return call(lhs=lhs, rhs=rhs, bias=bias, **options, **scales)
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
            "lhs_rows": rows_of(lhs_rows),
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
    lhs_rows: Tensor | Routing | None = None,
    rhs_rows: Tensor | Routing | None = None,
) -> Out:
    """out[i] = alpha_i * (lhs[rows of group i]^T @ rhs[rows of group i]) + beta_i * c[i]: the weight gradient of gmm.

    lhs [m, k], rhs [m, n]; the result is [g, k, n], where g is num_groups (default: every group of group_sizes from
    group_offset on). lhs, rhs and alpha are differentiable. `out`, one tensor or a list of g matrices (one main_grad for
    each expert, f32 if you like), is written in place, or with accumulate added to, and is not differentiable.

    lhs_rows and rhs_rows take the rows of an operand by index, as in gmm.

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
        index = indices("tgmm", lhs=(lhs, lhs_rows), rhs=(rhs, rhs_rows))
        precision_code = _options.precision("tgmm", precision)
        if out is None:
            if c is not None or beta is not None or accumulate:
                expected = "a tensor, because accumulate, beta or c is given"
                raise wrong_value("tgmm", "out", None, expected)
            groups = local_groups("tgmm", group_sizes, group_offset, offset_tensor, num_groups)
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
                **index,
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
            lhs_rows=index["lhs_rows"],
            rhs_rows=index["rhs_rows"],
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
            "lhs_rows": rows_of(lhs_rows),
            "rhs_rows": rows_of(rhs_rows),
        }
        raise translated("tgmm", error, tensors, out_dtype) from None


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
