"""bias_grad on torch tensors: the gradients of gmm's bias and bias_scale."""

from __future__ import annotations

from typing import Any, overload

import torch

from .. import _options
from .._errors import wrong_type, wrong_value
from . import (
    _arguments,
    _autograd,  # noqa: F401 (completes the operators)
    _operators,
)
from ._errors import translated
from ._types import Out, Sizes, Tensor, Tensors


def local_groups(op, group_sizes, group_offset, offset_tensor, num_groups):
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
            groups = local_groups(
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
