"""A model of Hugging Face's with cadre's experts: one import and one argument.

The model here is tiny and random, so that the example needs no download; with a real one use
AutoModelForCausalLM.from_pretrained(name, experts_implementation="cadre").
"""

import cadre.torch.integrations.transformers  # noqa: F401 (registers "cadre")
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    moe_intermediate_size=48,
    num_experts=8,
    num_experts_per_tok=2,
)
model = Qwen3MoeForCausalLM(config)
tokens = torch.randint(0, config.vocab_size, (2, 12))

model.set_experts_implementation("eager")
expected = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
model.set_experts_implementation("cadre")
generated = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
print("the same tokens as eager:", torch.equal(generated, expected))

loss = model(input_ids=tokens, labels=tokens).loss
loss.backward()
experts = model.model.layers[0].mlp.experts
print(f"loss {loss.item():.3f}, gradient of the first layer's experts {experts.gate_up_proj.grad.norm():.4f}")
