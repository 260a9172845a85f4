"""Quantised operands on their way to the operators: a ScaledTensor becomes its data and the operators' arguments for scales."""

import torch

from .. import _scaled
from .._errors import wrong_type, wrong_value
from .._scaled import ScaledTensor, data_of
from . import _arguments, _dtypes

_NOT_DIFFERENTIABLE = (
    "products of FP8 data are not differentiable (GroupedLinear and GroupedMLP with a recipe are)"
)


def operands(op, lhs, rhs, *, columns=False):
    """(lhs's data, rhs's data, {argument: value}) for gmm's operators, or with `columns` for tgmm's, whose operands may be
    column-wise copies. {} where neither is quantised."""
    if not isinstance(lhs, ScaledTensor) and not isinstance(rhs, ScaledTensor):
        return lhs, rhs, {}
    data, arguments = [], {}
    for name, value in (("lhs", lhs), ("rhs", rhs)):
        data.append(data_of(op, name, value, columns=columns))
        if isinstance(value, ScaledTensor):
            arguments[f"{name}_scales"] = checked(op, f"{name}.scales", value.scales)
            arguments[f"{name}_mode"] = _scaled.MODES[value.mode]
            if columns:
                arguments[f"{name}_columns"] = value.columns
            refuse_gradients(op, {name: data[-1], f"{name}.scales": value.scales})
    return *data, arguments


def checked(op, argument, scales):
    """The scales, after a look at their types: one tensor or a list of them."""
    listed = isinstance(scales, (list, tuple))
    for i, each in enumerate(scales if listed else (scales,)):
        name = f"{argument}[{i}]" if listed else argument
        if not isinstance(each, torch.Tensor):
            raise wrong_type(op, name, each, "a torch.Tensor")
        if each.dtype not in _dtypes.SCALES:
            raise _dtypes.wrong_dtype(op, name, each.dtype, _dtypes.SCALES)
    if listed and not scales:
        raise wrong_value(op, f"len({argument})", 0, "at least 1")
    return scales


def listed(stacks):
    """One ScaledTensor of a list out of stacks of one matrix each."""
    mode = stacks[0].mode
    scales = [each.scales if mode == "tensor" else each.scales[0] for each in stacks]
    return ScaledTensor([each.data[0] for each in stacks], scales, mode)


def as_lists(arguments):
    """The same arguments for operators that take a list of the weights' scales."""
    scales = arguments.get("rhs_scales")
    if scales is None or isinstance(scales, list):
        return arguments
    return {**arguments, "rhs_scales": list(scales) if isinstance(scales, tuple) else [scales]}


def of_groups(grouped, role):
    """grouped_gemm's arguments for the scales of a GroupedTensor in that role; {} where it has none."""
    if grouped.mode is None:
        return {}
    scales = grouped.scales
    listed = list(scales) if isinstance(scales, (list, tuple)) else [scales]
    return {f"{role}_scales": listed, f"{role}_mode": _scaled.MODES[grouped.mode]}


def refuse_gradients(op, tensors):
    """FP8 data have no gradient, and nothing else is differentiated beside them."""
    _arguments.refuse_gradients(op, tensors, _NOT_DIFFERENTIABLE)


def tensors_of(scaled):
    """The tensors of a ScaledTensor, of which None has two that are missing."""
    if scaled is None:
        return [None, None]
    return [each for part in (scaled.data, scaled.scales) for each in (part if isinstance(part, list) else [part])]


def rebuilt(scaled, tensors):
    """A ScaledTensor of the form of `scaled` over its tensors."""
    rest = iter(tensors)
    data, scales = (
        [next(rest) for _ in part] if isinstance(part, list) else next(rest)
        for part in (scaled.data, scaled.scales)
    )
    return ScaledTensor(data, scales, scaled.mode, columns=scaled.columns)
