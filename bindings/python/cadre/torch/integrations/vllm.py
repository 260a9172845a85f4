"""The experts of vLLM: implementations of its FusedMoEExpertsModular, chosen where it would take its Triton kernels.

    VLLM_PLUGINS=cadre vllm serve ...

Weights w1 [e, 2n, k] and w2 [e, k, n] are taken as vLLM has them. A token's bits don't depend on the batch, so both classes say
that they are batch-invariant. Run inside vLLM's Python sources (a014e35f38c, August 2026) on a CPU, never in vLLM on a GPU.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from ..._errors import wrong_value
from .._grouped_gemm import grouped_gemm
from .._grouped_tensor import GroupedTensor
from .._moe_mlp import moe_mlp

_OP = "cadre.torch.integrations.vllm"
_LAYERS = "vllm.model_executor.layers.fused_moe"
#: The name of a MoEActivation -> moe_mlp's, and whether gate and up lie side by side. Those of gpt-oss read alpha and limit.
_ACTIVATIONS = {
    "SILU": ("swiglu", False),
    "GELU": ("geglu", False),
    "GELU_TANH": ("geglu_tanh", False),
    "SWIGLUOAI": ("clamped_swiglu", True),
    "SWIGLUOAI_UNINTERLEAVE": ("clamped_swiglu", False),
    "SILU_NO_MUL": ("silu", False),
    "GELU_NO_MUL": ("gelu", False),
    "GELU_TANH_NO_MUL": ("gelu_tanh", False),
    "RELU2_NO_MUL": ("relu2", False),
}


def activation_options(activation: Any, config: Any) -> dict[str, Any]:
    """moe_mlp's arguments for a MoEActivation and the ApplyMoEActivationConfig beside it (clamp_limit, alpha, beta).

    >>> from types import SimpleNamespace
    >>> from cadre.torch.integrations import vllm
    >>> vllm.activation_options(SimpleNamespace(name="GELU"), SimpleNamespace(clamp_limit=None))
    {'activation': 'geglu'}
    """
    name, interleaved = _ACTIVATIONS[activation.name]
    if activation.name == "SWIGLUOAI":
        return {"activation": name, "interleaved": interleaved}  # its numbers are fixed: moe_mlp's defaults
    if activation.name == "SWIGLUOAI_UNINTERLEAVE" and config.clamp_limit is None:
        raise wrong_value(_OP, "gemm1_clamp_limit", None, "a number for SWIGLUOAI_UNINTERLEAVE")
    if config.clamp_limit is None or activation.name not in ("SILU", "SWIGLUOAI_UNINTERLEAVE"):
        return {"activation": name}
    alpha, beta = (1.0, 0.0) if activation.name == "SILU" else (config.alpha, config.beta)
    return {"activation": "clamped_swiglu", "alpha": alpha, "limit": config.clamp_limit, "up_offset": beta}


def standard(
    output: Tensor,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    weights: Tensor | None,
    ids: Tensor,
    expert_map: Tensor | None,
    biases: tuple[Tensor | None, Tensor | None],
    options: dict[str, Any],
) -> None:
    """output [m, k] = the weighted sum of the results of x [m, k] by the experts ids [m, top_k].

    expert_map [all experts]: the place of each expert here, or -1; None where all are here. Ids below 0 are nobody's.
    weights [m, top_k]; w1 [e, 2n, k], w2 [e, k, n].

    >>> from cadre.torch.integrations import vllm
    >>> x, out = torch.ones(6, 4), torch.empty(6, 4)
    >>> ids, weights = torch.tensor([[0, 2]] * 6), torch.full((6, 2), 0.5)
    >>> w1, w2 = torch.ones(3, 16, 4), torch.ones(3, 4, 8)
    >>> vllm.standard(out, x, w1, w2, weights, ids, None, (None, None), {"activation": "swiglu"})
    >>> out.shape
    torch.Size([6, 4])
    """
    if expert_map is not None:
        here = expert_map.index_select(0, ids.clamp(min=0).view(-1)).view(ids.shape)
        ids = torch.where(ids < 0, -1, here.to(ids.dtype))
    bias13, bias2 = biases
    output.copy_(moe_mlp(x, ids, weights, w1, w2, bias13=bias13, bias2=bias2, **options))


def masked_product(out: Tensor, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """out[i, :counts[i]] = x[i, :counts[i]] @ weight[i]^T: x [e, max_m, k], weight [e, n, k], out [e, max_m, n], both contiguous.

    Groups that lie max_m rows apart, of as many rows as counts [e] says, which the host never reads; other rows stay.

    >>> from cadre.torch.integrations import vllm
    >>> out = torch.zeros(3, 2, 5)
    >>> vllm.masked_product(out, torch.ones(3, 2, 4), torch.ones(3, 5, 4), torch.tensor([2, 0, 1]))[:, :, 0]
    tensor([[4., 4.],
            [0., 0.],
            [4., 0.]])
    """

    def rows(tensor: Tensor) -> GroupedTensor:
        experts, most, columns = tensor.shape
        starts = torch.arange(experts, device=tensor.device) * (most * columns)
        return GroupedTensor.packed(tensor.view(-1), counts, columns, offsets=starts, max_rows=most)

    grouped_gemm(rows(x), GroupedTensor.stacked(weight), transb=True, d=rows(out))
    return out


@functools.cache
def experts_classes() -> tuple[type, type]:
    """(CadreExperts, CadreBatchedExperts): for tokens [m, k], and for the masked form [e, max_m, k] of batched dispatchers.

    >>> from cadre.torch.integrations import vllm
    >>> tokens, batched = vllm.experts_classes()  # doctest: +SKIP
    """
    kernel = _vllm(f"{_LAYERS}.modular_kernel")
    reduce = _vllm(f"{_LAYERS}.topk_weight_and_reduce")
    platform = _vllm("vllm.platforms")

    class _Experts(kernel.FusedMoEExpertsModular):
        @staticmethod
        def _supports_current_device():
            return platform.current_platform.is_cuda() and platform.current_platform.has_device_capability(80)

        @staticmethod
        def _supports_no_act_and_mul():
            return True

        @staticmethod
        def _supports_quant_scheme(weight_key, activation_key):
            return weight_key is None and activation_key is None

        @staticmethod
        def _supports_activation(activation):
            return activation.name in _ACTIVATIONS

        @staticmethod
        def _supports_parallel_config(moe_parallel_config):
            # Theirs bring rows in a form of their own.
            return not (
                moe_parallel_config.use_fi_nvl_two_sided_kernels or moe_parallel_config.use_fi_nvl_one_sided_kernels
            )

        @staticmethod
        def _supports_batch_invariance():
            return True

        def _refuse_scales(self, a1q_scale, a2_scale):
            for name, scale in (("a1q_scale", a1q_scale), ("a2_scale", a2_scale)):
                if scale is not None:
                    raise wrong_value(_OP, name, "given", "None: rows are taken as they are")

    class CadreExperts(_Experts):
        @staticmethod
        def activation_format():
            return kernel.FusedMoEActivationFormat.Standard

        def finalize_weight_and_reduce_impl(self):
            return reduce.TopKWeightAndReduceNoOP()  # apply() has done both

        def workspace_shapes(
            self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
        ):
            return (0,), (0,), (M, K)

        def apply(
            self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
            a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
        ):  # fmt: skip
            self._refuse_scales(a1q_scale, a2_scale)
            weights = None if apply_router_weight_on_input else topk_weights
            options = activation_options(activation, self.activation_config)
            biases = self.w1_bias, self.w2_bias
            standard(output, hidden_states, w1, w2, weights, topk_ids, expert_map, biases, options)

    class CadreBatchedExperts(_Experts):
        @staticmethod
        def activation_format():
            return kernel.FusedMoEActivationFormat.BatchedExperts

        def finalize_weight_and_reduce_impl(self):
            return reduce.TopKWeightAndReduceDelegate()

        def workspace_shapes(
            self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
        ):
            rows = local_num_experts, self.max_num_tokens * self.num_dispatchers
            return (*rows, N), (*rows, self.adjust_N_for_activation(N, activation)), (*rows, K)

        def apply(
            self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
            a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
        ):  # fmt: skip
            self._refuse_scales(a1q_scale, a2_scale)
            if self.w1_bias is not None or self.w2_bias is not None:
                raise wrong_value(_OP, "w1_bias and w2_bias", "given", "None for batched experts, as in vLLM's own")
            if expert_tokens_meta is None:
                raise wrong_value(_OP, "expert_tokens_meta", None, "the number of rows of each expert")
            experts, most, _ = hidden_states.shape
            counts, columns = expert_tokens_meta.expert_num_tokens, w1.shape[1]
            inner = self.adjust_N_for_activation(columns, activation)
            hidden = workspace13.view(-1)[: experts * most * columns].view(experts, most, columns)
            activated = workspace2.view(-1)[: experts * most * inner].view(experts, most, inner)
            masked_product(hidden, hidden_states, w1, counts)
            # vLLM's own function, of every row: what lies behind an expert's rows is read by nobody.
            self.activation(activation, activated.view(-1, inner), hidden.view(-1, columns))
            masked_product(output, activated, w2, counts)

    return CadreExperts, CadreBatchedExperts


def register() -> None:
    """Has vLLM choose cadre's experts wherever it would have chosen Triton's, for weights that aren't quantised and no LoRA.

    >>> from cadre.torch.integrations import vllm
    >>> vllm.register()  # doctest: +SKIP
    """
    oracle = _vllm(f"{_LAYERS}.oracle.unquantized")
    if hasattr(oracle.select_unquantized_moe_backend, "by_cadre"):
        return
    original = oracle.select_unquantized_moe_backend

    @functools.wraps(original)
    def select_unquantized_moe_backend(moe_config):
        backend, experts = original(moe_config)
        if backend.name in ("TRITON", "BATCHED_TRITON"):
            for ours in experts_classes():
                taken, _ = ours.is_supported_config(ours, moe_config, None, None, experts.activation_format())
                if taken:
                    return backend, ours
        return backend, experts

    select_unquantized_moe_backend.by_cadre = True
    oracle.select_unquantized_moe_backend = select_unquantized_moe_backend
    # Imported by name there.
    _vllm(f"{_LAYERS}.unquantized_fused_moe_method").select_unquantized_moe_backend = select_unquantized_moe_backend


def _vllm(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        raise ImportError(f"{_OP}: {name} is not here: pip install vllm") from error
