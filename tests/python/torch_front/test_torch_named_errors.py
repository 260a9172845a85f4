"""Errors of the PyTorch front are in the caller's words: the op that was called, its arguments, what they hold."""

import cadre.torch
import pytest
import torch
from torch_oracle import random

T = cadre.torch
SIZES, ENDS = [2, 0, 6], [2, 2, 8]
FLOATS = "torch.float64, torch.float32, torch.bfloat16 or torch.float16"


def lhs():
    return random(8, 5)


def rhs():
    return random(3, 5, 4)


def on_meta(*values):
    return torch.tensor(values, device="meta")


def matrices(*shapes, dtype=torch.float64):
    return [torch.randn(shape).to(dtype) for shape in shapes]


CASES = {
    "bias of rank 1": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=random(4)),
        ValueError,
        "gmm: bias.rank = 1 (shape [4]), expected 2: [g, n]",
    ),
    "bias of rank 3": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=random(3, 1, 4)),
        ValueError,
        "gmm: bias.rank = 3 (shape [3, 1, 4]), expected 2: [g, n]",
    ),
    "bias of rank 1 on meta": (
        lambda: T.gmm(lhs().to("meta"), rhs().to("meta"), SIZES, bias=random(4).to("meta")),
        ValueError,
        "gmm: bias.rank = 1 (shape [4]), expected 2: [g, n]",
    ),
    "group_offset on meta": (
        lambda: T.gmm(lhs(), rhs(), SIZES, group_offset=on_meta(0)),
        ValueError,
        "gmm: group_offset.device = meta, expected lhs.device = cpu",
    ),
    "grouped_mm, offs on meta": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=on_meta(*ENDS)),
        ValueError,
        "grouped_mm: offs.device = meta, expected mat_a.device = cpu",
    ),
    "grouped_mm along n, offs on meta": (
        lambda: T.grouped_mm(random(3, 4, 5), random(5, 8), offs=on_meta(*ENDS)),
        ValueError,
        "grouped_mm: offs.device = meta, expected mat_b.device = cpu",
    ),
    "grouped_mm, bias on meta": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=ENDS, bias=random(3, 4).to("meta")),
        ValueError,
        "grouped_mm: bias.device = meta, expected mat_a.device = cpu",
    ),
    "grouped_mm, bias of ints": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=ENDS, bias=random(3, 4).int()),
        TypeError,
        f"grouped_mm: bias.dtype = torch.int32, expected {FLOATS}",
    ),
    "grouped_mm along m, int32 asked for": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=ENDS, out_dtype=torch.int32),
        TypeError,
        f"grouped_mm: out_dtype = torch.int32, expected {FLOATS}",
    ),
    "grouped_mm along n, int32 asked for": (
        lambda: T.grouped_mm(random(3, 4, 5), random(5, 8), offs=ENDS, out_dtype=torch.int32),
        TypeError,
        f"grouped_mm: out_dtype = torch.int32, expected {FLOATS}",
    ),
    "grouped_mm along k, int32 asked for": (
        lambda: T.grouped_mm(random(5, 8), random(8, 4), offs=ENDS, out_dtype=torch.int32),
        TypeError,
        f"grouped_mm: out_dtype = torch.int32, expected {FLOATS}",
    ),
    "grouped_mm of stacks, int32 asked for": (
        lambda: T.grouped_mm(random(3, 4, 5), rhs(), out_dtype=torch.int32),
        TypeError,
        f"grouped_mm: out_dtype = torch.int32, expected {FLOATS}",
    ),
    "grouped_mm of stacks, out_dtype is a string": (
        lambda: T.grouped_mm(random(3, 4, 5), rhs(), out_dtype="f32"),
        TypeError,
        "grouped_mm: out_dtype is a str, expected a torch.dtype",
    ),
    "grouped_mm, out_dtype is a string": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=ENDS, out_dtype="f32"),
        TypeError,
        "grouped_mm: out_dtype is a str, expected a torch.dtype",
    ),
    "grouped_gemm, list of stacks": (
        lambda: T.grouped_gemm([rhs()], [rhs()]),
        ValueError,
        "grouped_gemm: a[0].rank = 3 (shape [3, 5, 4]), expected 2",
    ),
    "grouped_gemm, empty list": (
        lambda: T.grouped_gemm([lhs()], []),
        ValueError,
        "grouped_gemm: len(b) = 0, expected at least 1",
    ),
    "grouped_gemm, list of numbers": (
        lambda: T.grouped_gemm([lhs()], [3]),
        TypeError,
        "grouped_gemm: b[0] is an int, expected a torch.Tensor",
    ),
    "GroupedTensor.list itself": (
        lambda: T.GroupedTensor.list([rhs()]),
        ValueError,
        "GroupedTensor.list: tensors[0].rank = 3 (shape [3, 5, 4]), expected 2",
    ),
    "grouped_gemm, types differ": (
        lambda: T.grouped_gemm([lhs(), lhs().float()], [rhs()[0], rhs()[1]]),
        TypeError,
        "grouped_gemm: a[1].dtype = torch.float32, expected a[0].dtype = torch.float64",
    ),
    "types of a list differ": (
        lambda: T.gmm(lhs(), [*matrices((5, 4), (5, 4)), rhs()[0].float()], SIZES),
        TypeError,
        "gmm: rhs[2].dtype = torch.float32, expected rhs[0].dtype = torch.float64",
    ),
    "shapes of a list differ": (
        lambda: T.gmm(lhs(), matrices((5, 4), (5, 3), (5, 4)), SIZES),
        ValueError,
        "gmm: rhs[1].shape = [5, 3], expected rhs[0].shape = [5, 4]",
    ),
    "strides of a list differ": (
        lambda: T.gmm(lhs(), [rhs()[0], rhs()[0], random(4, 5).t()], SIZES),
        ValueError,
        "gmm: rhs[2].strides = [1, 5], expected rhs[0].strides = [4, 1]",
    ),
    "columns of a list of results differ": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=matrices((2, 4), (1, 4), (6, 3))),
        ValueError,
        "gmm: out[0].cols = 4, expected out[2].cols = 3",
    ),
    "int64 row_scale": (
        lambda: T.gmm(lhs(), rhs(), SIZES, row_scale=torch.ones(8).long()),
        TypeError,
        f"gmm: row_scale.dtype = torch.int64, expected {FLOATS}",
    ),
    "int64 bias": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=torch.ones(3, 4).long()),
        TypeError,
        f"gmm: bias.dtype = torch.int64, expected {FLOATS}",
    ),
    "int64 out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=torch.ones(8, 4).long()),
        TypeError,
        "gmm: out.dtype = torch.int64, expected torch.float64, torch.float32, torch.bfloat16, "
        "torch.float16 or torch.int32",
    ),
    "transpose_rhs is a word": (
        lambda: T.gmm(lhs(), rhs(), SIZES, transpose_rhs="no"),
        TypeError,
        "gmm: transpose_rhs is a str, expected a bool",
    ),
    "transpose_rhs is a tensor": (
        lambda: T.gmm(lhs(), rhs(), SIZES, transpose_rhs=torch.tensor(False)),
        TypeError,
        "gmm: transpose_rhs is a Tensor, expected a bool",
    ),
    "accumulate is a word": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, out=random(3, 5, 5), accumulate="no"),
        TypeError,
        "tgmm: accumulate is a str, expected a bool",
    ),
    "transb is a word": (
        lambda: T.grouped_gemm(random(3, 4, 5), rhs(), transb="no"),
        TypeError,
        "grouped_gemm: transb is a str, expected a bool",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_error_is_in_the_callers_words(case):
    call, kind, message = CASES[case]
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value).startswith(message)


def test_flags_of_numpy_are_flags():
    numpy = pytest.importorskip("numpy")
    out = T.gmm(lhs(), rhs().mT.contiguous(), SIZES, transpose_rhs=numpy.bool_(True))
    assert out.shape == (8, 4)
