"""cadre inside Hugging Face's models: logits, gradients and tokens of tiny random ones against transformers' own experts;
needs requirements/transformers.txt."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

try:
    import transformers
    from transformers.integrations import moe
except ImportError as error:
    pytest.skip(
        f'{error.name} is not installed; to run this: make test FRONTS="torch jax transformers"',
        allow_module_level=True,
    )

from cadre import _structs
from cadre.torch.integrations import transformers as integration

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/10_transformers.py"
VOCABULARY = 64
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
#: name -> (what the classes are called, the configuration beside COMMON, the activation that is fused)
MODELS = {
    "Mixtral": (
        "Mixtral",
        {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
        _structs.SWIGLU,
    ),
    "Qwen3-MoE": (
        "Qwen3Moe",
        {"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3, "head_dim": 8},
        _structs.SWIGLU,
    ),
    "gpt-oss": (
        "GptOss",
        {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
        _structs.CLAMPED_SWIGLU,
    ),
    "DeepSeek-V3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 48,
            "moe_intermediate_size": 20,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        _structs.SWIGLU,
    ),
    "Nemotron-H, without a gate": (
        "NemotronH",
        {
            "layers_block_type": ["moe", "attention"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "moe_shared_expert_intermediate_size": 20,
            "head_dim": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
        },
        _structs.RELU2,
    ),
}


def make(name):
    family, options, _ = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def experts_of(model):
    return [module for module in model.modules() if hasattr(module, "has_post_expert_norm")]


def step(model, implementation, tokens):
    """Logits and every gradient."""
    model.set_experts_implementation(implementation)
    model.zero_grad()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    named = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return output.logits.detach(), {name: each.clone() for name, each in named.items()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.smoke if name == "Mixtral" else ()) for name in MODELS])
def test_logits_gradients_and_tokens_are_those_of_the_eager_model(name):
    model, tokens = make(name), torch.randint(0, VOCABULARY, (2, 9))
    logits, gradients = step(model, "eager", tokens)
    ours, our_gradients = step(model, "cadre", tokens)
    torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-5)
    assert our_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(our_gradients[parameter], gradient, rtol=1e-3, atol=1e-6)
    assert {each._cadre_activation.kind for each in experts_of(model)} == {MODELS[name][2]}

    generated = {}
    for implementation in ("eager", "cadre"):
        model.set_experts_implementation(implementation)
        generated[implementation] = model.generate(
            tokens, max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    assert torch.equal(*generated.values())


class Experts(torch.nn.Module):
    """Experts of any kind, as transformers' decorator wants them."""

    def __init__(self, config):
        super().__init__()
        self.num_experts, h, i = 4, 6, 5
        self.gate_up_proj = torch.nn.Parameter(torch.randn(4, 2 * i, h, dtype=torch.float64))
        self.down_proj = torch.nn.Parameter(torch.randn(4, h, i, dtype=torch.float64))
        self.act_fn = torch.nn.SiLU()
        self.limit = 0.7
        self.post_expert_norm = torch.nn.RMSNorm(h, dtype=torch.float64)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return moe.batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)


def decorated(gate=None, **flags):
    """An instance of a class of its own, with that gate."""
    members = {} if gate is None else {"_apply_gate": gate}
    kind = moe.use_experts_implementation(type("Own", (Experts,), members), **flags)
    return kind(type("Config", (), {"_experts_implementation": "cadre"})())


def tanh_gate(self, gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.tanh(gate) * up


def clamped_gate(self, gate_up):
    """DeepSeek-V4's: no alpha, nothing added to the up part."""
    gate, up = gate_up.chunk(2, dim=-1)
    return self.act_fn(gate.clamp(max=self.limit)) * up.clamp(min=-self.limit, max=self.limit)


def half_clamped_gate(self, gate_up):
    """Step-3's: the activation is clamped, not the gate."""
    gate, up = gate_up.chunk(2, dim=-1)
    return self.act_fn(gate).clamp(max=self.limit) * up.clamp(min=-self.limit, max=self.limit)


GATES = {
    "the default": (None, {}, _structs.SWIGLU),
    "one that nothing is fused for": (tanh_gate, {}, None),
    "clamped without alpha": (clamped_gate, {}, _structs.CLAMPED_SWIGLU),
    "clamped in another way": (half_clamped_gate, {}, None),
    "a norm behind each expert": (None, {"has_post_expert_norm": True}, None),
}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("sentinels", [False, True], ids=["", "some experts elsewhere"])
def test_a_gate_of_any_kind_is_computed_rightly(name, sentinels):
    gate, flags, fused = GATES[name]
    module = decorated(gate, **flags)
    module._is_expert_parallel = sentinels
    x = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    index = torch.randint(0, 4 + sentinels, (11, 3))
    weights = torch.rand(11, 3, dtype=torch.float64)
    weights[index == 4] = 0.0
    weights.requires_grad_()
    inputs = [x, weights, module.gate_up_proj, module.down_proj]
    results = [
        moe.batched_mm_experts_forward(module, x, index, weights),
        module(x, index, weights),
    ]
    torch.testing.assert_close(*results)
    dy = torch.randn(11, 6, dtype=torch.float64)
    for expected, got in zip(*(torch.autograd.grad(y, inputs, dy) for y in results), strict=True):
        torch.testing.assert_close(got, expected)
    found = getattr(module, "_cadre_activation", None)
    assert (found.kind if found else None) == fused


def test_a_compiled_module_is_one_graph_before_and_after_its_first_call():
    x, index = torch.randn(7, 6, dtype=torch.float64), torch.randint(0, 4, (7, 2))
    weights = torch.rand(7, 2, dtype=torch.float64)
    module = decorated()
    fresh = torch.compile(module, fullgraph=True, backend="aot_eager")(x, index, weights)
    expected = module(x, index, weights)
    torch._dynamo.reset()
    tried = torch.compile(module, fullgraph=True, backend="aot_eager")(x, index, weights)
    torch.testing.assert_close(fresh, expected)
    assert torch.equal(tried, expected)


@pytest.mark.smoke
def test_it_is_in_the_table_of_transformers():
    assert moe.ALL_EXPERTS_FUNCTIONS["cadre"] is integration.experts_forward


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], check=True, capture_output=True, text=True
    )
    assert "the same tokens as eager: True" in done.stdout
