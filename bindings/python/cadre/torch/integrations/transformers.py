"""The experts of Hugging Face's models: importing this registers experts_implementation="cadre" with transformers.

    import cadre.torch.integrations.transformers

    model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="cadre")

A model's gate or activation is compared with those that cadre has fused, on numbers, the first time it is called. One that is
none of them runs as it is between cadre's products. Experts that other ranks hold (ids from num_experts on) are left out.
Models whose experts are in FP8 (finegrained_fp8) get cadre's FP8 layer under the same name.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError as error:
    raise ImportError(
        "cadre.torch.integrations.transformers: transformers has no table of experts functions: "
        "pip install 'transformers>=5'"
    ) from error

try:
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
except ImportError:
    ALL_FP8_EXPERTS_FUNCTIONS = None  # an older transformers has no such table

from ... import _structs
from .._activation import Activation
from .._functional import gmm
from .._moe_mlp import moe_mlp
from .._routing import combine, permute, route
from . import _transformers_fp8

NAME = "cadre"
_WITHOUT_GATE = range(_structs.NO_ACTIVATION, _structs.SWIGLU)
_PLAIN_GATES = range(_structs.SWIGLU, _structs.CLAMPED_SWIGLU)


def experts_forward(
    self,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """An experts module's forward: hidden_states [t, h], top_k_index and top_k_weights [t, k] -> [t, h].

    >>> import cadre.torch.integrations.transformers
    >>> from transformers.models.mixtral import configuration_mixtral, modeling_mixtral
    >>> config = configuration_mixtral.MixtralConfig(hidden_size=4, intermediate_size=8, num_local_experts=3)
    >>> config._experts_implementation = "cadre"
    >>> experts = modeling_mixtral.MixtralExperts(config)
    >>> for weight in experts.parameters():
    ...     _ = torch.nn.init.ones_(weight)
    >>> experts(torch.ones(6, 4), torch.tensor([[0, 2]] * 6), torch.full((6, 2), 0.5)).shape
    torch.Size([6, 4])
    """
    up_name = "gate_up_proj" if self.has_gate else "up_proj"
    w13, w2 = getattr(self, up_name), self.down_proj
    bias13 = getattr(self, f"{up_name}_bias") if self.has_bias else None
    bias2 = self.down_proj_bias if self.has_bias else None
    between = self._apply_gate if self.has_gate else self.act_fn
    if self.has_post_expert_norm:
        routing = route(top_k_index, self.num_experts)
        sizes, options = routing.group_sizes, {"transpose_rhs": not self.is_transposed}
        hidden = gmm(permute(hidden_states, routing), w13, sizes, bias=bias13, **options)
        rows = gmm(between(hidden), w2, sizes, bias=bias2, **options)
        return combine(
            self.post_expert_norm(rows), routing, top_k_weights, out_dtype=hidden_states.dtype
        )
    options = _options_of(_activation(self, between)) or {"activation": between}
    return moe_mlp(
        hidden_states,
        top_k_index,
        top_k_weights,
        w13,
        w2,
        bias13=bias13,
        bias2=bias2,
        transposed=self.is_transposed,
        **options,
    )


def _options_of(activation):
    """moe_mlp's, of a fused activation; None where there is none."""
    if activation is None:
        return None
    return {
        "activation": _NAMES[activation.kind],
        "interleaved": activation.interleaved,
        **dict(zip(("alpha", "limit", "up_offset"), activation.clamp, strict=True)),
    }


def fp8_experts_forward(
    self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """The same of a module whose weights are FP8: hidden_states [t, h], top_k_index and top_k_weights [t, k] -> [t, h].

    >>> model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="cadre")  # doctest: +SKIP
    """
    between = self._apply_gate if self.has_gate else self.act_fn
    options = _options_of(_activation(self, between))
    if options is None:
        raise NotImplementedError("cadre's FP8 experts: the model's gate is none of those that cadre has fused")
    return _transformers_fp8.experts_forward(self, hidden_states, top_k_index, top_k_weights, options)


_NAMES = {
    _structs.NO_ACTIVATION: "none",
    _structs.SILU: "silu",
    _structs.GELU_ERF: "gelu",
    _structs.GELU_TANH: "gelu_tanh",
    _structs.RELU2: "relu2",
    _structs.SWIGLU: "swiglu",
    _structs.GEGLU_ERF: "geglu",
    _structs.GEGLU_TANH: "geglu_tanh",
    _structs.CLAMPED_SWIGLU: "clamped_swiglu",
}


def _activation(module, function):
    """The fused activation that computes what `function` does, or None. Found by trying, once for each module."""
    if not hasattr(module, "_cadre_activation"):
        if torch.compiler.is_compiling():
            return None  # nothing can be tried while the module is traced
        module._cadre_activation = _tried(module, function)
    return module._cadre_activation


@torch.no_grad()
def _tried(module, function):
    # Far beyond any limit, so that what is clamped shows.
    generator = torch.Generator().manual_seed(1)
    rows = 30 * torch.randn(64, 32, dtype=torch.float64, generator=generator)
    rows[:32] /= 30
    try:
        expected = function(rows)
    except (RuntimeError, TypeError, ValueError):
        return None  # one that has parameters, say, or takes no f64
    for candidate in _candidates(module):
        result = candidate(rows)
        if result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-6, atol=1e-9):
            return candidate
    return None


def _candidates(module):
    if not module.has_gate:
        for kind in _WITHOUT_GATE:
            yield Activation(kind, False, _clamp())
        return
    alphas, limits = (
        [float(getattr(module, name)) for name in names if getattr(module, name, None) is not None]
        for names in (("alpha", "swiglu_alpha"), ("limit", "swiglu_limit"))
    )
    for interleaved in (False, True):
        for kind in _PLAIN_GATES:
            yield Activation(kind, interleaved, _clamp())
        for alpha, limit, up_offset in itertools.product([*alphas, 1.0], limits, (1.0, 0.0)):
            yield Activation(_structs.CLAMPED_SWIGLU, interleaved, (alpha, limit, up_offset))


def _clamp():
    """What only the clamped gate reads."""
    return (1.702, 7.0, 1.0)


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
if ALL_FP8_EXPERTS_FUNCTIONS is not None:
    ALL_FP8_EXPERTS_FUNCTIONS.register(NAME, fp8_experts_forward)
