"""GroupedLinear's forward and backward with buffers of the caller's: out, dgrad_out, main_grad, delayed gradients.

Everything is checked before anything is computed. The weights' gradients never pass through autograd here: they are
written where they belong, so no second copy of them exists. What is multiplied is in _linear_products.py. torch.compile doesn't trace these passes, which live by what
they write outside the graph: it breaks the graph here, or with fullgraph=True says so.
"""

from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .._errors import wrong_type, wrong_value
from . import _arguments, _dtypes, _main_grad, _memory, _operators
from ._errors import renamed
from ._functional import gmm, tgmm
from ._linear_parameters import check_float, one_or_list
from ._scaled import ScaledTensor

_OP = "GroupedLinear"
_DGRAD_WORDS = {"gmm": _OP, "lhs": "grad of y", "rhs": "weight", "out": "dgrad_out"}


class Buffers(NamedTuple):
    """What a call gives beside its operands; a tuple, which autograd doesn't look into for inputs changed in place."""

    out: torch.Tensor | None
    dgrad_out: torch.Tensor | None
    is_first_microbatch: bool | None


@torch.compiler.disable
def run(module, inp, splits, scales, buffers):
    weights = module.weights()
    _check(module, weights, inp, buffers)
    biases = module.biases() if module.apply_bias else []
    return _Pass.apply(module, len(weights), buffers, inp, splits, scales, *weights, *biases)


def _check(module, weights, inp, buffers):
    wanting = [weight.requires_grad for weight in weights]
    if any(wanting) and not all(wanting):
        name = f"weight{wanting.index(False)}.requires_grad"
        raise wrong_value(_OP, name, False, "the same for every weight")
    rows = inp.numel() // module.in_features
    for name, buffer, width in (
        ("out", buffers.out, module.out_features),
        ("dgrad_out", buffers.dgrad_out, module.in_features),
    ):
        if buffer is None:
            continue
        if not isinstance(buffer, torch.Tensor):
            raise wrong_type(_OP, name, buffer, "a torch.Tensor")
        _arguments.outputs(_OP, name, buffer)
        check_float(name, buffer)
        if list(buffer.shape) != [rows, width]:
            raise wrong_value(_OP, f"{name}.shape", list(buffer.shape), [rows, width])
        if buffer.device != inp.device:
            raise wrong_value(_OP, f"{name}.device", buffer.device, f"inp.device = {inp.device}")
        if inp.dim() > 2 and not buffer.is_contiguous():
            expected = f"a contiguous tensor, because inp.rank = {inp.dim()}"
            raise wrong_value(_OP, f"{name}.strides", list(buffer.stride()), expected)
    graded = torch.is_grad_enabled()
    # Without gradients at all, as in a reentrant checkpoint's first forward, there is nothing for dgrad_out to take.
    if buffers.dgrad_out is not None and graded:
        if not inp.requires_grad:
            raise wrong_value(_OP, "dgrad_out", "given", "None, because inp wants no gradient")
        _main_grad.refuse_overlap("dgrad_out", buffers.dgrad_out)
        if all(wanting) and _memory.share(
            inp.detach().reshape(rows, module.in_features), buffers.dgrad_out
        ):
            expected = "memory of its own: the weights' gradients read inp after it is written"
            raise wrong_value(_OP, "dgrad_out", "a tensor that overlaps inp", expected)
    if module.fuse_wgrad_accumulation and all(wanting) and graded:
        _main_grad.check(module)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, weight_count, buffers, inp, splits, scales, *parameters):
        weights, biases = parameters[:weight_count], parameters[weight_count:]
        x = inp if inp.dim() == 2 else inp.reshape(-1, module.in_features)
        needs = ctx.needs_input_grad[3], any(ctx.needs_input_grad[6 : 6 + weight_count])
        ctx.products = module.products(buffers.is_first_microbatch)
        lhs, rhs, kept = ctx.products.forward(x, weights, splits, needs)
        y = gmm(
            lhs,
            rhs,
            splits,
            transpose_rhs=True,
            bias=one_or_list(list(biases), module.single_grouped_bias) if biases else None,
            bias_scale=scales,
            out=buffers.out,
            out_dtype=None if buffers.out is not None else module.output_dtype(x),
            tail="forbid"
            if module.strict_splits
            else "untouched"
            if buffers.out is not None
            else "zero",
        )
        ctx.module, ctx.buffers = module, buffers
        ctx.weight_count, ctx.bias_count = weight_count, len(biases)
        ctx.inp_shape, ctx.inp_dtype, ctx.inp_is_leaf = inp.shape, inp.dtype, inp.is_leaf
        ctx.save_for_backward(splits, scales, *biases, *kept)
        return y if buffers.out is None else y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        module = ctx.module
        splits, scales, *saved = ctx.saved_tensors
        biases, kept = saved[: ctx.bias_count], saved[ctx.bias_count :]
        needs_inp, _, needs_scales, *needs = ctx.needs_input_grad[3:]
        needs_weights, needs_biases = any(needs[: ctx.weight_count]), any(needs[ctx.weight_count :])
        of_inp, of_weights = ctx.products.backward(dy, splits, kept, (needs_inp, needs_weights))
        wgrad = None
        if needs_weights:
            wgrad = WeightGradient(module, *of_weights, splits, ctx.buffers.is_first_microbatch)

        dinp = dscales = None
        dbiases = [None] * ctx.bias_count
        if needs_inp:
            dinp = _input_gradient(ctx, *of_inp, splits)
        if needs_biases:
            dbias = _operators.bias_grad.call(
                dy=dy,
                group_sizes=splits,
                bias_scale=scales,
                num_groups=module.num_gemms,
                out_dtype=biases[0].dtype,
            )
            dbiases = [dbias] if module.single_grouped_bias else list(dbias.unbind(0))
        if needs_scales:
            # In f32, as every sum is, whatever type dy has.
            dscales = _operators.bias_scale_grad.call(
                dy=dy, bias=biases, group_sizes=splits, out_dtype=_dtypes.accumulator(dy.dtype)
            ).to(scales.dtype)
        dweights = [None] * ctx.weight_count
        if wgrad is not None and module.delay_wgrad_compute:
            module._pending.append(wgrad)
        elif wgrad is not None:
            dweights = wgrad.results(module)
        return None, None, None, dinp, None, dscales, *dweights, *dbiases


def _input_gradient(ctx, dy, weights, transpose_rhs, splits):
    buffer, options = ctx.buffers.dgrad_out, {"transpose_rhs": transpose_rhs}
    if buffer is None:
        return gmm(dy, weights, splits, out_dtype=ctx.inp_dtype, **options).view(ctx.inp_shape)
    try:
        gmm(dy, weights, splits, out=buffer, tail="untouched", **options)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise renamed(error, _DGRAD_WORDS) from None
    # A leaf's .grad would otherwise be the buffer itself, which the next backward overwrites before it is added to.
    gradient = buffer.clone() if ctx.inp_is_leaf else buffer
    return gradient.view(ctx.inp_shape)


class WeightGradient:
    """dy^T @ x of every expert, still to be computed: what it is made of, and where it goes."""

    def __init__(self, module, dy, x, splits, is_first_microbatch):
        self.x, self.dy, self.splits = x, dy, splits
        self.versions = self._versions()
        self.main_grads = None
        if module.fuse_wgrad_accumulation:
            # Fetched once, in backward: a sharded parameter hands its buffer out then.
            self.main_grads = _main_grad.fetch(module)
            self.overwritten = tuple(
                bool(is_first_microbatch or getattr(weight, "overwrite_main_grad", False))
                for weight in module.weights()
            )

    def _versions(self):
        operands = (each.data if isinstance(each, ScaledTensor) else each for each in (self.x, self.dy))
        return [tensor._version for tensor in (*operands, self.splits)]

    def results(self, module):
        """What autograd is to be given for the weights: their gradients, or nothing where main_grad has taken them."""
        if self.main_grads is None:
            return self.new(module)
        self.into_main_grad(module)
        return [_main_grad.placeholder(weight) for weight in module.weights()]

    @torch.no_grad()
    def run(self, module):
        """Adds the gradient to main_grad or .grad: the delayed way, outside autograd."""
        if self.versions != self._versions():
            raise RuntimeError(
                f"{_OP}: the input, its m_splits or the gradient of y was changed in place between backward and "
                "backward_dw(), which needs them as they were"
            )
        if self.main_grads is not None:
            self.into_main_grad(module)
            return
        weights = module.weights()
        if all(weight.grad is None for weight in weights):
            for weight, gradient in zip(weights, self.new(module), strict=True):
                weight.grad = gradient
            return
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        self._into(module, [weight.grad for weight in weights], (False,) * len(weights))

    def new(self, module):
        stack = tgmm(self.dy, self.x, self.splits, out_dtype=module.weights()[0].dtype)
        return [stack] if module.single_grouped_weight else list(stack.unbind(0))

    def into_main_grad(self, module):
        self._into(module, self.main_grads, self.overwritten)
        for weight in module.weights():
            if hasattr(weight, "grad_added_to_main_grad"):
                weight.grad_added_to_main_grad = True

    def _into(self, module, targets, overwritten):
        """Adds to each target, or replaces it where that is asked for."""
        if len({target.stride() for target in targets}) > 1:
            # A list has one stride for all its matrices.
            for target, replaced, gradient in zip(
                targets, overwritten, self.new(module), strict=True
            ):
                target.copy_(gradient) if replaced else target.add_(gradient)
            return
        if len(set(overwritten)) == 1:
            beta = 0.0 if overwritten[0] else 1.0
        else:
            beta = _main_grad.betas(module, overwritten, self.dy.device)
        out = one_or_list(targets, module.single_grouped_weight)
        tgmm(self.dy, self.x, self.splits, out=out, beta=beta)
