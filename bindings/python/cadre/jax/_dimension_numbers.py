"""The dimension numbers of ragged_dot_general: checked as lax checks them, and the mode that they choose."""

import enum

from jax import lax


class Mode(enum.Enum):
    """What the ragged dim of lhs is."""

    ROWS = enum.auto()  # [b..., m..., k...] x [g, b..., k..., n...] -> [b..., m..., n...]
    CONTRACTING = enum.auto()  # [b..., m..., k...] x [b..., k..., n...] -> [g, b..., m..., n...]
    BATCH = enum.auto()  # [b..., m..., k...] x [b..., k..., n...] -> [b..., m..., n...]


def check(op, lhs, rhs, numbers):
    """The mode; TypeError for numbers that don't describe a product of these operands."""
    if not isinstance(numbers, lax.RaggedDotDimensionNumbers):
        raise TypeError(
            f"{op}: ragged_dot_dimension_numbers is a {type(numbers).__name__}, "
            "expected a lax.RaggedDotDimensionNumbers"
        )
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    _check_dims(op, "lhs", lhs, contracting=lhs_contract, batch=lhs_batch)
    _check_dims(op, "rhs", rhs, contracting=rhs_contract, batch=rhs_batch)
    _check_pair(op, "batch", lhs, lhs_batch, rhs, rhs_batch)
    _check_pair(op, "contracting", lhs, lhs_contract, rhs, rhs_contract)

    (ragged,) = _one(op, "lhs_ragged_dimensions", numbers.lhs_ragged_dimensions)
    _check_range(op, "lhs_ragged_dimensions", ragged, "lhs", lhs)
    group = numbers.rhs_group_dimensions
    if ragged in lhs_batch or ragged in lhs_contract:
        if group:
            raise TypeError(
                f"{op}: rhs_group_dimensions = {group}, expected none because the ragged dim is "
                f"{'a batch' if ragged in lhs_batch else 'a contracting'} one"
            )
        return Mode.BATCH if ragged in lhs_batch else Mode.CONTRACTING
    (group,) = _one(op, "rhs_group_dimensions", group)
    _check_range(op, "rhs_group_dimensions", group, "rhs", rhs)
    if group in rhs_batch or group in rhs_contract:
        raise TypeError(
            f"{op}: rhs_group_dimensions = {(group,)}, expected none of the batch dims {rhs_batch} "
            f"and contracting dims {rhs_contract}"
        )
    return Mode.ROWS


def _one(op, name, dims):
    if len(dims) != 1:
        raise TypeError(f"{op}: {name} = {dims}, expected exactly one")
    return dims


def _check_range(op, name, dim, operand_name, operand):
    if not 0 <= dim < operand.ndim:
        raise TypeError(
            f"{op}: {name} has {dim}, expected 0 to {operand.ndim - 1}, the dims of {operand_name}"
        )


def _check_dims(op, name, operand, contracting, batch):
    dims = (*contracting, *batch)
    for dim in dims:
        _check_range(op, "dot_dimension_numbers", dim, name, operand)
    if len(set(dims)) != len(dims):
        raise TypeError(
            f"{op}: {name}'s contracting dims = {contracting} and batch dims = {batch}, "
            "expected each dim at most once"
        )


def _check_pair(op, name, lhs, lhs_dims, rhs, rhs_dims):
    left = tuple(lhs.shape[dim] for dim in lhs_dims)
    right = tuple(rhs.shape[dim] for dim in rhs_dims)
    if left != right:
        raise TypeError(f"{op}: rhs's {name} dims have sizes {right}, expected lhs's = {left}")
