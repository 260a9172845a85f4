"""Tensors of several devices in one call: `meta` beside real ones, the host beside a GPU."""

import cadre.torch as T
import pytest
import torch
from torch_oracle import random

SIZES = [2, 0, 6]


def lhs(requires_grad=False):
    return random(8, 5, requires_grad=requires_grad)


def rhs():
    return random(3, 5, 4)


def on_meta(tensor):
    return torch.empty_like(tensor, device="meta")


META_BESIDE_REAL = {
    "rhs": (lambda: T.gmm(lhs(), on_meta(rhs()), SIZES), "gmm: rhs.device = meta, expected lhs"),
    "lhs": (lambda: T.gmm(on_meta(lhs()), rhs(), SIZES), "gmm: rhs.device = cpu, expected lhs"),
    "sizes": (
        lambda: T.gmm(lhs(), rhs(), on_meta(torch.tensor(SIZES))),
        "gmm: group_sizes.device = meta, expected lhs.device = cpu",
    ),
    "of a list": (
        lambda: T.gmm(lhs(), [rhs()[0], on_meta(rhs()[0]), rhs()[1]], SIZES),
        r"gmm: rhs\[1\].device = meta, expected lhs.device = cpu",
    ),
    "bias": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=on_meta(random(3, 4))),
        "gmm: bias.device = meta, expected lhs.device = cpu",
    ),
    "out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=on_meta(random(8, 4))),
        "gmm: out.device = meta, expected lhs.device = cpu",
    ),
    "all but out": (
        lambda: T.gmm(on_meta(lhs()), on_meta(rhs()), SIZES, out=random(8, 4)),
        "gmm: out.device = cpu, expected lhs.device = meta",
    ),
    "wanting a gradient": (
        lambda: T.gmm(lhs(True), on_meta(rhs()), SIZES),
        "gmm: rhs.device = meta, expected lhs.device = cpu",
    ),
    "of tgmm": (
        lambda: T.tgmm(lhs(), on_meta(lhs()), SIZES),
        "tgmm: rhs.device = meta, expected lhs.device = cpu",
    ),
    "of bias_grad": (
        lambda: T.bias_grad(lhs(), SIZES, bias_scale=on_meta(random(8))),
        "bias_grad: bias_scale.device = meta, expected dy.device = cpu",
    ),
    "of grouped_gemm": (
        lambda: T.grouped_gemm(rhs(), on_meta(random(3, 4, 6))),
        "grouped_gemm: b.device = meta, expected a.device = cpu",
    ),
    "of grouped_mm": (
        lambda: T.grouped_mm(lhs(), on_meta(rhs()), offs=[2, 2, 8]),
        "grouped_mm: mat_b.device = meta, expected mat_a.device = cpu",
    ),
}


@pytest.mark.parametrize("case", META_BESIDE_REAL)
def test_tensors_without_memory_are_not_mixed_with_real_ones(case):
    call, message = META_BESIDE_REAL[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_tensors_on_meta_give_shape_and_dtype():
    out = T.gmm(on_meta(lhs()).bfloat16(), on_meta(rhs()).bfloat16(), SIZES)
    assert (out.shape, out.dtype, out.device.type) == ((8, 4), torch.bfloat16, "meta")


@pytest.mark.gpu
def test_devices_may_not_be_mixed():
    with pytest.raises(ValueError, match="gmm: rhs.device = cpu, expected .*cuda:0"):
        T.gmm(lhs().cuda(), rhs(), SIZES)
    with pytest.raises(ValueError, match="gmm: rhs.device = cuda:0, expected .*cpu"):
        T.gmm(lhs(), rhs().cuda(), SIZES)
