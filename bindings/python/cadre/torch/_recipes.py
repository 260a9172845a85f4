"""How a layer computes in FP8: what is quantised to what, and weights that stay quantised until they change.

A linear layer is three products, and each operand is quantised along the dim that its product sums over:

    y  = x @ w^T        rows of x, w along in_features
    dx = dy @ w         rows of dy, w along out_features: the weights' `columns`
    dw = dy^T @ x       dy and x along the rows of each expert: their column-wise copies

docs/decisions/0042 has the why of what is kept and when weights are quantised again.
"""

from typing import NamedTuple

import torch

from .. import _scaled as _modes
from .._errors import wrong_value
from . import _scaled
from ._quantize import quantize
from ._scaled import ScaledTensor


class Recipe(NamedTuple):
    """A mode of scaling, and the type that gradients are quantised to. All else is e4m3."""

    mode: str
    gradients: torch.dtype


RECIPES = {mode: Recipe(mode, getattr(torch, dtype)) for mode, dtype in _modes.GRADIENTS.items()}


def recipe_of(op, name):
    """The Recipe of that name; None for None."""
    if name is None:
        return None
    _modes.check_recipe(op, name)
    return RECIPES[name]


class Weights(NamedTuple):
    """Quantised weights: `rows` [g, n, k] for y, and `columns` [g, k, n] for dx where they were made."""

    rows: ScaledTensor
    columns: ScaledTensor | None

    def for_dx(self, op, name):
        """(what dy is multiplied with, gmm's transpose_rhs)"""
        if self.columns is not None:
            return self.columns, True
        # Squares of 128 x 128, and one scale for everything, are the same for either dim.
        if self.rows.mode in ("block_128", "tensor"):
            return self.rows, False
        expected = f"column-wise data for the input's gradient, because {name} is quantised with mode = {self.rows.mode}"
        raise wrong_value(op, f"{name}.columns", None, f"{expected} and along its last dim alone")


def quantise_weights(recipe, weights, *, columns, transposed=False):
    """Weights of one stack [g, n, k] or a list of [n, k]; with `transposed`, [g, k, n] or [k, n]."""
    made = []
    for weight in weights:
        stack = weight.detach() if weight.dim() == 3 else weight.detach().unsqueeze(0)
        wanted = {"rows": columns, "columns": True} if transposed else {"columns": columns}
        result = quantize(stack, recipe.mode, **wanted)
        result = list(result) if isinstance(result, tuple) else [result]
        made.append(result[::-1] if transposed else result)
    parts = [
        each[0] if weights[0].dim() == 3 else _scaled.listed(each) for each in zip(*made, strict=True)
    ]
    return Weights(parts[0], parts[1] if columns else None)


def given_weights(mode, data, scales):
    """Weights that are FP8 already: a stack with its scales, or lists."""
    if mode == "tensor" and isinstance(scales, torch.Tensor):
        scales = scales.reshape(-1)
    return Weights(ScaledTensor(data, scales, mode), None)


def as_weights(value):
    """Weights of a ScaledTensor, or of the two that quantize makes with columns=True; None of anything else."""
    if isinstance(value, ScaledTensor):
        return Weights(value, None)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, ScaledTensor) for each in value):
        return Weights(*value)
    return None


class KeptWeights:
    """Quantised weights of a module, kept as long as they are those of its parameters."""

    def __init__(self):
        self._of = {}

    def refresh(self):
        """Forgets them: after a change that the parameters' version counters don't show, one through .data say."""
        self._of.clear()

    def get(self, recipe, name, weights, *, columns, is_first_microbatch):
        """Weights of the parameters `weights`, under a name of the module's. is_first_microbatch: as in forward."""
        key, (known, kept) = _identity(weights), self._of.get(name, (None, None))
        stays = is_first_microbatch is not True and known is not None and known == key
        if is_first_microbatch is None and not _versions_tell(weights):
            stays = False
        if _is_capturing(weights[0]):
            # A graph quantises by itself, since its replays don't come by here; what it writes holds nothing before one.
            return quantise_weights(recipe, weights, columns=columns)
        if stays and (kept.columns is not None or not columns):
            return kept
        made = quantise_weights(recipe, weights, columns=columns)
        self._of[name] = key, made
        return made

    def __deepcopy__(self, memo):
        return KeptWeights()

    def __reduce__(self):
        return KeptWeights, ()


def _identity(weights):
    """What changes with the values of tensors; None where nothing does."""
    if any(weight.is_inference() for weight in weights):
        return None
    return [(weight.data_ptr(), weight._version, weight.dtype, weight.shape) for weight in weights]


def _versions_tell(weights):
    """Whether version counters show every change. FSDP2 gathers into a parameter without raising its counter; what it
    gathers changes only where it is trained."""
    return not _is_distributed() or not any(weight.requires_grad for weight in weights)


def _is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_capturing(weight):
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()
