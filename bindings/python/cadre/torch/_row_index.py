"""Rows of an operand by index: what gmm and tgmm take as lhs_rows and rhs_rows."""

import torch

from .._errors import wrong_type, wrong_value
from . import _arguments
from ._routing import Routing


def rows_of(index):
    """The rows that an index takes: of a Routing the tokens of its rows."""
    return index.source_row if isinstance(index, Routing) else index


def indices(op, **operands):
    """{name_rows: tensor or None, slot_row: the rows of each row of an operand} from {name: (operand, index into its rows)}.

    An index is a tensor, or the Routing that it comes from: a gradient of the operand needs its slot_row.
    """
    made, routing = {"slot_row": None}, None
    for name, (operand, index) in operands.items():
        argument = f"{name}_rows"
        if isinstance(index, Routing):
            if routing is not None and routing is not index:
                raise wrong_value(op, argument, "another Routing", "the one that the other operand has")
            routing = index
            if index.slot_row.shape[0] != operand.shape[0]:
                expected = f"{name}.shape[0] = {operand.shape[0]}"
                raise wrong_value(op, f"{argument}.slot_row.shape[0]", index.slot_row.shape[0], expected)
            made |= {argument: index.source_row, "slot_row": index.slot_row}
            continue
        if index is not None and not isinstance(index, torch.Tensor):
            raise wrong_type(op, argument, index, "a torch.Tensor or what route() returned")
        if index is not None and _arguments.wants_gradients(operand):
            expected = f"what route() returned, because {name} wants a gradient through it"
            raise wrong_value(op, argument, "a tensor", expected)
        made[argument] = index
    return made
