"""The operands of GroupedLinear's three products: the tensors themselves, or with a recipe their FP8."""

import torch

from . import _arguments, _scaled
from ._errors import renamed
from ._linear_parameters import one_or_list
from ._quantize import quantize
from ._scaled import ScaledTensor

_OP = "GroupedLinear"


class Products:
    """A pass of `module`. What forward keeps is what backward is given."""

    def __init__(self, module):
        self.module = module

    def forward(self, x, weights, splits, needs):
        """(gmm's lhs, gmm's rhs, tensors to keep). needs: whether x wants a gradient, and whether the weights do."""
        x, weights = _arguments.autocast(x, list(weights))
        kept = [x if needs[1] else None, *weights]
        return x, one_or_list(weights, self.module.single_grouped_weight), kept

    def backward(self, dy, splits, kept, needs):
        """((gmm's lhs, rhs, transpose_rhs), (tgmm's lhs, rhs)): of the gradients of x and of the weights."""
        x, *weights = kept
        return (dy, one_or_list(weights, self.module.single_grouped_weight), False), (dy, x)


class ScaledProducts(Products):
    """Keeps FP8 alone: the column-wise copy of x, and the weights as the gradient of x reads them."""

    def __init__(self, module, is_first_microbatch):
        super().__init__(module)
        self.is_first_microbatch = is_first_microbatch

    def forward(self, x, weights, splits, needs):
        x, _ = _arguments.autocast(x, [])
        made = self.module.quantised_weights(self.is_first_microbatch, columns=needs[0])
        self.weights, self.transpose_rhs = made.for_dx(_OP, "weight") if needs[0] else (None, False)
        rows, columns = self._quantised("inp", x, splits, torch.float8_e4m3fn, (True, needs[1]))
        return rows, made.rows, [*_scaled.tensors_of(columns), *_scaled.tensors_of(self.weights)]

    def backward(self, dy, splits, kept, needs):
        recipe = self.module.recipe
        rows, columns = self._quantised("grad of y", dy, splits, recipe.gradients, needs)
        x = ScaledTensor(*kept[:2], recipe.mode, columns=True)
        # Autograd has looked at what was kept; the lists of a ScaledTensor are made of it again.
        weights = _scaled.rebuilt(self.weights, kept[2:]) if needs[0] else None
        return (rows, weights, self.transpose_rhs), (columns, x)

    def _quantised(self, name, x, splits, dtype, wanted):
        """(rows, columns), None for what isn't wanted."""
        if not any(wanted):
            return None, None
        try:
            made = quantize(
                x, self.module.recipe.mode, splits, dtype=dtype, rows=wanted[0], columns=wanted[1]
            )
        except (ValueError, TypeError) as error:
            words = {"quantize": _OP, "x": name, "group_sizes": "m_splits"}
            raise renamed(error, words) from None
        return made if all(wanted) else (made, None) if wanted[0] else (None, made)
