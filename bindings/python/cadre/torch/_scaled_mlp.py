"""The experts of a layer in FP8: moe_mlp and GroupedMLP with a recipe, composed of quantize, gmm and tgmm.

A token's weight multiplies its activated row, before that is quantised, instead of the row of the result. So the copies of
one quantisation serve the second product and its weights' gradient, and dout needs no second one without the weight.

Kept for backward: x, whose copy by expert would be top_k times as large; the pre-activation and the activated rows, in FP8;
the routing. Gradients of gradients are not there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .. import _structs
from .._errors import wrong_value
from . import _arguments, _mlp_gradients, _scaled
from ._activation import Activation
from ._functional import gmm, tgmm
from ._operators import (
    bias_grad,
    bias_scale_grad,
    combine,
    combine_grad,
    permute,
    weighted_activate_grad,
)
from ._quantize import dequantize, quantize
from ._recipes import Recipe, as_weights, quantise_weights

_OP = "moe_mlp"
#: How the pre-activation is kept, whatever the recipe: the finest scales that any type of gradient can read.
_PREACT_MODE = "block_128"


class Layer(NamedTuple):
    """What a pass is told beside its tensors."""

    recipe: Recipe
    activation: Activation
    weights_on_input: bool
    quantised: Callable  #: quantised(columns=) -> [Weights of w13, Weights of w2]
    weight_gradients: Callable  #: weight_gradients(Products) -> what autograd is given for the weights
    num_w13: int = 1  #: matrices of w13 among those that have gradients
    transposed: bool = False
    group_offset: Any = 0
    out_dtype: torch.dtype | None = None


class Products(NamedTuple):
    """The operands of the two weight gradients, quantised: pairs (of the outer dim, of the inner dim) for w13 and for w2."""

    pairs: tuple
    sizes: torch.Tensor
    group_offset: Any
    num_groups: int
    transposed: bool

    def operands(self, place):
        outer, inner = self.pairs[place]
        return (inner, outer) if self.transposed else (outer, inner)

    def new(self, dtypes):
        """Stacks of all experts; None where nothing is wanted."""
        where = {"group_offset": self.group_offset, "num_groups": self.num_groups}
        return [
            None if pair is None else tgmm(*self.operands(place), self.sizes, out_dtype=dtype, **where)
            for place, (pair, dtype) in enumerate(zip(self.pairs, dtypes, strict=True))
        ]


class WeightGradients(_mlp_gradients.WeightGradients):
    """Of GroupedMLP."""

    def __init__(self, module, products, is_first_microbatch):
        super().__init__(module, is_first_microbatch)
        self.products = products

    def read_later(self):
        return [each.data for pair in self.products.pairs for each in pair] + [self.products.sizes]

    def into(self, targets, beta):
        for place, target in enumerate(targets):
            tgmm(*self.products.operands(place), self.products.sizes, out=target, beta=beta)


@torch.compiler.disable  # weights are quantised outside of any graph
def run(layer, x, routing, weights, matrices, biases, *, shared=None, residual=None):
    """matrices: the parameters that have gradients, w13's and then w2's, each one stack or a list; biases: [] or both."""
    bias13, bias2 = (_stacked(each) for each in (biases or (None, None)))
    x, _ = _arguments.autocast(x, [])
    return _Pass.apply(layer, *routing, x, weights, shared, residual, bias13, bias2, *matrices)


def stateless(recipe, fn, w13, w2, *, weights_on_input, transposed, group_offset, out_dtype):
    """(layer, matrices, how many experts they are) of moe_mlp's w13 and w2: tensors, lists, or FP8 (a ScaledTensor, or its two copies)."""
    given = [as_weights(value) for value in (w13, w2)]
    for name, made in zip(("w13", "w2"), given, strict=True):
        if made:
            _scaled.refuse_gradients(_OP, {name: made.rows.data, f"{name}.scales": made.rows.scales})
        if made and made.rows.mode != recipe.mode:
            raise wrong_value(_OP, f"{name}.mode", repr(made.rows.mode), f"{recipe.mode!r}, the recipe")
    if any(given) and transposed:
        raise wrong_value(_OP, "transposed", True, "False, because the weights are quantised along their last dim")
    lists = [
        [] if made else _arguments.one_or_list(_OP, name, value, 2)
        for made, name, value in zip(given, ("w13", "w2"), (w13, w2), strict=True)
    ]
    def quantised(*, columns):
        return [
            made or quantise_weights(recipe, tensors, columns=columns, transposed=transposed)
            for made, tensors in zip(given, lists, strict=True)
        ]

    def gradients(products):
        dtypes = [each[0].dtype if each else None for each in lists]
        made = []
        for stack, tensors in zip(products.new(dtypes), lists, strict=True):
            whole = len(tensors) == 1 and tensors[0].dim() == 3
            made += [stack] if whole else [None] * len(tensors) if stack is None else list(stack.unbind(0))
        return made

    layer = Layer(
        recipe=recipe,
        activation=fn,
        weights_on_input=weights_on_input,
        quantised=quantised,
        weight_gradients=gradients,
        num_w13=len(lists[0]),
        transposed=transposed,
        group_offset=group_offset,
        out_dtype=out_dtype,
    )
    tensors = given[0].rows.data if given[0] else lists[0]
    num_local = tensors[0].shape[0] if len(tensors) == 1 and tensors[0].dim() == 3 else len(tensors)
    return layer, [each for part in lists for each in part], num_local


def _stacked(bias):
    if isinstance(bias, (list, tuple)):
        return torch.stack(list(bias))
    return bias


class _Needs(NamedTuple):
    """Which inputs want a gradient."""

    x: bool
    weights: bool
    shared: bool
    residual: bool
    bias13: bool
    bias2: bool
    w13: bool
    w2: bool

    @property
    def d_preact(self):
        return self.x or self.weights or self.bias13 or self.w13


def _needs(flags, num_w13):
    """From autograd's flags, of the inputs from x on; the first `num_w13` matrices are w13's."""
    own, matrices = flags[:6], flags[6:]
    return _Needs(*own, any(matrices[:num_w13]), any(matrices[num_w13:]))


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, sizes, source_row, slot_row, x, weights, shared, residual, bias13, bias2, *matrices):
        needs = ctx.needs = _needs(ctx.needs_input_grad[4:], layer.num_w13)
        mode, where = layer.recipe.mode, {"group_offset": layer.group_offset}
        w13, w2 = layer.quantised(columns=needs.d_preact)
        of_rows = _of_rows(weights, source_row, slot_row)
        of_input, of_activated = (of_rows, None) if layer.weights_on_input else (None, of_rows)
        rows = quantize(x, mode, sizes, source_row=source_row, row_scale=of_input)
        preact = gmm(rows, w13.rows, sizes, transpose_rhs=True, bias=bias13, out_dtype=x.dtype, **where)
        activated = quantize(
            preact, mode, sizes, activation=layer.activation, row_scale=of_activated, columns=needs.w2
        )
        rows, columns = activated if needs.w2 else (activated, None)
        options = {"bias": bias2, "bias_scale": None if bias2 is None else of_activated}
        y = gmm(rows, w2.rows, sizes, transpose_rhs=True, out_dtype=x.dtype, **options, **where)
        out = combine.call(
            y=y,
            slot_row=slot_row,
            source_row=source_row,
            shared=shared,
            residual=residual,
            out_dtype=layer.out_dtype or x.dtype,
        )
        kept_preact = ctx.for_dx = ctx.for_da = None
        if needs.d_preact:
            kept_preact = quantize(preact, _PREACT_MODE, sizes)
            ctx.for_da, ctx.turns2 = w2.for_dx(_OP, "w2")
            if needs.x or (needs.weights and layer.weights_on_input):
                ctx.for_dx, ctx.turns13 = w13.for_dx(_OP, "w13")
        ctx.layer, ctx.num_groups = layer, len(w13.rows.data)
        ctx.dtypes = [None if each is None else each.dtype for each in (shared, residual, bias13)]
        ctx.forms = columns, kept_preact, ctx.for_dx, ctx.for_da
        tensors = [_scaled.tensors_of(each) for each in ctx.forms]
        ctx.lengths = [len(each) for each in tensors]
        flat = [each for part in tensors for each in part]
        ctx.save_for_backward(sizes, source_row, slot_row, x, weights, of_rows, bias2, *flat)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        return _Backward(ctx, dout).gradients()


class _Backward:
    """One backward pass."""

    def __init__(self, ctx, dout):
        self.layer, self.needs, self.dout, self.ctx = ctx.layer, ctx.needs, dout, ctx
        saved = ctx.saved_tensors
        self.sizes, self.source_row, self.slot_row, self.x, self.weights, self.of_rows, self.bias2 = saved[:7]
        rest, parts = saved[7:], []
        for form, length in zip(ctx.forms, ctx.lengths, strict=True):
            parts.append(None if form is None else _scaled.rebuilt(form, rest[:length]))
            rest = rest[length:]
        self.activated, self.preact, self.for_dx, self.for_da = parts
        on_input = self.layer.weights_on_input
        self.of_input, self.of_activated = (self.of_rows, None) if on_input else (None, self.of_rows)
        self.where = {"group_offset": self.layer.group_offset}
        self.by_token = {"slot_row": self.slot_row, "source_row": self.source_row}

    def gradients(self):
        needs, layer, dout = self.needs, self.layer, self.dout
        dx = dweights = dbias13 = dbias2 = d_columns = None
        dy_rows, dy_columns = self._quantised(dout, needs.d_preact, needs.w2, source_row=self.source_row)
        if needs.bias2 or (self.bias2 is not None and needs.weights and not layer.weights_on_input):
            dy = permute.call(x=dout, source_row=self.source_row, slot_row=self.slot_row)
        if needs.bias2:
            dbias2 = self._bias_grad(dy, self.bias2.dtype, self.of_activated)
        if needs.d_preact:
            da = gmm(
                dy_rows, self.for_da, self.sizes, transpose_rhs=self.ctx.turns2, out_dtype=self.x.dtype, **self.where
            )
            d_preact, dot = self._through_activation(da)
            if needs.bias13:
                dbias13 = self._bias_grad(d_preact, self.ctx.dtypes[2])
            d_rows, d_columns = self._quantised(d_preact, self.for_dx is not None, needs.w13)
            if self.for_dx is not None:
                turns = self.ctx.turns13
                dx_rows = gmm(
                    d_rows, self.for_dx, self.sizes, transpose_rhs=turns, out_dtype=self.x.dtype, **self.where
                )
                dx, dweights = self._of_tokens(dx_rows)
            if needs.weights and not layer.weights_on_input:
                if self.bias2 is not None:
                    dot = dot + self._bias_dot(dy)
                dweights = _by_slot(dot, self.slot_row).to(self.weights.dtype)
        added = [
            dout.to(dtype) if wanted else None
            for dtype, wanted in zip(self.ctx.dtypes[:2], (needs.shared, needs.residual), strict=True)
        ]
        return None, None, None, None, dx, dweights, *added, dbias13, dbias2, *self._of_matrices(dy_columns, d_columns)

    def _quantised(self, x, rows, columns, **options):
        """(rows, columns) in the recipe's type of gradients, None for what isn't wanted."""
        if not rows and not columns:
            return None, None
        recipe = self.layer.recipe
        made = quantize(
            x, recipe.mode, self.sizes, dtype=recipe.gradients, rows=rows, columns=columns, **options
        )
        return made if rows and columns else (made, None) if rows else (None, made)

    def _through_activation(self, da):
        """(the gradient of the pre-activation, that of each activated row's factor)"""
        preact = dequantize(self.preact, self.sizes, out_dtype=self.x.dtype)
        activation, factor = self.layer.activation, self.of_activated
        if activation.kind == _structs.NO_ACTIVATION:
            dot = (preact.float() * da.float()).sum(1)
            return (da if factor is None else (da * factor[:, None]).to(da.dtype)), dot
        made = weighted_activate_grad.call(
            preact=preact,
            grad=da,
            row_scale=factor,
            activation=activation.kind,
            interleaved=activation.interleaved,
            clamp=[float(each) for each in activation.clamp],
            wants_row_dot=True,
        )
        return made

    def _of_tokens(self, dx_rows):
        """(dx, dweights of weights on the input)"""
        on_input = self.layer.weights_on_input and self.weights is not None
        dx = dweights = None
        if self.needs.x:
            weights = self.weights if on_input else None
            dx = combine.call(y=dx_rows, weights=weights, out_dtype=self.x.dtype, **self.by_token)
        if on_input and self.needs.weights:
            (dweights,) = combine_grad.call(
                dout=self.x, y=dx_rows, dweights_dtype=self.weights.dtype, **self.by_token
            )
        return dx, dweights

    def _of_matrices(self, dy_columns, d_columns):
        if not self.needs.w13 and not self.needs.w2:
            return [None] * (len(self.ctx.needs_input_grad) - 10)
        of_w13 = of_w2 = None
        if self.needs.w13:
            x = quantize(
                self.x,
                self.layer.recipe.mode,
                self.sizes,
                source_row=self.source_row,
                row_scale=self.of_input,
                rows=False,
                columns=True,
            )
            of_w13 = d_columns, x
        if self.needs.w2:
            of_w2 = dy_columns, self.activated
        groups, transposed = self.ctx.num_groups, self.layer.transposed
        products = Products((of_w13, of_w2), self.sizes, self.layer.group_offset, groups, transposed)
        return self.layer.weight_gradients(products)

    def _offset(self):
        offset = self.layer.group_offset
        if isinstance(offset, torch.Tensor):
            return {"group_offset_tensor": offset}
        return {"group_offset": offset}

    def _bias_grad(self, dy, dtype, factors=None):
        return bias_grad.call(
            dy=dy,
            group_sizes=self.sizes,
            bias_scale=factors,
            num_groups=self.ctx.num_groups,
            out_dtype=dtype,
            **self._offset(),
        )

    def _bias_dot(self, dy):
        return bias_scale_grad.call(
            dy=dy, bias=[self.bias2], group_sizes=self.sizes, out_dtype=torch.float32, **self._offset()
        )


def _of_rows(weights, source_row, slot_row):
    """The weight of each row in f32 [m], as the gradient of a sum of ones; None without weights."""
    if weights is None:
        return None
    ones = torch.ones((weights.shape[0], 1), device=weights.device)
    (factors,) = combine_grad.call(
        dout=ones, weights=weights, dy_dtype=torch.float32, slot_row=slot_row, source_row=source_row
    )
    return factors.squeeze(1)


def _by_slot(values, slot_row):
    """values[slot_row[t, j]], zero where a choice was dropped."""
    rows = slot_row.long()
    return torch.where(rows >= 0, values[rows.clamp(min=0)], 0)
