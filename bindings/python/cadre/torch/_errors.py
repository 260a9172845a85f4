"""Turns what a failed operator says into TypeError, ValueError, ... Only a failed call pays for these checks."""

import re

import torch

from .._errors import exception_for, renamed, wrong_type  # noqa: F401, others take it from here
from . import _dtypes

_CODED = re.compile(r"\[cadre (\d)\] (.*)", re.DOTALL)
_DTYPE_NAME = re.compile(rf"\b({'|'.join(_dtypes.NAMES)})\b")

#: Arguments without a default: None is no way to leave them out.
_REQUIRED = ("lhs", "rhs", "a", "b", "dy", "group_sizes", "logits", "expert_ids", "x", "y")
#: Arguments of the ops that may be one tensor or a list.
_MAY_BE_LISTS = ("a", "b", "c", "rhs", "bias", "out", "w13", "w2", "bias13", "bias2")


#: What an argument may be, if not one of the float types.
_KNOWN = {
    **dict.fromkeys(("group_sizes", "offs", "expert_ids", "slot_row"), _dtypes.INDICES),
    **dict.fromkeys(("lhs_rows", "rhs_rows"), (torch.int32, torch.int64)),
    "x": tuple(_dtypes.CODES),
    **dict.fromkeys(("lhs", "rhs", "a", "b", "mat_a", "mat_b", "w13", "w2"), _dtypes.OPERANDS),
    **dict.fromkeys(("c", "out"), (*_dtypes.FLOATS, torch.int32)),
}


def translated(op, error, tensors, out_dtype=None):
    """The exception to raise for `error`. `tensors`: argument name -> what was given as a tensor or list of tensors."""
    if str(error).startswith(f"{op}: "):
        return error  # made by this package
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        return wrong_type(op, "out_dtype", out_dtype, "a torch.dtype")
    for argument, value in tensors.items():
        values = {argument: value}
        if argument in _MAY_BE_LISTS and isinstance(value, (list, tuple)):
            values = {f"{argument}[{i}]": item for i, item in enumerate(value)}
        for name, item in values.items():
            if item is None and name == argument and argument not in _REQUIRED:
                continue
            if not isinstance(item, torch.Tensor):
                return wrong_type(op, name, item, "a torch.Tensor")
            known = _KNOWN.get(argument, _dtypes.FLOATS)
            if item.dtype not in known:
                return _dtypes.wrong_dtype(op, name, item.dtype, known)
            if item.layout != torch.strided:
                return wrong_type(
                    op, name, item, f"a strided tensor, not one of layout {item.layout}"
                )
    coded = _CODED.search(str(error))
    if coded:
        # What libtorch may append about its own stack is no part of the message.
        message = coded.group(2).split("\nException raised from")[0]
        message = _DTYPE_NAME.sub(lambda name: str(_dtypes.NAMES[name.group()]), message)
        return exception_for(int(coded.group(1)), message)
    return error
