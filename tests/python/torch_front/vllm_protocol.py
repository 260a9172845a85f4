"""A stand-in for vLLM with the names, abstract methods and signatures of its interface (a014e35f38c, August 2026), for tests of
cadre.torch.integrations.vllm. Nothing of vLLM's is computed here but its activation of rows."""

import enum
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import torch.nn.functional as F

LAYERS = "vllm.model_executor.layers.fused_moe"


class MoEActivation(enum.Enum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    SWIGLUOAI = "swigluoai"
    SWIGLUOAI_UNINTERLEAVE = "swigluoai_uninterleave"
    SWIGLUSTEP = "swiglustep"
    SILU_NO_MUL = "silu_no_mul"
    GELU_NO_MUL = "gelu_no_mul"
    GELU_TANH_NO_MUL = "gelu_tanh_no_mul"
    RELU2_NO_MUL = "relu2_no_mul"

    @property
    def is_gated(self):
        return not self.value.endswith("_no_mul")


class FusedMoEActivationFormat(enum.Enum):
    Standard = ("standard",)
    BatchedExperts = ("batched_experts",)


class UnquantizedMoeBackend(enum.Enum):
    TRITON = "TRITON"
    BATCHED_TRITON = "BATCHED_TRITON"
    FLASHINFER_CUTLASS = "FlashInfer CUTLASS"


class FusedMoEExperts(ABC):
    def __init__(self, moe_config, quant_config, max_num_tokens=None, num_dispatchers=None):
        self.moe_config, self.quant_config = moe_config, quant_config
        self.activation_config = moe_config.activation_config
        self.max_num_tokens, self.num_dispatchers = max_num_tokens, num_dispatchers

    @staticmethod
    @abstractmethod
    def activation_format(): ...

    @staticmethod
    def is_supported_config(cls, moe_config, weight_key, activation_key, activation_format):
        answers = {
            "device": cls._supports_current_device(),
            "no_act_and_mul": moe_config.activation.is_gated or cls._supports_no_act_and_mul(),
            "activation": cls._supports_activation(moe_config.activation),
            "quant_scheme": cls._supports_quant_scheme(weight_key, activation_key),
            "parallel_config": cls._supports_parallel_config(moe_config.moe_parallel_config),
            "activation_format": activation_format == cls.activation_format(),
            "batch_invariance": cls._supports_batch_invariance(),
            "LoRA": not moe_config.is_lora_enabled or cls.supports_lora(),
        }
        for name, answer in answers.items():
            if not answer:
                return False, f"kernel does not support {name}"
        return True, None

    @staticmethod
    @abstractmethod
    def _supports_current_device(): ...

    @staticmethod
    @abstractmethod
    def _supports_no_act_and_mul(): ...

    @staticmethod
    @abstractmethod
    def _supports_quant_scheme(weight_key, activation_key): ...

    @staticmethod
    @abstractmethod
    def _supports_activation(activation): ...

    @staticmethod
    @abstractmethod
    def _supports_parallel_config(moe_parallel_config): ...

    @staticmethod
    def _supports_batch_invariance():
        return False

    @staticmethod
    def supports_lora():
        return False

    @property
    def w1_bias(self):
        return self.quant_config.w1_bias

    @property
    def w2_bias(self):
        return self.quant_config.w2_bias


class FusedMoEExpertsModular(FusedMoEExperts):
    @abstractmethod
    def workspace_shapes(
        self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
    ): ...

    @staticmethod
    def adjust_N_for_activation(N, activation):
        return N // 2 if activation.is_gated else N

    def activation(self, activation, output, input, *, topk_ids=None, expert_map=None):
        assert activation == MoEActivation.SILU and input.dim() == output.dim() == 2
        gate, up = input.chunk(2, -1)
        output.copy_(F.silu(gate) * up)

    @abstractmethod
    def finalize_weight_and_reduce_impl(self): ...

    @abstractmethod
    def apply(
        self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map,
        a1q_scale, a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
    ): ...  # fmt: skip


def modules():
    """name -> module, of what the integration imports. The platform is an H200; `chosen` is what vLLM would choose."""

    class Triton:
        @staticmethod
        def activation_format():
            return FusedMoEActivationFormat.Standard

    def select_unquantized_moe_backend(moe_config):
        return moe_config.chosen, Triton

    contents = {
        "modular_kernel": {
            "FusedMoEExpertsModular": FusedMoEExpertsModular, "FusedMoEActivationFormat": FusedMoEActivationFormat,
        },
        "topk_weight_and_reduce": {
            "TopKWeightAndReduceNoOP": type("TopKWeightAndReduceNoOP", (), {}),
            "TopKWeightAndReduceDelegate": type("TopKWeightAndReduceDelegate", (), {}),
        },
        "oracle.unquantized": {"select_unquantized_moe_backend": select_unquantized_moe_backend},
        "unquantized_fused_moe_method": {"select_unquantized_moe_backend": select_unquantized_moe_backend},
    }  # fmt: skip
    made = {}
    for name, members in contents.items():
        made[f"{LAYERS}.{name}"] = module = ModuleType(name)
        module.__dict__.update(members)
    h200 = SimpleNamespace(is_cuda=lambda: True, has_device_capability=lambda capability: capability <= 90)
    made["vllm.platforms"] = platforms = ModuleType("platforms")
    platforms.current_platform = h200
    return made
