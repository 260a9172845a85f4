"""Operands of Transformer Engine's grouped products as GroupedTensors: lists are wrapped, FP8 rows become one matrix."""

from __future__ import annotations

import torch

from ..._errors import wrong_type, wrong_value
from ..._scaled import BLOCKS, COLUMN_ALIGNMENT, MODES
from .._grouped_tensor import GroupedTensor
from .._scaled import ScaledTensor


def weights(op, name, value):
    """A stack or a list of matrices."""
    scaled = _are_scaled(op, name, value)
    if not scaled:
        return value if isinstance(value, GroupedTensor) else GroupedTensor.list(value)
    return GroupedTensor.list([each.data for each in value]).quantised([each.scales for each in value], scaled)


def rows(op, name, value, splits, *, joined):
    """Rows in groups. Those in FP8 become one matrix, with `joined` others do too; splits: their numbers, or None."""
    scaled = _are_scaled(op, name, value)
    if isinstance(value, GroupedTensor):
        return value
    if not scaled:
        grouped = GroupedTensor.list(value)
        if not joined:
            return grouped
        whole = adjacent(value)
        return GroupedTensor.of_rows(torch.cat(value) if whole is None else whole, _heights(value))
    copies = [each.columns for each in value]
    if any(copies) != all(copies):
        i = copies.index(not copies[0])
        raise wrong_value(op, f"{name}[{i}].columns", copies[i], f"{name}[0].columns = {copies[0]}")
    if not copies[0]:
        return _scaled_rows(value, scaled)
    if splits is None:
        raise wrong_value(op, "m_splits", None, f"the rows of each group, because {name} holds column-wise copies")
    if len(splits) != len(value):
        raise wrong_value(op, "len(m_splits)", len(splits), f"len({name}) = {len(value)}")
    return _scaled_columns(op, name, value, scaled, splits)


def adjacent(tensors):
    """One matrix over matrices that follow each other in memory, as torch.split leaves them; else None."""
    first, offset = tensors[0], tensors[0].storage_offset()
    for tensor in tensors:
        alike = (tensor.dtype, tensor.shape[1:]) == (first.dtype, first.shape[1:]) and tensor.is_contiguous()
        storage = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not alike or not storage or tensor.storage_offset() != offset:
            return None
        offset += tensor.numel()
    return first.as_strided((sum(_heights(tensors)), first.shape[1]), (first.shape[1], 1))


def _heights(tensors):
    return [tensor.shape[0] for tensor in tensors]


def _are_scaled(op, name, value):
    """The mode of a list of ScaledTensors; None for a GroupedTensor and for tensors, which GroupedTensor.list checks."""
    if isinstance(value, GroupedTensor):
        return None
    if not isinstance(value, (list, tuple)):
        raise wrong_type(op, name, value, "a list of tensors or ScaledTensors, or a GroupedTensor")
    if not any(isinstance(each, ScaledTensor) for each in value):
        return None
    for i, each in enumerate(value):
        if not isinstance(each, ScaledTensor):
            raise wrong_type(op, f"{name}[{i}]", each, "a ScaledTensor, because others are")
        if each.mode != value[0].mode:
            raise wrong_value(op, f"{name}[{i}].mode", repr(each.mode), f"{name}[0].mode = {value[0].mode!r}")
    return value[0].mode


def _scaled_rows(scaled, mode):
    heights = _heights([each.data for each in scaled])
    scales = [each.scales for each in scaled]
    if mode == "tensor":
        # Each group has a scale of its own, which is what `row` says of its rows.
        scales = [scale.expand(height) for scale, height in zip(scales, heights, strict=True)]
    data = torch.cat([each.data for each in scaled])
    return GroupedTensor.of_rows(data, heights).quantised(torch.cat(scales), "row" if mode == "tensor" else mode)


def _scaled_columns(op, name, scaled, mode, splits):
    """Copies of one group each, side by side: what one call of quantize makes of all groups."""
    data, scales = [], []
    block = BLOCKS.get(MODES[mode])
    for i, (each, size) in enumerate(zip(scaled, splits, strict=True)):
        width = -(-size // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
        if each.data.shape[1] < width:
            expected = f"{width} or more for m_splits[{i}] = {size}"
            raise wrong_value(op, f"{name}[{i}].data.shape[1]", each.data.shape[1], expected)
        data.append(each.data[:, :width])
        if mode == "tensor":
            scales.append(each.scales.expand(1, each.data.shape[0]))
        else:
            scales.append(each.scales if block is None else each.scales[: -(-size // block)])
    mode = "row" if mode == "tensor" else mode
    columns = ScaledTensor(torch.cat(data, 1), torch.cat(scales), mode, columns=True)
    return GroupedTensor.of_columns(columns, splits)
