"""scaled_grouped_mm has the original's parameters and layouts of scales; products against the f64 product of the values.

Layouts as in test/test_scaled_matmul_cuda.py of https://github.com/pytorch/pytorch, commit
67b31a499c553c31acce4962c6bbf48c7a1e9704, and aten/src/ATen/native/cuda/GroupedBlas.cpp.
"""

import inspect

import cadre.torch
import numpy
import oracle
import pytest
import scaled_oracle
import torch
import torch.nn.functional as F
from test_torch_scaled import as_torch
from torch_oracle import assert_close

scaled_grouped_mm = cadre.torch.scaled_grouped_mm
Recipe, Swizzle = F.ScalingType, F.SwizzleType

SIZES = [3, 0, 129, 1, 33]
M, K, N, GROUPS = 170, 160, 75, 5  # four rows are tail
RECIPES = {  # mode: (of rows, of a stack)
    "tensor": (Recipe.TensorWise, Recipe.TensorWise),
    "row": (Recipe.RowWise, Recipe.RowWise),
    "block_128": (Recipe.BlockWise1x128, Recipe.BlockWise128x128),
    "mx": (Recipe.BlockWise1x32, Recipe.BlockWise1x32),
}


def offs(device):
    return torch.tensor(SIZES, device=device).cumsum(0).to(torch.int32)


def torch_scales(scales, mode, device):
    """A stack's scales as torch wants them: those of 128 x 128 with k first."""
    scales = as_torch(scales, device)
    return scales.mT if mode == "block_128" else scales


def made(rng, mode):
    rows = scaled_oracle.rows(rng.standard_normal((M, K)), mode)
    stack = scaled_oracle.weights(rng.standard_normal((GROUPS, N, K)), mode)
    return rows, stack, oracle.gmm(rows[2], stack[2], SIZES, transpose_rhs=True)


def test_parameters_are_the_originals():
    ours, original = (inspect.signature(each).parameters for each in (scaled_grouped_mm, F.scaled_grouped_mm))
    assert [(p.name, p.default, p.kind) for p in ours.values()] == [
        (p.name, p.default, p.kind) for p in original.values()
    ]


@pytest.mark.parametrize("mode", RECIPES)
def test_rows_in_groups_meet_a_stack(rng, device, mode):
    rows, stack, (expected, magnitude) = made(rng, mode)
    mat_a, mat_b = as_torch(rows[0], device), as_torch(stack[0], device).mT
    scale_a, scale_b = as_torch(rows[1], device), torch_scales(stack[1], mode, device)
    recipe_a, recipe_b = RECIPES[mode]
    out = scaled_grouped_mm(mat_a, mat_b, scale_a, recipe_a, scale_b, recipe_b, offs=offs(device))
    assert out.dtype == torch.bfloat16
    assert_close(out, expected, magnitude, K)
    lists = [scale_a], [recipe_a], [scale_b], [recipe_b], [Swizzle.NO_SWIZZLE], [Swizzle.NO_SWIZZLE]
    again = scaled_grouped_mm(mat_a, mat_b, *lists, offs=offs(device), use_fast_accum=True)
    assert_close(again, expected, magnitude, K)


@pytest.mark.parametrize("mode", RECIPES)
def test_a_stack_meets_columns_in_groups(rng, device, mode):
    """Transposed, with mat_a the stack and offs along n."""
    rows, stack, (expected, magnitude) = made(rng, mode)
    mat_b, mat_a = as_torch(rows[0], device).t(), as_torch(stack[0], device)
    scale_b, scale_a = as_torch(rows[1], device), as_torch(stack[1], device)
    recipe_b, recipe_a = RECIPES[mode]
    out = scaled_grouped_mm(mat_a, mat_b, scale_a, recipe_a, scale_b, recipe_b, offs=offs(device))
    assert_close(out, expected.T, magnitude.T, K)


@pytest.mark.parametrize("mode", ["tensor", "row"])
def test_groups_along_k(rng, device, mode):
    made = [scaled_oracle.columns(rng.standard_normal((M, width)), SIZES, mode) for width in (K, N)]
    rows = sum(SIZES)
    parts = []
    for data, _, _ in made:  # the layout of the copy has gaps, torch's hasn't
        starts = numpy.cumsum([0, *(-(-size // 32) * 32 for size in SIZES)])
        parts.append(numpy.concatenate([data[:, s : s + size] for s, size in zip(starts, SIZES)], 1))
    mat_a, mat_b = as_torch(parts[0], device), as_torch(parts[1], device).t()
    scales = [as_torch(scales.reshape(-1), device) for _, scales, _ in made]
    recipe = RECIPES[mode][0]
    out = scaled_grouped_mm(
        mat_a, mat_b, scales[0], recipe, scales[1], recipe, offs=offs(device), output_dtype=torch.float32
    )
    expected, magnitude = oracle.tgmm(made[0][2][:rows], made[1][2][:rows], SIZES)
    assert_close(out, expected, magnitude, max(SIZES) + 2)


@pytest.mark.parametrize("mode", RECIPES)
def test_two_stacks(rng, device, mode):
    a, b = (scaled_oracle.weights(rng.standard_normal((3, rows, K)), mode) for rows in (20, N))
    if mode == "block_128":
        each = [scaled_oracle.rows(matrix, mode) for matrix in rng.standard_normal((3, 20, K))]
        a = [numpy.stack(parts) for parts in zip(*each)]
    mats = as_torch(a[0], device), as_torch(b[0], device).mT
    recipe_a, recipe_b = RECIPES[mode]
    scales = as_torch(a[1], device), torch_scales(b[1], mode, device)
    bias = torch.randn(3, N, device=device)
    out = scaled_grouped_mm(*mats, scales[0], recipe_a, scales[1], recipe_b, output_dtype=torch.float32)
    expected, magnitude = a[2] @ b[2].transpose(0, 2, 1), abs(a[2]) @ abs(b[2]).transpose(0, 2, 1)
    assert_close(out, expected, magnitude, K)
    added = scaled_grouped_mm(
        *mats, scales[0], recipe_a, scales[1], recipe_b, bias=bias, output_dtype=torch.float32
    )
    each = bias.cpu().numpy()[:, None]
    assert_close(added, expected + each, magnitude + abs(each), K + 1)


def to_blocked(scales):
    """One matrix's scales in 128 x 4 blocks, as the original's tests make them."""
    rows, columns = (-(-size // unit) * unit for size, unit in zip(scales.shape, (128, 4)))
    padded = numpy.zeros((rows, columns), numpy.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(numpy.uint8)
    blocks = padded.reshape(rows // 128, 128, columns // 4, 4).transpose(0, 2, 1, 3)
    blocked = blocks.reshape(-1, 4, 32, 4).transpose(0, 2, 1, 3)
    return blocked.reshape(rows, columns).view(scales.dtype)


def test_swizzled_scales_lie_in_blocks_of_each_group(rng, device):
    rows, stack, (expected, magnitude) = made(rng, "mx")
    ends = numpy.cumsum([0, *SIZES])
    each = [to_blocked(rows[1][start:end]) for start, end in zip(ends, ends[1:]) if end > start]
    scale_a = as_torch(numpy.concatenate(each), device)
    scale_b = as_torch(numpy.stack([to_blocked(scales).reshape(-1) for scales in stack[1]]), device)
    assert scale_a.shape[0] >= M and scale_b.dim() == 2
    out = scaled_grouped_mm(
        as_torch(rows[0], device),
        as_torch(stack[0], device).mT,
        scale_a,
        Recipe.BlockWise1x32,
        scale_b,
        Recipe.BlockWise1x32,
        Swizzle.SWIZZLE_32_4_4,
        Swizzle.SWIZZLE_32_4_4,
        offs=offs(device),
    )
    assert_close(out, expected, magnitude, K)


def test_128_by_128_scales_may_be_padded_as_scaled_mm_wants_them(rng, device):
    rows, stack, (expected, magnitude) = made(rng, "block_128")
    scale_b = torch_scales(stack[1], "block_128", device)
    padded = torch.full((GROUPS, 4, scale_b.shape[2]), float("nan"), device=device)
    padded[:, : scale_b.shape[1]] = scale_b
    out = scaled_grouped_mm(
        as_torch(rows[0], device),
        as_torch(stack[0], device).mT,
        as_torch(rows[1], device),
        Recipe.BlockWise1x128,
        padded,
        Recipe.BlockWise128x128,
        offs=offs(device),
    )
    assert_close(out, expected, magnitude, K)


def _call(**changes):
    """A right call with rows in groups, but for `changes`."""
    arguments = {
        "mat_a": torch.zeros(8, K).to(torch.float8_e4m3fn),
        "mat_b": torch.zeros(2, N, K).to(torch.float8_e4m3fn).mT,
        "scale_a": torch.ones(8),
        "scale_recipe_a": Recipe.RowWise,
        "scale_b": torch.ones(2, N),
        "scale_recipe_b": Recipe.RowWise,
        "offs": torch.tensor([3, 8], dtype=torch.int32),
    }
    return scaled_grouped_mm(**{**arguments, **changes})


BAD_INPUT = {
    "scale_a is no tensor": ({"scale_a": 1.0}, "scale_a is a float, expected a torch.Tensor"),
    "scale_a of another shape": (
        {"scale_a": torch.ones(7)},
        r"scale_a.shape = \[7\], expected \[8\] because scale_a.mode = row",
    ),
    "scale_b of another type": (
        {"scale_b": torch.ones(2, N).half()},
        "scale_b.dtype = torch.float16, expected torch.float32 or torch.float8_e8m0fnu",
    ),
    "two scales": ({"scale_a": [torch.ones(8)] * 2}, r"len\(scale_a\) = 2, expected 1"),
    "a recipe of nvfp4": ({"scale_recipe_a": Recipe.BlockWise1x16}, "scale_recipe_a = .*, expected TensorWise"),
    "blocks beside rows": (
        {"scale_recipe_a": Recipe.BlockWise1x128, "scale_a": torch.ones(8, 2)},
        "scale_b.mode = row, expected block_128 because scale_a.mode = block_128",
    ),
    "a swizzle of rows": ({"swizzle_a": Swizzle.SWIZZLE_32_4_4}, "swizzle_a = .*, expected NO_SWIZZLE"),
    "bf16": ({"mat_a": torch.zeros(8, K, dtype=torch.bfloat16)}, "mat_a.dtype = torch.bfloat16, expected torch.float8"),
    "no offs": ({"offs": None}, "offs = None, expected the end of each group"),
    "another k": ({"mat_a": torch.zeros(8, 16).to(torch.float8_e4m3fn)}, "mat_b.shape.* = 160, expected k = 16"),
    "another contraction": ({"contraction_dim": (0, 1)}, "contraction_dim = .0, 1., expected"),
    "fp8 output": ({"output_dtype": torch.float8_e4m3fn}, "out.dtype = torch.float8_e4m3fn, expected torch.float32"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    changes, message = BAD_INPUT[name]
    with pytest.raises((ValueError, TypeError), match=f"scaled_grouped_mm: {message}"):
        _call(**changes)
