"""cadre in the place of Hugging Face's FP8 experts: their own modules, filled with a checkpoint's layout; needs
requirements/transformers.txt."""

import pytest
import torch

try:
    from transformers import Qwen3MoeConfig
    from transformers.integrations import finegrained_fp8 as theirs
except ImportError as error:
    pytest.skip(
        f'{error.name} is not installed; to run this: make test FRONTS="torch jax transformers"',
        allow_module_level=True,
    )

from cadre.torch import dequantize, quantize
from cadre.torch.integrations import transformers as integration

T, H, I, E, TOP_K = 24, 256, 128, 4, 2


def experts(block_size, activation_scheme="dynamic"):
    """One of theirs, and what its weights stand for."""
    config = Qwen3MoeConfig(hidden_size=H, moe_intermediate_size=I, num_experts=E, hidden_act="silu")
    module = theirs.FP8Experts(config, block_size=block_size, activation_scheme=activation_scheme)
    values = []
    for name, shape in (("gate_up_proj", (E, 2 * I, H)), ("down_proj", (E, H, I))):
        dense = torch.randn(shape) * shape[-1] ** -0.5
        scales = getattr(module, f"{name}_scale_inv")
        if block_size is None:
            halves = [quantize(half.contiguous(), "tensor") for half in dense.chunk(scales.shape[1], 1)]
            data = torch.cat([each.data.view(torch.uint8) for each in halves], 1).view(torch.float8_e4m3fn)
            scale = torch.stack([each.scales for each in halves], 1)[..., None]
            values.append(torch.cat([dequantize(each, out_dtype=torch.float32) for each in halves], 1))
        else:
            made = quantize(dense, "block_128")
            data, scale = made.data, made.scales
            values.append(dequantize(made, out_dtype=torch.float32))
        assert scale.shape == scales.shape
        with torch.no_grad():
            getattr(module, name).copy_(data)
            scales.copy_(scale)
    return module, values


@pytest.mark.parametrize("block_size", [(128, 128), None], ids=["blocks", "one scale"])
def test_the_registered_function_computes_what_the_weights_stand_for(block_size):
    module, (w13, w2) = experts(block_size)
    forward = theirs.ALL_FP8_EXPERTS_FUNCTIONS[integration.NAME]
    x, weights = torch.randn(T, H, dtype=torch.bfloat16), torch.rand(T, TOP_K)
    ids = torch.stack([torch.randperm(E)[:TOP_K] for _ in range(T)])
    ids[0, 1] = E  # an expert of another rank
    with torch.no_grad():
        out = forward(module, x, ids, weights)
    expected = torch.zeros(T, H)
    for token in range(T):
        for slot, expert in enumerate(ids[token].tolist()):
            if expert < E:
                activated = module._apply_gate(x[token].float() @ w13[expert].T)
                expected[token] += weights[token, slot] * (activated @ w2[expert].T)
    error = (out.float() - expected).norm() / expected.norm()
    # Two quantised activations in a row, each off by 0.027 in the mean square (docs/numerics.md).
    assert out.dtype == torch.bfloat16 and 0.005 < error < 0.055


def test_what_cadre_does_not_compute_is_refused():
    x, ids, weights = torch.randn(T, H).bfloat16(), torch.zeros(T, 1, dtype=torch.long), torch.ones(T, 1)
    module, _ = experts((128, 128), activation_scheme="static")
    with pytest.raises(ValueError, match="activation_scheme = 'static', expected 'dynamic'"):
        integration.fp8_experts_forward(module, x, ids, weights)
