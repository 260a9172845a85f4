"""transformer_engine.pytorch's moe_permute, moe_permute_with_probs and moe_unpermute, and its grouped products
(_general_grouped_gemm.py), over cadre, on any device.

What moe_permute returns beside the rows (row_id_map) is for moe_unpermute alone. In the mask form it is [tokens, experts], the
row of each choice or -1; the original packs the same into twice the width. Beyond the original: any float type, gradients of
any order. Not here: FP8 tensors, and rows padded for each expert, which nothing in cadre needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..._errors import wrong_type, wrong_value
from .. import _operators, _routing_autograd  # noqa: F401 (completes the operators)
from .._errors import renamed, translated
from ._general_grouped_gemm import general_grouped_gemm, general_grouped_gemm_for_grouped_tensor

__all__ = [
    "general_grouped_gemm",
    "general_grouped_gemm_for_grouped_tensor",
    "moe_permute",
    "moe_permute_with_probs",
    "moe_unpermute",
]

_MAP_TYPES = ("mask", "index")


def moe_permute(
    inp: Tensor,
    routing_map: Tensor,
    num_out_tokens: int,
    max_token_num: int = -1,
    map_type: Literal["mask", "index"] = "mask",
) -> tuple[Tensor, Tensor]:
    """(rows, row_id_map): the rows of inp [tokens, h] sorted by expert, num_out_tokens of them.

    routing_map: with map_type "mask" [tokens, experts], not 0 where a token goes to an expert; with "index" [tokens, top_k]
    expert ids, and num_out_tokens may be 0 for all rows. Choices behind num_out_tokens are dropped; rows behind the last
    choice are zero. max_token_num, a hint for the original's workspace, changes nothing.

    >>> from cadre.torch.compat import transformer_engine
    >>> tokens = torch.tensor([[1.0], [2.0]])
    >>> rows, row_id_map = transformer_engine.moe_permute(tokens, torch.tensor([[0, 1], [1, 1]]), num_out_tokens=3)
    >>> rows[:, 0]  # the second token at expert 0, then both at expert 1
    tensor([2., 1., 2.])
    """
    op = "moe_permute"
    _check(op, inp, routing_map, num_out_tokens, map_type)
    slot_row, source_row = _MAPS[map_type](routing_map, num_out_tokens)
    rows = _run(op, _operators.permute, {"x": "inp"}, x=inp, source_row=source_row, slot_row=slot_row)
    return rows, slot_row if map_type == "mask" else slot_row.t().flatten()


def moe_permute_with_probs(
    inp: Tensor,
    probs: Tensor,
    routing_map: Tensor,
    num_out_tokens: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, permuted_probs, row_id_map): as moe_permute with a mask, and probs [tokens, experts] of each row.

    >>> from cadre.torch.compat import transformer_engine
    >>> tokens, probs = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0, 1.0], [0.25, 0.75]])
    >>> rows, row_probs, row_id_map = transformer_engine.moe_permute_with_probs(tokens, probs, probs > 0, 3)
    >>> row_probs
    tensor([0.2500, 1.0000, 0.7500])
    """
    op = "moe_permute_with_probs"
    _check(op, inp, routing_map, num_out_tokens, "mask")
    if not isinstance(probs, torch.Tensor):
        raise wrong_type(op, "probs", probs, "a torch.Tensor")
    if probs.shape != routing_map.shape:
        expected = f"routing_map.shape = {list(routing_map.shape)}"
        raise wrong_value(op, "probs.shape", list(probs.shape), expected)
    slot_row, source_row = _rows_of_mask(routing_map, num_out_tokens)
    where = {"source_row": source_row, "slot_row": slot_row}
    rows = _run(op, _operators.permute, {"x": "inp"}, x=inp, **where)
    # The gradient of a sum of ones: the weight of each row.
    ones = probs.new_ones((probs.shape[0], 1))
    words = {"weights": "probs"}
    (column,) = _run(
        op, _operators.combine_grad, words, dout=ones, weights=probs, dy_dtype=probs.dtype, **where
    )
    return rows, column.squeeze(1), slot_row


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: torch.Size | Sequence[int] | None = None,
    map_type: Literal["mask", "index"] = "mask",
    probs: Tensor | None = None,
    pad_offsets: Tensor | None = None,
) -> Tensor:
    """[tokens, h]: the sum of a token's rows of inp, each times its merging_probs [tokens, experts] (index: [tokens, top_k]).

    restore_shape is that of the tokens. probs is another name of merging_probs. Without merging_probs the index form gives
    every choice a row of its own, as the original does. Summed in f32, and rounded once.

    >>> from cadre.torch.compat import transformer_engine
    >>> rows, row_id_map = torch.tensor([[2.0], [1.0], [2.0]]), torch.tensor([[-1, 1], [0, 2]], dtype=torch.int32)
    >>> transformer_engine.moe_unpermute(rows, row_id_map, torch.tensor([[0.0, 1.0], [0.25, 0.75]]))
    tensor([[1.],
            [2.]])
    """
    op = "moe_unpermute"
    if pad_offsets is not None:
        raise wrong_value(op, "pad_offsets", "given", "None: rows are not padded here")
    if probs is not None:
        if merging_probs is not None:
            raise wrong_value(op, "probs", "given", "None, because merging_probs is given")
        merging_probs = probs
    for name, value in (("inp", inp), ("row_id_map", row_id_map)):
        if not isinstance(value, torch.Tensor):
            raise wrong_type(op, name, value, "a torch.Tensor")
    if map_type not in _MAP_TYPES:
        raise wrong_value(op, "map_type", repr(map_type), "'mask' or 'index'")
    slot_row = row_id_map
    if map_type == "index":
        tokens = row_id_map.shape[0] if merging_probs is None else merging_probs.shape[0]
        slot_row = row_id_map.view(-1, tokens).t()
    elif restore_shape is not None and tuple(restore_shape) != (slot_row.shape[0], inp.shape[-1]):
        expected = [slot_row.shape[0], inp.shape[-1]]
        raise wrong_value(op, "restore_shape", list(restore_shape), expected)
    return _run(
        op,
        _operators.combine,
        {"y": "inp", "weights": "merging_probs", "slot_row": "row_id_map"},
        y=inp,
        slot_row=slot_row,
        source_row=_source_row(slot_row, inp.shape[0]),
        weights=merging_probs,
    )


def _check(op, inp, routing_map, num_out_tokens, map_type):
    for name, value in (("inp", inp), ("routing_map", routing_map)):
        if not isinstance(value, torch.Tensor):
            raise wrong_type(op, name, value, "a torch.Tensor")
        if value.dim() != 2:
            raise wrong_value(op, f"{name}.shape", list(value.shape), "two dims")
    if map_type not in _MAP_TYPES:
        raise wrong_value(op, "map_type", repr(map_type), "'mask' or 'index'")
    if routing_map.shape[0] != inp.shape[0]:
        expected = f"inp.shape[0] = {inp.shape[0]}"
        raise wrong_value(op, "routing_map.shape[0]", routing_map.shape[0], expected)
    if routing_map.is_floating_point() and map_type == "index":
        raise TypeError(f"{op}: routing_map.dtype = {routing_map.dtype}, expected an integer type")
    if num_out_tokens < (map_type == "mask" and inp.shape[0] > 0):
        expected = "1 or more" if map_type == "mask" else "0 or more"
        raise wrong_value(op, "num_out_tokens", num_out_tokens, expected)


def _rows_of_mask(routing_map, num_rows):
    """(slot_row [tokens, experts], source_row [num_rows]): rows are numbered expert by expert, token by token."""
    chosen = routing_map.bool().t()
    rows = chosen.flatten().cumsum(0).view_as(chosen) - 1
    slot_row = torch.where(chosen & (rows < num_rows), rows, -1).t().to(torch.int32)
    return slot_row, _source_row(slot_row, num_rows)


def _rows_of_index(routing_map, num_rows):
    """The same for expert ids [tokens, top_k]; a stable sort, because nobody says how many experts there are."""
    order = routing_map.flatten().argsort(stable=True)
    rows = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    num_rows = num_rows or len(order)
    slot_row = torch.where(rows < num_rows, rows, -1).view_as(routing_map).to(torch.int32)
    return slot_row, _source_row(slot_row, num_rows)


_MAPS = {"mask": _rows_of_mask, "index": _rows_of_index}


def _source_row(slot_row, num_rows):
    """The token of each row, -1 for rows that no choice has; what was dropped is written behind the last row."""
    tokens = torch.arange(slot_row.shape[0], device=slot_row.device, dtype=torch.int32)
    places = torch.where(slot_row < 0, num_rows, slot_row).long().flatten()
    values = tokens.unsqueeze(1).expand_as(slot_row).flatten()
    filled = torch.full((num_rows + 1,), -1, device=slot_row.device, dtype=torch.int32)
    return filled.scatter_(0, places, values)[:num_rows]


def _run(op, operator, words, **arguments):
    """Calls an operator; its errors speak of `op`, and of its arguments as `words` do."""
    try:
        return operator.call(**arguments)
    except (RuntimeError, AttributeError, TypeError) as error:
        tensors = {name: arguments[name] for name in words}
        error = translated(operator.op, error, tensors)
        raise renamed(error, {operator.op: op, **words}) from None
