"""MXFP4 weights, as gpt-oss ships them, in a form that the products take: their values are e4m3's, their scales mode "mx"'s."""

from __future__ import annotations

import torch

from .._errors import wrong_type, wrong_value
from . import _dtypes
from ._scaled import ScaledTensor
from ._types import Tensor

_OP = "mxfp4_weights"
#: Bytes that share a scale, with two values each.
_BLOCK_BYTES = 16
_PACKED = tuple(dtype for dtype in (torch.uint8, getattr(torch, "float4_e2m1fn_x2", None)) if dtype)


def mxfp4_weights(blocks: Tensor, scales: Tensor) -> ScaledTensor:
    """Weights [g, n, k] in mode "mx", with the values of MXFP4: every e2m1 is an e4m3, so nothing is rounded.

    blocks [g, n, k/32, 16]: two e2m1 codes in a byte (uint8, or float4_e2m1fn_x2), the first in the lower half;
    scales [g, n, k/32]: exponents biased by 127 (uint8, or float8_e8m0fnu). So gpt-oss's `gate_up_proj_blocks` and
    `gate_up_proj_scales` lie. The result takes one byte for a weight, twice that of MXFP4; its scales are those given.

    moe_mlp(..., recipe="mx") multiplies it with activations in FP8; dequantize(...) gives the weights in bf16, for products
    with activations that are not quantised. For inference.

    >>> blocks = torch.full((1, 2, 1, 16), 0x52, dtype=torch.uint8)  # 1 (code 2) and 3 (code 5)
    >>> weights = cadre.torch.mxfp4_weights(blocks, torch.tensor([[[127], [128]]], dtype=torch.uint8))
    >>> cadre.torch.dequantize(weights)[0, :, :4]
    tensor([[1., 3., 1., 3.],
            [2., 6., 2., 6.]], dtype=torch.bfloat16)
    """
    for name, value, rank, known in (
        ("blocks", blocks, 4, _PACKED),
        ("scales", scales, 3, (torch.uint8, torch.float8_e8m0fnu)),
    ):
        if not isinstance(value, torch.Tensor):
            raise wrong_type(_OP, name, value, "a torch.Tensor")
        if value.dtype not in known:
            raise _dtypes.wrong_dtype(_OP, name, value.dtype, known)
        if value.dim() != rank:
            raise wrong_value(_OP, f"{name}.shape", list(value.shape), f"{rank} dimensions")
    if blocks.shape[3] != _BLOCK_BYTES:
        raise wrong_value(_OP, "blocks.shape[3]", blocks.shape[3], f"{_BLOCK_BYTES} bytes, of 32 values")
    if scales.shape != blocks.shape[:3]:
        raise wrong_value(_OP, "scales.shape", list(scales.shape), list(blocks.shape[:3]))
    if scales.device != blocks.device:
        raise wrong_value(_OP, "scales.device", scales.device, f"blocks.device = {blocks.device}")
    packed = blocks.view(torch.uint8)
    codes = _e4m3_of(torch.stack([packed & 0xF, packed >> 4], -1))
    data = codes.flatten(2).view(torch.float8_e4m3fn)
    return ScaledTensor(data, scales.view(torch.float8_e8m0fnu), "mx")


def _e4m3_of(code):
    """e4m3's codes of e2m1's. From 1 on only the exponent's bias differs (7 for 1) and two bits of mantissa follow; 0.5,
    subnormal in e2m1, is normal in e4m3."""
    magnitude = code & 7
    normal = (magnitude + ((7 - 1) << 1)) << 2
    return torch.where(magnitude > 1, normal, magnitude * 0x30) | ((code & 8) << 4)
