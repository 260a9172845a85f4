"""transformer_engine.pytorch.ops over cadre: GroupedLinear with the names that module gives its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._errors import wrong_value
from .. import _grouped_linear
from .._errors import renamed

_OP = "GroupedLinear"
#: From the words of cadre.torch.GroupedLinear to those of this class, for messages.
_WORDS = {
    "num_gemms": "num_groups",
    "inp": "input",
    "m_splits": "split_sizes",
    "out": "output",
    "dgrad_out": "grad_input",
    "fuse_wgrad_accumulation": "accumulate_into_main_grad",
}


def _kaiming(weight):
    torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))


class GroupedLinear(_grouped_linear.GroupedLinear):
    """cadre.torch.GroupedLinear called as op(input, split_sizes) or, with scale_bias, op(input, split_sizes, scales).

    The keywords `output` and `grad_input` of a call are buffers for the result and for the gradient of the input.
    Weights start as those of torch.nn.Linear do. Fusing with other ops (te.ops.Sequential) is not done here.

    >>> from cadre.torch.compat import transformer_engine_ops
    >>> experts = transformer_engine_ops.GroupedLinear(3, in_features=4, out_features=5)
    >>> experts(torch.ones(6, 4), torch.tensor([2, 0, 4])).shape  # [rows, in_features], [num_groups] -> [rows, out_features]
    torch.Size([6, 5])
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        rng_state_tracker_function: Callable[[], Any] | None = None,
        accumulate_into_main_grad: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        delay_wgrad_compute: bool = False,
        scale_bias: bool = False,
    ) -> None:
        try:
            super().__init__(
                num_groups,
                in_features,
                out_features,
                bias=bias,
                device=device,
                dtype=dtype,
                init_method=_kaiming,
                get_rng_state_tracker=rng_state_tracker_function,
                fuse_wgrad_accumulation=accumulate_into_main_grad,
                single_grouped_weight=single_grouped_weight,
                single_grouped_bias=single_grouped_bias,
                delay_wgrad_compute=delay_wgrad_compute,
            )
        except (ValueError, TypeError) as error:
            raise renamed(error, _WORDS) from None
        self.num_groups = self.num_gemms
        # As in the original, scale_bias without a bias asks for no scales.
        self.scale_bias = bool(scale_bias) and self.use_bias
        self.num_extra_inputs = 2 if self.scale_bias else 1

    @property
    def has_bias(self) -> bool:
        return self.use_bias

    def forward(
        self,
        input: Tensor,
        *extra_inputs: Tensor,
        output: Tensor | None = None,
        grad_input: Tensor | None = None,
    ) -> Tensor:
        if len(extra_inputs) != self.num_extra_inputs:
            wanted = "split_sizes and scales" if self.scale_bias else "split_sizes"
            received = f"{len(extra_inputs)} tensors"
            raise wrong_value(_OP, "extra inputs", received, wanted)
        splits, *scales = extra_inputs
        scales = scales[0] if scales else None
        try:
            return super().forward(input, splits, None, output, grad_input, scales=scales)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise renamed(error, _WORDS) from None
