"""GroupedLinear: a linear layer for each expert, with Transformer Engine's signatures. Its parameters are in
_linear_parameters.py, its passes with buffers of the caller's in _linear_pass.py."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .._errors import wrong_type, wrong_value
from .._types import ScaleMode
from . import _arguments, _linear_parameters, _linear_pass, _linear_products, _recipes
from ._errors import renamed
from ._functional import gmm
from ._linear_parameters import one_or_list
from ._types import Sizes

_OP = "GroupedLinear"
_WORDS = {
    "gmm": _OP,
    "lhs": "inp",
    "rhs": "weight",
    "group_sizes": "m_splits",
    "bias_scale": "scales",
    "tail = forbid": "strict_splits = True",
}


def _in_own_words(error):
    """The error of an op with the names of this module's arguments and parameters."""
    error = renamed(error, _WORDS)
    return type(error)(re.sub(r"\b(weight|bias)\[(\d+)\]", r"\1\2", str(error)))


class GroupedLinear(_linear_parameters.ExpertParameters):
    """y[r] = x[r] @ weight_g^T + scales[r] * bias_g, g the expert of row r.

    num_gemms experts of in_features x out_features. Parameters are weight0, weight1, ... ([out, in] each) and bias0, ...;
    or one weight [num_gemms, out, in] with single_grouped_weight, one bias [num_gemms, out] with single_grouped_bias.
    State dicts of either form load into either.

    The positional arguments are Transformer Engine's. delay_wgrad_compute: backward leaves the weights' gradients to
    backward_dw(). fuse_wgrad_accumulation: they are added to each weight's main_grad (or replace it, if the weight's
    overwrite_main_grad is true or the call says is_first_microbatch=True). With tp_size (or a tp_group) above 1 the module
    holds one shard: out_features / tp_size in parallel_mode "column", in_features / tp_size in "row"; it never
    communicates, and takes no bias then. save_original_input and use_grouped_tensor change nothing here: the input itself
    is always saved, and there is one path for every form. ub_overlap_rs and ub_overlap_ag are refused, as in the original.

    Beyond the original: dtype, another name of params_dtype; strict_splits=True refuses splits that don't cover every row;
    device=None is torch's default device; recipe="block_128", "row", "tensor" or "mx" computes the three products in FP8
    (docs/fp8.md). With a recipe params_dtype may be torch.float8_e4m3fn: the weights are then FP8 as they were loaded, for
    inference, each beside its scales, weight0_scale_inv (or weight_scale_inv), as Hugging Face's checkpoints have them.

    >>> layer = cadre.torch.GroupedLinear(3, 4, 5)
    >>> layer(torch.ones(6, 4), [2, 0, 4]).shape
    torch.Size([6, 5])
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: Literal["row", "column"] | None = None,
        device: torch.device | str | None = None,
        ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        name: str | None = None,
        use_grouped_tensor: bool | None = None,
        *,
        dtype: torch.dtype | None = None,
        strict_splits: bool = False,
        recipe: ScaleMode | None = None,
    ) -> None:
        super().__init__()
        for argument, value in (("ub_overlap_rs", ub_overlap_rs), ("ub_overlap_ag", ub_overlap_ag)):
            if value:
                raise wrong_value(_OP, argument, value, "False: nothing is communicated here")
        if use_grouped_tensor is not None and not isinstance(use_grouped_tensor, bool):
            raise wrong_type(_OP, "use_grouped_tensor", use_grouped_tensor, "a bool or None")
        self.recipe = _recipes.recipe_of(_OP, recipe)
        self.params_dtype = _linear_parameters.parameter_dtype(params_dtype, dtype, self.recipe)
        self.num_gemms = _linear_parameters.positive_int("num_gemms", num_gemms)
        self.in_features = _linear_parameters.positive_int("in_features", in_features)
        self.out_features = _linear_parameters.positive_int("out_features", out_features)
        self._take_shard(tp_group, tp_size, parallel_mode, bool(bias))
        self.sequence_parallel = self.tp_size > 1 and bool(sequence_parallel)
        self.use_bias, self.return_bias = bool(bias), bool(return_bias)
        self.apply_bias = self.use_bias and not self.return_bias
        self.fuse_wgrad_accumulation = bool(fuse_wgrad_accumulation)
        self.delay_wgrad_compute = bool(delay_wgrad_compute)
        self.single_grouped_weight = bool(single_grouped_weight)
        self.single_grouped_bias = bool(single_grouped_bias)
        self.save_original_input, self.use_grouped_tensor = save_original_input, use_grouped_tensor
        self.strict_splits = bool(strict_splits)
        self.name, self.ub_name = name, ub_name
        self.init_method = init_method or _linear_parameters.default_init
        self.get_rng_state_tracker, self.rng_tracker_name = get_rng_state_tracker, rng_tracker_name
        self._kept_weights = _recipes.KeptWeights()
        self._pending = collections.deque()
        self._betas = {}
        self._hooks = []
        self._make_parameters(device, self.params_dtype)

    def _take_shard(self, tp_group, tp_size, parallel_mode, bias):
        if parallel_mode not in ("row", "column", None):
            raise wrong_value(_OP, "parallel_mode", repr(parallel_mode), "'row', 'column' or None")
        if tp_group is not None:
            tp_size = torch.distributed.get_world_size(tp_group)
        self.tp_group, self.tp_size = tp_group, _linear_parameters.positive_int("tp_size", tp_size)
        self.parallel_mode = parallel_mode
        if tp_size > 1 and bias:
            expected = f"False for tp_size = {tp_size}, because nothing is communicated here"
            raise wrong_value(_OP, "bias", True, expected)
        if parallel_mode == "column":
            self.out_features = _linear_parameters.shard_size(
                "out_features", self.out_features, tp_size
            )
        elif parallel_mode == "row":
            self.in_features = _linear_parameters.shard_size(
                "in_features", self.in_features, tp_size
            )

    def forward(
        self, inp: Tensor, m_splits: Sizes, is_first_microbatch: bool | None = None, out: Tensor | None = None, dgrad_out: Tensor | None = None, *, scales: Tensor | None = None
    ) -> Any:
        """inp [..., in_features]; m_splits: rows of each expert, a list or a tensor on either device; scales [rows].

        `out` takes the result and dgrad_out the gradient of inp, both [rows, features]; their rows behind the last split
        keep what they hold. is_first_microbatch=True has main_grad replaced instead of added to, and with a recipe the
        weights quantised again; False uses those that were quantised before, if they haven't changed. Returns y, or with
        return_bias (y, bias), where bias is the list of biases, or the parameter itself with single_grouped_bias.
        """
        if not isinstance(inp, torch.Tensor):
            raise wrong_type(_OP, "inp", inp, "a torch.Tensor")
        if inp.dim() < 2 or inp.shape[-1] != self.in_features:
            expected = f"[..., in_features = {self.in_features}]"
            raise wrong_value(_OP, "inp.shape", list(inp.shape), expected)
        splits = _arguments.sizes(_OP, "m_splits", m_splits)
        if splits.dim() != 1 or splits.shape[0] != self.num_gemms:
            expected = f"[{self.num_gemms}]: one for each expert"
            raise wrong_value(_OP, "m_splits.shape", list(splits.shape), expected)
        if not isinstance(is_first_microbatch, (bool, type(None))):
            raise wrong_type(_OP, "is_first_microbatch", is_first_microbatch, "a bool or None")
        if scales is not None and not self.apply_bias:
            expected = "None: they scale a bias, and none is added here"
            raise wrong_value(_OP, "scales", "given", expected)
        try:
            if (
                self.recipe is not None
                or self.delay_wgrad_compute
                or self.fuse_wgrad_accumulation
                or out is not None
                or dgrad_out is not None
            ):
                buffers = _linear_pass.Buffers(out, dgrad_out, is_first_microbatch)
                y = _linear_pass.run(self, inp, splits, scales, buffers)
            else:
                y = gmm(
                    inp.reshape(-1, self.in_features),
                    one_or_list(self.weights(), self.single_grouped_weight),
                    splits,
                    transpose_rhs=True,
                    bias=one_or_list(self.biases(), self.single_grouped_bias)
                    if self.apply_bias
                    else None,
                    bias_scale=scales,
                    tail="forbid" if self.strict_splits else "zero",
                )
        except (ValueError, TypeError, NotImplementedError) as error:
            raise _in_own_words(error) from None
        y = y.view(*inp.shape[:-1], self.out_features)
        return (y, self._returned_bias()) if self.return_bias else y

    def products(self, is_first_microbatch: bool | None) -> Any:
        """What a pass multiplies."""
        if self.recipe is None:
            return _linear_products.Products(self)
        return _linear_products.ScaledProducts(self, is_first_microbatch)

    def quantised_weights(self, is_first_microbatch: bool | None, *, columns: bool) -> Any:
        """The weights in FP8 (_recipes.Weights), made now or before."""
        if self.params_dtype in _linear_parameters.FP8:
            weights = one_or_list(self.weights(), self.single_grouped_weight)
            scales = one_or_list(self.scales_of_weights(), self.single_grouped_weight)
            return _recipes.given_weights(self.recipe.mode, weights, scales)
        return self._kept_weights.get(
            self.recipe,
            "weight",
            self.weights(),
            columns=columns,
            is_first_microbatch=is_first_microbatch,
        )

    def refresh(self) -> None:
        """Has the weights quantised again: after a change that their version counters don't show, one through .data say."""
        self._kept_weights.refresh()

    def output_dtype(self, x: Tensor) -> torch.dtype | None:
        """The dtype of y for rows x; None where it is that of the product."""
        return None if self.recipe is None else _arguments.autocast(x, [])[0].dtype

    def _returned_bias(self):
        if not self.use_bias:
            return [None] * self.num_gemms
        return one_or_list(self.biases(), self.single_grouped_bias)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Keeps the group for whoever asks; nothing is communicated here."""
        self.tp_group = tp_group

    def need_backward_dw(self) -> bool:
        """Whether backward leaves the weights' gradients to backward_dw()."""
        return self.delay_wgrad_compute

    def backward_dw(self) -> None:
        """Computes the oldest weight gradient that backward left, adding to what .grad (or main_grad) holds.

        Does nothing when there is none. What was kept for it is let go.
        """
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
        parts = [f"{self.num_gemms}, in_features={self.in_features}"]
        parts += [f"out_features={self.out_features}, bias={self.use_bias}"]
        flags = ("single_grouped_weight", "single_grouped_bias", "strict_splits")
        if self.recipe is not None:
            parts.append(f"recipe={self.recipe.mode!r}")
        return ", ".join(parts + [f"{flag}=True" for flag in flags if getattr(self, flag)])
