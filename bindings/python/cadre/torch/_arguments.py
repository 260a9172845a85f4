"""Arguments that come in several forms: sizes as a tensor or a list, scalars as numbers or tensors."""

import itertools
import operator

import torch
import torch.autograd.forward_ad as _forward_ad

from .._errors import wrong_type, wrong_value
from . import _dtypes


def sizes(op, argument, value):
    """Group sizes as a tensor: the one given, or an int64 tensor on the host from a list."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in _dtypes.INDICES:
            raise _dtypes.wrong_dtype(op, argument, value.dtype, _dtypes.INDICES)
        return value
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            if isinstance(item, (bool, float)) or not hasattr(item, "__index__"):
                raise wrong_type(op, f"{argument}[{i}]", item, "an int")
            if not -(2**63) <= operator.index(item) < 2**63:
                raise wrong_value(op, f"{argument}[{i}]", item, "an int of 64 bits")
        return torch.tensor(value, dtype=torch.int64)
    if hasattr(value, "__dlpack__"):
        return sizes(op, argument, torch.from_dlpack(value))
    raise wrong_type(op, argument, value, "a tensor or a list of ints")


def group_offset(op, value):
    """(tensor or None, int): a tensor is left where it is, so that no value of a device is read."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return None, value
    if isinstance(value, torch.Tensor):
        return value, 0
    if isinstance(value, (bool, float)):
        raise wrong_type(op, "group_offset", value, "an int or a tensor")
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(op, "group_offset", value, "an int or a tensor") from None
    if not -(2**63) <= number < 2**63:
        raise wrong_value(op, "group_offset", number, "an int of 64 bits")
    return None, number


def whole_number(op, argument, value):
    """An int from 0 on; a symbolic one, under torch.compile, as it is."""
    if isinstance(value, torch.SymInt):
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(op, argument, value, "an int")
    number = operator.index(value)
    if not 0 <= number < 2**63:
        raise wrong_value(op, argument, number, "0 or more, in 64 bits")
    return number


def scalars(op, argument, value, default):
    """alpha or beta as (number, None) or (default, tensor of f32 or f64)."""
    if value is None:
        return default, None
    if isinstance(value, torch.Tensor):
        if value.dtype not in (torch.float32, torch.float64):
            value = value.float()
        return default, value
    if isinstance(value, (int, float)):
        return float(value), None
    raise wrong_type(op, argument, value, "a number or a tensor of one number for each group")


def autocast(lhs, rhs):
    """lhs and rhs as torch's own products see them: cast to the autocast dtype where autocast is on."""
    if not torch._C._is_any_autocast_enabled():
        return lhs, rhs
    device = lhs.device.type
    if not torch.is_autocast_enabled(device):
        return lhs, rhs
    dtype = torch.get_autocast_dtype(device)

    def cast(tensor):
        eligible = (
            tensor.is_floating_point()
            and tensor.dtype not in (dtype, torch.float64)
            and tensor.element_size() > 1
        )
        return tensor.to(dtype) if eligible else tensor

    if isinstance(rhs, (list, tuple)):
        return cast(lhs), [cast(each) for each in rhs]
    return cast(lhs), cast(rhs)


def one_or_list(op, argument, value, rank):
    """A list for the operators, whose element is a stack where it is of a higher rank than `rank`, that of one matrix.

    So a list of one stack must be refused here, and one matrix without a list too; the operators check longer lists.
    """
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        if len(value) == 1 and isinstance(value[0], torch.Tensor) and value[0].dim() != rank:
            raise wrong_rank(op, f"{argument}[0]", value[0], rank)
        return list(value)
    if isinstance(value, torch.Tensor) and value.dim() != rank + 1:
        raise wrong_rank(op, argument, value, rank + 1)
    return [value]


def wrong_rank(op, argument, tensor, expected):
    """The error for a tensor of another rank, with its shape."""
    received = f"{tensor.dim()} (shape {list(tensor.shape)})"
    return wrong_value(op, f"{argument}.rank", received, expected)


def outputs(op, argument, value, rank=None):
    """A list of output tensors, none of which autograd watches; with `rank` they are checked as by one_or_list."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    for i, each in enumerate(values):
        name = f"{argument}[{i}]" if isinstance(value, (list, tuple)) else argument
        if not isinstance(each, torch.Tensor):
            raise wrong_type(op, name, each, "a torch.Tensor")
        if each.requires_grad:
            raise wrong_value(
                op, f"{name}.requires_grad", True, "False: write into a detached buffer"
            )
    return values if rank is None else one_or_list(op, argument, value, rank)


_WRITES = "calls that write into out or add c are not differentiable"


def refuse_gradients(op, tensors, reason=_WRITES):
    """Calls that write into `out` are not differentiable; says so before any work, as torch's out= does."""
    forward = _forward_ad._current_level >= 0
    if not torch.is_grad_enabled() and not forward:
        return
    for name, value in tensors.items():
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(each, torch.Tensor):
                continue
            if forward and _forward_ad.unpack_dual(each).tangent is not None:
                raise wrong_value(op, f"{name}'s tangent", "given", f"none: {reason}")
            if torch.is_grad_enabled() and each.requires_grad:
                expected = f"False: {reason} (use torch.no_grad())"
                raise wrong_value(op, f"{name}.requires_grad", True, expected)


def wants_gradients(*values):
    """Whether autograd watches a tensor among these values and lists of them."""
    if not torch.is_grad_enabled():
        return False
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    return any(
        isinstance(each, torch.Tensor) and each.requires_grad
        for each in itertools.chain.from_iterable(lists)
    )
