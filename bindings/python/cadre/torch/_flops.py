"""How many floating-point operations a call counts as, for torch.utils.flop_counter.

A product of m x k with k x n is 2 m k n. Every row of the operands counts, those behind the last group, too: sizes on a
device are not read. The ops around the products count nothing, as elementwise ops do in torch.
"""

import torch
from torch.utils.flop_counter import register_flop_formula

from .. import _structs
from . import _operators


def _formula(*operators):
    """Registers function(arguments by name) for these operators."""

    def register(function):
        for operator in operators:

            def counted(*args, out_val=None, _operator=operator, **options):
                names = dict(zip(_operator.names, args))
                return function(_operator.Arguments(**names, **options))

            packet = operator.overload._overloadpacket
            register_flop_formula(packet, get_raw=True)(counted)
        return function

    return register


def _matrix(tensors):
    """The shape of one expert's matrix, of a stack or a list."""
    return (tensors if isinstance(tensors, torch.Tensor) else tensors[0]).shape[-2:]


@_formula(
    _operators.gmm,
    _operators.gmm.plain,
    _operators.gmm_list,
    _operators.gmm_out,
    _operators.gmm_activated,
)
def _gmm(a):
    rows, columns = _matrix(a.rhs)
    return 2 * _rows_of(a, "lhs") * rows * columns


def _rows_of(a, operand, dim=0):
    """Rows of a product: an operand's, or those that an index takes."""
    index = getattr(a, f"{operand}_rows", None)
    return getattr(a, operand).shape[dim] if index is None else index.shape[0]


@_formula(_operators.tgmm, _operators.tgmm.plain, _operators.tgmm_out)
def _tgmm(a):
    # A column-wise copy of FP8 data has its k (or n) first.
    k = a.lhs.shape[0 if getattr(a, "lhs_columns", False) else 1]
    n = a.rhs.shape[0 if getattr(a, "rhs_columns", False) else 1]
    copied = getattr(a, "lhs_columns", False)
    return 2 * _rows_of(a, "lhs", 1 if copied else 0) * k * n


def _shapes(form, rows, cols):
    """(rows, cols) of every group of a grouped operand; the bound where the host can't know."""
    placement, groups, *dims = form
    if placement == _structs.STACKED:
        return [(dims[0], dims[1])] * groups
    if placement == _structs.LIST:
        return list(zip(dims[0::2], dims[1::2]))
    extents = []
    for uniform, bound, values in ((dims[0], dims[2], rows), (dims[1], dims[3], cols)):
        if values is None:
            extents.append([uniform] * groups)
        elif values.device.type == "cpu" and not torch._subclasses.fake_tensor.is_fake(values):
            extents.append(values.tolist())
        else:
            extents.append([bound] * groups)
    return list(zip(*extents))


@_formula(_operators.grouped_gemm, _operators.grouped_gemm_out)
def _grouped_gemm(a):
    total = 0
    pairs = zip(_shapes(a.a_form, a.a_rows, a.a_cols), _shapes(a.b_form, a.b_rows, a.b_cols))
    for (m, k), (b_rows, b_cols) in pairs:
        total += 2 * m * k * (b_rows if a.transb else b_cols)
    return total


def _layer_products(a):
    """Operations of the two products of a layer's forward pass."""
    rows = a.source_row.shape[0]
    return [2 * rows * each[0] * each[1] for each in (_matrix(a.w13), _matrix(a.w2))]


@_formula(_operators.moe_mlp)
def _moe_mlp(a):
    return sum(_layer_products(a))


@_formula(_operators.moe_mlp_grad)
def _moe_mlp_grad(a):
    w13, w2 = _layer_products(a)
    x, weights, dw13, dw2, bias13, _ = a.wanted
    through_w2 = x or weights or dw13 or bias13  # what lies before w2 needs dout @ w2
    return w2 * (through_w2 + dw2) + w13 * (x + dw13)


@_formula(_operators.moe_mlp_grad_into)
def _moe_mlp_grad_into(a):
    w13, w2 = _layer_products(a)
    through_w2 = bool(a.dx or a.dweights or a.dw13 or a.dbias13)
    return w2 * (through_w2 + bool(a.dw2)) + w13 * (bool(a.dx) + bool(a.dw13))
