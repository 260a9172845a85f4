"""MXFP4 weights in gpt-oss's layout: each value as ml_dtypes reads it, and a layer of them beside the same one in bf16."""

import cadre.torch
import ml_dtypes
import numpy
import pytest
import torch
from cadre.torch import dequantize, moe_mlp, mxfp4_weights
from torch_oracle import equal

E, H, I, TOKENS, TOP_K = 4, 96, 64, 20, 2


def packed(rng, experts, n, k):
    """(blocks, scales, values): the values in f64, by ml_dtypes alone."""
    codes = rng.integers(0, 16, (experts, n, k // 32, 32), dtype=numpy.uint8)
    exponents = rng.integers(118, 126, (experts, n, k // 32), dtype=numpy.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype("f8")
    values = values * exponents.view(ml_dtypes.float8_e8m0fnu).astype("f8")[..., None]
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    return torch.from_numpy(blocks), torch.from_numpy(exponents), values.reshape(experts, n, k)


def test_every_pair_of_codes_keeps_its_values(device):
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16)
    scales = torch.arange(119, 135, dtype=torch.uint8).view(1, 16, 1)
    weights = mxfp4_weights(blocks.to(device), scales.to(device))
    assert weights.mode == "mx" and weights.data.shape == (1, 16, 32) and weights.data.device.type == device
    pairs = numpy.arange(256, dtype=numpy.uint8)
    codes = numpy.stack([pairs & 15, pairs >> 4], -1).reshape(16, 32)
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype("f4") * 2.0 ** numpy.arange(-8, 8)[:, None]
    for dtype in (torch.float32, torch.bfloat16):
        values = dequantize(weights, out_dtype=dtype)[0].float().cpu().numpy()
        assert (values == expected).all() and (numpy.signbit(values) == numpy.signbit(expected)).all()


def test_types_of_torch_s_own_name_the_same_bits(rng):
    blocks, scales, _ = packed(rng, 2, 3, 64)
    expected = dequantize(mxfp4_weights(blocks, scales))
    assert equal(dequantize(mxfp4_weights(blocks, scales.view(torch.float8_e8m0fnu))), expected)
    if hasattr(torch, "float4_e2m1fn_x2"):
        assert equal(dequantize(mxfp4_weights(blocks.view(torch.float4_e2m1fn_x2), scales)), expected)


def test_a_layer_of_gpt_oss(rng, device):
    """Gate and up interleaved, clamped, with biases: in bf16 exactly the layer of the values, in FP8 near to it."""
    made = [packed(rng, E, 2 * I, H), packed(rng, E, H, I)]
    weights = [mxfp4_weights(blocks.to(device), scales.to(device)) for blocks, scales, _ in made]
    wide = [dequantize(each) for each in weights]
    for each, (_, _, values) in zip(wide, made):
        assert (each.double().cpu().numpy() == values).all()
    x = torch.randn(TOKENS, H, device=device).bfloat16()
    biases = {"bias13": torch.randn(E, 2 * I, device=device).bfloat16(), "bias2": torch.randn(E, H, device=device).bfloat16()}
    router, ids = cadre.torch.select_experts(torch.randn(TOKENS, E, device=device), TOP_K)
    options = {**biases, "activation": "clamped_swiglu", "interleaved": True}
    with torch.no_grad():
        exact = moe_mlp(x, ids, router, *wide, **options)
        ours = moe_mlp(x, ids, router, *weights, recipe="mx", **options)
    error = ((ours.double() - exact.double()).norm() / exact.double().norm()).item()
    # The weights are exact: what is off is the activations, twice, by 0.027 of e4m3 in the mean square (docs/numerics.md).
    assert 0.001 < error < 0.06


BAD_INPUT = {
    "blocks of floats": (lambda b, s: (b.float(), s), TypeError, "blocks.dtype = torch.float32, expected torch.uint8"),
    "scales in f32": (lambda b, s: (b, s.float()), TypeError, "scales.dtype = torch.float32, expected torch.uint8"),
    "no blocks": (lambda b, s: (b.flatten(2), s), ValueError, r"blocks.shape = \[2, 3, 32\], expected 4 dimensions"),
    "half blocks": (lambda b, s: (b[..., :8], s), ValueError, r"blocks.shape\[3\] = 8, expected 16 bytes, of 32 values"),
    "other scales": (lambda b, s: (b, s[:, :2]), ValueError, r"scales.shape = \[2, 2, 2\], expected \[2, 3, 2\]"),
    "a list": (lambda b, s: ([b], s), TypeError, "blocks is a list, expected a torch.Tensor"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(rng, name):
    change, kind, message = BAD_INPUT[name]
    blocks, scales, _ = packed(rng, 2, 3, 64)
    with pytest.raises(kind, match=f"mxfp4_weights: {message}"):
        mxfp4_weights(*change(blocks, scales))
