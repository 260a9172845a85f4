"""experts_implementation="cadre" for Hugging Face's models in FP8 (FP8Experts); transformers.py registers it where
transformers has a table for them."""

import torch

from ..._errors import wrong_value
from .._moe_mlp import moe_mlp
from .._scaled import ScaledTensor

_OP = "cadre's FP8 experts"


def experts_forward(
    self,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    options: dict,
) -> torch.Tensor:
    """An FP8Experts module's forward: hidden_states [t, h], top_k_index and top_k_weights [t, k] -> [t, h].

    Weights are the module's own, frozen; activations are quantised by its recipe: blocks of 128, or rows where the weights
    have one scale each. options: moe_mlp's, for the activation.
    """
    if self.activation_scheme != "dynamic":
        raise wrong_value(_OP, "activation_scheme", repr(self.activation_scheme), "'dynamic'")
    block_size = None if self.block_size is None else tuple(self.block_size)
    if block_size not in (None, (128, 128)):
        raise wrong_value(_OP, "block_size", block_size, "(128, 128) or None")
    recipe = "row" if block_size is None else "block_128"
    names = "gate_up_proj" if self.has_gate else "up_proj", "down_proj"
    w13, w2 = (_weights(self, name, recipe) for name in names)
    return moe_mlp(
        hidden_states, top_k_index, top_k_weights, w13, w2, recipe=recipe, num_experts=self.num_experts, **options
    )


def _weights(module, name, recipe):
    data, scales = getattr(module, name).detach(), getattr(module, f"{name}_scale_inv").detach()
    if data.element_size() != 1 or data.dtype == torch.int8:
        raise wrong_value(_OP, f"{name}.dtype", data.dtype, "torch.float8_e4m3fn")
    if recipe == "block_128":
        return ScaledTensor(data, scales, recipe)
    # One scale for each matrix, or one for the gate's half and one for the up's.
    experts, n, _ = data.shape
    return ScaledTensor(data, scales.float().flatten(1).repeat_interleave(n // scales.shape[1], 1), recipe)
