"""GroupedLinear's forward and backward with buffers of the caller's: out, grad_input, main_grad, delayed gradients.

Everything is checked before anything is computed. The weights' gradients never pass through autograd here: they are
written where they belong, so no second copy of them exists.
"""

import torch
from torch.autograd.function import once_differentiable

from .._errors import wrong_value
from . import _arguments
from ._functional import bias_grad, gmm, tgmm

_OP = "GroupedLinear"


def run(module, x, splits, scales, biases, out, grad_input):
    weights = module.weights()
    wanting = [weight.requires_grad for weight in weights]
    if any(wanting) and not all(wanting):
        raise wrong_value(
            _OP, f"weight{wanting.index(False)}.requires_grad", False, "the same for every weight"
        )
    for name, buffer, width in (
        ("out", out, module.out_features),
        ("grad_input", grad_input, module.in_features),
    ):
        if buffer is not None:
            _arguments.outputs(_OP, name, buffer)
            if tuple(buffer.shape) != (x.shape[0], width):
                raise wrong_value(_OP, f"{name}.shape", tuple(buffer.shape), (x.shape[0], width))
    if grad_input is not None and not (x.requires_grad and torch.is_grad_enabled()):
        raise wrong_value(_OP, "grad_input", "given", "None, because inp wants no gradient")
    if module.fuse_wgrad_accumulation and all(wanting) and torch.is_grad_enabled():
        main_grads(module)
    # The buffers are hidden in a tuple: autograd is not to take them for inputs that are changed in place.
    return _Pass.apply(
        module, len(weights), splits, (out, grad_input), x, scales, *weights, *biases
    )


def main_grads(module):
    """Each weight's main_grad as a view of the weight's shape: a list, or one tensor for a stacked weight."""
    views = []
    for i, weight in enumerate(module.weights()):
        name = "weight.main_grad" if module.stacked else f"weight{i}.main_grad"
        main_grad = getattr(weight, "main_grad", None)
        if not isinstance(main_grad, torch.Tensor):
            raise wrong_value(
                _OP,
                name,
                "missing" if main_grad is None else type(main_grad).__name__,
                f"a tensor that {tuple(weight.shape)} is a view of, because fuse_wgrad_accumulation is set",
            )
        try:
            views.append(main_grad.detach().view(weight.shape))
        except RuntimeError:
            received = (
                f"a tensor of shape {tuple(main_grad.shape)} and strides {main_grad.stride()}"
            )
            raise wrong_value(
                _OP, name, received, f"one that {tuple(weight.shape)} is a view of"
            ) from None
    return views


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, weight_count, splits, buffers, x, scales, *parameters):
        out, grad_input = buffers
        weights, biases = parameters[:weight_count], parameters[weight_count:]
        product_x, product_weights = _arguments.autocast(x, list(weights))
        rhs, bias = (
            _one_or_list(module, product_weights),
            _one_or_list(module, list(biases)) if biases else None,
        )
        y = gmm(product_x, rhs, splits, transpose_rhs=True, bias=bias, bias_scale=scales, out=out)
        if out is not None:
            y = out.detach()
        ctx.module, ctx.grad_input, ctx.splits = module, grad_input, splits
        ctx.weight_count, ctx.bias_count = weight_count, len(biases)
        ctx.x_dtype = x.dtype
        needs_weights = any(ctx.needs_input_grad[6 : 6 + weight_count])
        ctx.save_for_backward(
            product_x if needs_weights else None, scales, *product_weights, *biases
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        module, splits = ctx.module, ctx.splits
        x, scales, *parameters = ctx.saved_tensors
        weights, biases = parameters[: ctx.weight_count], parameters[ctx.weight_count :]
        needs_x, needs_scales, *needs = ctx.needs_input_grad[4:]
        needs_weights, needs_biases = any(needs[: ctx.weight_count]), any(needs[ctx.weight_count :])
        wgrad = WeightGradient(module, x, dy, splits) if needs_weights else None
        if wgrad is not None:
            wgrad.check(module)

        dx = dscales = None
        dbiases = [None] * ctx.bias_count
        if needs_x:
            target = (
                {"out_dtype": ctx.x_dtype} if ctx.grad_input is None else {"out": ctx.grad_input}
            )
            dx = gmm(dy, _one_or_list(module, list(weights)), splits, **target)
        if needs_biases or needs_scales:
            bias = _one_or_list(module, list(biases)) if needs_scales else None
            result = bias_grad(
                dy, splits, bias=bias, bias_scale=scales, num_groups=module.num_gemms
            )
            dbias, dscales = result if needs_scales else (result, None)
            dbiases = [dbias] if module.stacked else list(dbias.unbind(0))
            dbiases = [each.to(bias.dtype) for each, bias in zip(dbiases, biases, strict=True)]
            dscales = None if dscales is None else dscales.to(scales.dtype)
        dweights = [None] * ctx.weight_count
        if wgrad is not None and module.delay_wgrad_compute:
            module._pending.append(wgrad)
        elif wgrad is not None:
            dweights = wgrad.results(module)
        return None, None, None, None, dx, dscales, *dweights, *dbiases


def _one_or_list(module, tensors):
    return tensors[0] if module.stacked else tensors


class WeightGradient:
    """dy^T @ x of every expert, still to be computed: what it is made of, and where it goes."""

    def __init__(self, module, x, dy, splits):
        self.x, self.dy, self.splits = x, dy, splits

    def check(self, module):
        """Raises now what run() would raise later."""
        if module.fuse_wgrad_accumulation:
            main_grads(module)

    def results(self, module):
        """What autograd is to be given for the weights: their gradients, or nothing where main_grad has taken them."""
        if module.fuse_wgrad_accumulation:
            self.into_main_grad(module)
            return [_dummy(weight) for weight in module.weights()]
        return self.new(module)

    def run(self, module):
        """Adds the gradient to main_grad or .grad: the delayed way, outside autograd."""
        with torch.no_grad():
            if module.fuse_wgrad_accumulation:
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
            grads = [weight.grad for weight in weights]
            if len({grad.stride() for grad in grads}) == 1:
                tgmm(self.dy, self.x, self.splits, out=_one_or_list(module, grads), accumulate=True)
                return
            for grad, gradient in zip(grads, self.new(module), strict=True):
                grad.add_(gradient)

    def new(self, module):
        stack = tgmm(self.dy, self.x, self.splits, out_dtype=module.weights()[0].dtype)
        return [stack] if module.stacked else list(stack.unbind(0))

    def into_main_grad(self, module):
        weights = module.weights()
        overwritten = tuple(
            bool(getattr(weight, "overwrite_main_grad", False)) for weight in weights
        )
        targets = main_grads(module)
        if module.stacked or len(set(overwritten)) == 1:
            beta = 0.0 if overwritten[0] else 1.0
        else:
            beta = _betas(module, overwritten, self.dy.device)
        if module.stacked or len({target.stride() for target in targets}) == 1:
            tgmm(self.dy, self.x, self.splits, out=_one_or_list(module, targets), beta=beta)
        else:
            for target, replaced, gradient in zip(
                targets, overwritten, self.new(module), strict=True
            ):
                target.copy_(gradient) if replaced else target.add_(gradient)
        for weight in weights:
            if hasattr(weight, "grad_added_to_main_grad"):
                weight.grad_added_to_main_grad = True


def _betas(module, overwritten, device):
    """One beta for each expert, kept on the device: weights may differ in whether their main_grad is overwritten."""
    key = overwritten, device
    if key not in module._betas:
        values = [0.0 if each else 1.0 for each in overwritten]
        module._betas[key] = torch.tensor(values, dtype=torch.float32, device=device)
    return module._betas[key]


_dummies = {}


def _dummy(weight):
    """Megatron's hooks wait for a gradient even where main_grad has it: one shared tensor whose values mean nothing."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    key = tuple(weight.shape), weight.dtype, weight.device
    if key not in _dummies:
        _dummies[key] = torch.zeros_like(weight, requires_grad=False)
    return _dummies[key].detach()
