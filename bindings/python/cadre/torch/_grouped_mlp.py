"""GroupedMLP: the experts of a mixture-of-experts layer as a module, over moe_mlp. The weights' gradients can be delayed
(backward_dw) and added to main_grad, as GroupedLinear's can."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .._errors import wrong_type, wrong_value
from .._types import Activation as ActivationArgument
from .._types import ScaleMode
from . import (
    _linear_parameters,
    _main_grad,
    _mlp_gradients,
    _operators,
    _recipes,
    _scaled_mlp,
    _transforms,
)
from ._activation import Activation, activation_of
from ._errors import renamed
from ._moe_mlp import moe_mlp, routed
from ._routing import Routing
from ._types import Tensor

_OP = "GroupedMLP"
_WORDS = {"GroupedLinear": _OP, "moe_mlp": _OP}
#: Phases of the operator's backward pass.
_WHOLE, _WITHOUT_WEIGHTS, _WEIGHTS_ALONE = range(3)


class GroupedMLP(torch.nn.Module):
    """num_gemms experts, each activation(x @ w13^T + bias13) @ w2^T + bias2, of tokens that a router chose them for.

    Parameters: w13 [num_gemms, 2 * ffn_hidden_size, hidden_size] (half of it for an activation without a gate), w2
    [num_gemms, hidden_size, ffn_hidden_size], and with `bias` bias13 and bias2. activation, interleaved, alpha, limit,
    up_offset and weights_on_input are moe_mlp's. The other arguments are those of GroupedLinear: delay_wgrad_compute leaves
    the gradients of w13 and w2 to backward_dw(), fuse_wgrad_accumulation adds them to each weight's main_grad. With a recipe
    the products are computed in FP8, and weights may be FP8 from the start, beside w13_scale_inv and w2_scale_inv.

    >>> experts = cadre.torch.GroupedMLP(3, hidden_size=4, ffn_hidden_size=5)
    >>> ids = torch.tensor([[2, 0], [0, 1]])  # two tokens, each with two experts
    >>> experts(torch.ones(2, 4), ids, torch.full((2, 2), 0.5)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        num_gemms: int,
        hidden_size: int,
        ffn_hidden_size: int,
        *,
        activation: ActivationArgument = "swiglu",
        interleaved: bool = False,
        alpha: float = 1.702,
        limit: float = 7.0,
        up_offset: float = 1.0,
        bias: bool = False,
        weights_on_input: bool = False,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        init_method: Callable[[Tensor], Any] | None = None,
        params_dtype: torch.dtype | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        name: str | None = None,
        recipe: ScaleMode | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation_of(_OP, activation, interleaved, (alpha, limit, up_offset))
        try:
            self.num_gemms = _linear_parameters.positive_int("num_gemms", num_gemms)
            self.hidden_size = _linear_parameters.positive_int("hidden_size", hidden_size)
            ffn = _linear_parameters.positive_int("ffn_hidden_size", ffn_hidden_size)
            self.recipe = _recipes.recipe_of(_OP, recipe)
            self.params_dtype = _linear_parameters.parameter_dtype(params_dtype, dtype, self.recipe)
        except (ValueError, TypeError) as error:
            raise renamed(error, _WORDS) from None
        self.ffn_hidden_size, self.use_bias, self.name = ffn, bool(bias), name
        self.weights_on_input = bool(weights_on_input)
        self.fuse_wgrad_accumulation = bool(fuse_wgrad_accumulation)
        self.delay_wgrad_compute = bool(delay_wgrad_compute)
        fused = isinstance(self.activation, Activation)
        if self.recipe is not None and not fused:
            expected = "a name, because a recipe is given"
            raise wrong_value(_OP, "activation", "a function", expected)
        if (self.fuse_wgrad_accumulation or self.delay_wgrad_compute) and not fused:
            expected = "a name, because main_grad or delayed gradients are asked for"
            raise wrong_value(_OP, "activation", "a function", expected)
        self._options = {
            "activation": activation,
            "interleaved": interleaved,
            "alpha": alpha,
            "limit": limit,
            "up_offset": up_offset,
            "weights_on_input": self.weights_on_input,
        }
        self.init_method = init_method or _linear_parameters.default_init
        self._kept_weights = _recipes.KeptWeights()
        self._pending = collections.deque()
        self._hooks = []
        columns = ffn if fused and not self.activation.is_gated else 2 * ffn

        fp8 = self.params_dtype in _linear_parameters.FP8
        of_biases = torch.bfloat16 if fp8 else self.params_dtype

        def parameter(*shape, dtype=of_biases):
            return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        for weight, shape in (("w13", (columns, hidden_size)), ("w2", (hidden_size, ffn))):
            if fp8:
                made = _linear_parameters.fp8_parameters(
                    self.params_dtype, self.recipe.mode, *shape, groups=num_gemms, device=device
                )
                for suffix, each in zip(("", "_scale_inv"), made, strict=True):
                    self.register_parameter(weight + suffix, each)
            else:
                self.register_parameter(weight, parameter(num_gemms, *shape))
        self.bias13 = parameter(num_gemms, columns) if self.use_bias else None
        self.bias2 = parameter(num_gemms, hidden_size) if self.use_bias else None
        for weight in self.weights():
            if self.delay_wgrad_compute:
                weight.skip_backward_post_hook = True
        if not self.w13.is_meta:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Each expert's matrices by init_method; biases become zero."""
        if self.params_dtype not in _linear_parameters.FP8:  # which a checkpoint fills
            for matrix in (*self.w13, *self.w2):
                self.init_method(matrix)
        for bias in self.biases():
            bias.zero_()

    def weights(self) -> list[torch.nn.Parameter]:
        return [self.w13, self.w2]

    def weight_names(self) -> list[str]:
        return ["w13", "w2"]

    def biases(self) -> list[torch.nn.Parameter]:
        return [self.bias13, self.bias2] if self.use_bias else []

    def forward(
        self, x: Tensor, expert_ids: Tensor | Routing, weights: Tensor | None = None, is_first_microbatch: bool | None = None, *, shared: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """x [..., hidden_size]; expert_ids and weights [tokens, top_k], or what route() made of the ids; shared and residual of
        x's shape. is_first_microbatch=True has main_grad replaced instead of added to, and with a recipe the weights quantised
        again; False uses those that were quantised before, if they haven't changed."""
        if not isinstance(x, torch.Tensor):
            raise wrong_type(_OP, "x", x, "a torch.Tensor")
        if x.dim() < 2 or x.shape[-1] != self.hidden_size:
            expected = f"[..., hidden_size = {self.hidden_size}]"
            raise wrong_value(_OP, "x.shape", list(x.shape), expected)
        if not isinstance(is_first_microbatch, (bool, type(None))):
            raise wrong_type(_OP, "is_first_microbatch", is_first_microbatch, "a bool or None")
        rows, *added = (
            None if each is None else each.reshape(-1, self.hidden_size)
            for each in (x, shared, residual)
        )
        try:
            if self.recipe is not None or self.delay_wgrad_compute or self.fuse_wgrad_accumulation:
                out = self._with_buffers(rows, expert_ids, weights, is_first_microbatch, *added)
            else:
                out = moe_mlp(
                    rows,
                    expert_ids,
                    weights,
                    self.w13,
                    self.w2,
                    bias13=self.bias13,
                    bias2=self.bias2,
                    shared=added[0],
                    residual=added[1],
                    **self._options,
                )
        except (ValueError, TypeError, NotImplementedError) as error:
            raise renamed(error, _WORDS) from None
        return out.view(x.shape)

    @torch.compiler.disable  # it lives by what it writes outside the graph
    def _with_buffers(self, x, expert_ids, weights, is_first_microbatch, shared, residual):
        wanting = [weight.requires_grad for weight in self.weights()]
        if any(wanting) and not all(wanting):
            name = f"{self.weight_names()[wanting.index(False)]}.requires_grad"
            raise wrong_value(_OP, name, False, "the same for both weights")
        if self.fuse_wgrad_accumulation and all(wanting) and torch.is_grad_enabled():
            _main_grad.check(self)
        routing = routed(expert_ids, self.num_gemms)
        if self.recipe is not None:
            layer = _scaled_mlp.Layer(
                recipe=self.recipe,
                activation=self.activation,
                weights_on_input=self.weights_on_input,
                quantised=functools.partial(self._quantised_weights, is_first_microbatch),
                weight_gradients=functools.partial(self._scaled_gradients, is_first_microbatch),
            )
            parameters = [] if self.params_dtype in _linear_parameters.FP8 else self.weights()
            added = {"shared": shared, "residual": residual}
            return _scaled_mlp.run(layer, x, routing, weights, [*parameters], self.biases(), **added)
        tensors = (x, *routing, weights, shared, residual, *self.weights(), *self.biases())
        return _Pass.apply(self, is_first_microbatch, *tensors)

    def _quantised_weights(self, is_first_microbatch, *, columns):
        """w13 and w2 in FP8 (_recipes.Weights), made now or before."""
        pairs = zip(self.weight_names(), self.weights(), strict=True)
        if self.params_dtype in _linear_parameters.FP8:
            scales = [getattr(self, f"{name}_scale_inv") for name in self.weight_names()]
            of = zip(self.weights(), scales, strict=True)
            return [_recipes.given_weights(self.recipe.mode, *each) for each in of]
        options = {"columns": columns, "is_first_microbatch": is_first_microbatch}
        return [self._kept_weights.get(self.recipe, name, [each], **options) for name, each in pairs]

    def refresh(self) -> None:
        """Has the weights quantised again: after a change that their version counters don't show, one through .data say."""
        self._kept_weights.refresh()

    def _scaled_gradients(self, is_first_microbatch, products):
        """What autograd is given for w13 and w2."""
        gradient = _scaled_mlp.WeightGradients(self, products, is_first_microbatch)
        if self.delay_wgrad_compute:
            gradient.keep_for_later()
            self._pending.append(gradient)
            return [None, None]
        if gradient.main_grads is not None:
            gradient.into(gradient.main_grads, gradient.beta())
            return gradient.marked(self)
        return products.new([each.dtype for each in self.weights()])

    def need_backward_dw(self) -> bool:
        """Whether backward leaves the weights' gradients to backward_dw()."""
        return self.delay_wgrad_compute

    def backward_dw(self) -> None:
        """Computes the oldest weight gradients that backward left, adding to what .grad (or main_grad) holds; nothing if
        there are none."""
        if not self._pending:
            return
        self._pending.popleft().run(self)
        for hook in self._hooks:
            hook()

    @property
    def pending_wgrads(self) -> int:
        """Weight gradients that wait for backward_dw()."""
        return len(self._pending)

    def register_wgrad_accumulation_and_reduce_hooks(
        self,
        wgrad_accumulation_and_reduce_hook: Callable[[], Any],
    ) -> None:
        """Has the hook called after every backward_dw() that computed something."""
        self._hooks.append(wgrad_accumulation_and_reduce_hook)

    def extra_repr(self) -> str:
        sizes = f"{self.num_gemms}, hidden_size={self.hidden_size}"
        recipe = "" if self.recipe is None else f", recipe={self.recipe.mode!r}"
        return f"{sizes}, ffn_hidden_size={self.ffn_hidden_size}, bias={self.use_bias}{recipe}"


def _arguments(module, tensors):
    """moe_mlp's arguments of a pass; tensors: x, group_sizes, source_row, slot_row, weights, w13, w2 and the biases."""
    x, group_sizes, source_row, slot_row, weights, w13, w2, *biases = tensors
    return {
        "x": x,
        "w13": [w13],
        "w2": [w2],
        "bias13": biases[:1],
        "bias2": biases[1:],
        "group_sizes": group_sizes,
        "source_row": source_row,
        "slot_row": slot_row,
        "weights": weights,
        "activation": module.activation.kind,
        "interleaved": module.activation.interleaved,
        "clamp": [float(each) for each in module.activation.clamp],
        "weights_on_input": module.weights_on_input,
    }


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, is_first_microbatch, x, sizes, source_row, slot_row, weights, *rest):
        shared, residual, *parameters = rest
        kept = (x, sizes, source_row, slot_row, weights, *parameters)
        out, preact = _operators.moe_mlp.call(
            **_arguments(module, kept), shared=shared, residual=residual, keeps_preact=True
        )
        ctx.module, ctx.is_first_microbatch = module, is_first_microbatch
        ctx.dtypes = [None if each is None else each.dtype for each in (shared, residual)]
        ctx.save_for_backward(*kept, preact)
        ctx.may_consume = _transforms.nobody_else_keeps()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        module = ctx.module
        *kept, preact = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        gradient = _WeightGradients(module, kept, preact, dout, ctx.is_first_microbatch)
        consumes = ctx.may_consume and _transforms.frees_what_it_kept()
        wanted = {"dx": needs[0], "dweights": needs[4], **dict(zip(("dbias13", "dbias2"), needs[9:]))}
        of = dict(zip(("dx", "dweights", "dbias13", "dbias2"), (kept[0], kept[4], *kept[7:])))
        made = {
            name: [torch.empty_like(of[name], memory_format=torch.contiguous_format)]
            for name, each in wanted.items()
            if each
        }
        dw = [None, None]
        if consumes and (any(needs[7:9]) or needs[0]):
            gradient.rows["d_preact"] = [preact]
        if not any(needs[7:9]):
            gradient.call(_WHOLE, **made)
        elif module.delay_wgrad_compute:
            gradient.keep_for_later()
            gradient.call(_WITHOUT_WEIGHTS, gradient.targets_or_room(module), **made)
            module._pending.append(gradient)
        else:
            gradient.call(_WHOLE, gradient.main_grads, gradient.beta(), **made)
            dw = gradient.marked(module)
        dx, dweights, *dbiases = (
            made[name][0] if name in made else None for name in ("dx", "dweights", "dbias13", "dbias2")
        )
        added = [
            None if dtype is None or not need else dout.to(dtype)
            for dtype, need in zip(ctx.dtypes, needs[5:7], strict=True)
        ]
        biases = dbiases if module.use_bias else []
        return None, None, dx, None, None, None, dweights, *added, *dw, *biases


class _WeightGradients(_mlp_gradients.WeightGradients):
    """Of the fused layer, which computes them with the rest of its backward pass or as a phase of their own."""

    def __init__(self, module, kept, preact, dout, is_first_microbatch):
        super().__init__(module, is_first_microbatch)
        self.arguments = {**_arguments(module, kept), "preact": preact, "dout": dout}
        self.rows = {"d_preact": [], "activated": []}

    def call(self, phase, dw=None, beta=0.0, **others):
        """The pass, or its part `phase`, into dw (of w13 and of w2) and into the lists `others`."""
        nothing = {name: [] for name in ("dx", "dweights", "dbias13", "dbias2")}
        dw13, dw2 = ([], []) if dw is None else ([dw[0]], [dw[1]])
        _operators.moe_mlp_grad_into.call(
            **self.arguments,
            **self.rows,
            **{**nothing, **others},
            phase=phase,
            dw_beta=beta,
            dw13=dw13,
            dw2=dw2,
        )

    def keep_for_later(self):
        preact, w2 = self.arguments["preact"], self.arguments["w2"][0]
        activated = preact.new_empty((preact.shape[0], w2.shape[2]))
        self.rows["d_preact"] = self.rows["d_preact"] or [torch.empty_like(preact)]
        self.rows["activated"] = [activated]
        super().keep_for_later()

    def read_later(self):
        return [self.arguments[name] for name in ("x", "dout", "source_row", "group_sizes")]

    def into(self, targets, beta):
        self.call(_WEIGHTS_ALONE, targets, beta)
