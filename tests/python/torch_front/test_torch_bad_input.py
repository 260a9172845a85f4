"""Bad input to the PyTorch front: TypeError or ValueError naming argument, expected and received; nothing is touched."""

import cadre.torch
import pytest
import torch
from cadre.torch import _shim
from torch_oracle import equal, random

SIZES = [2, 0, 6]
T = cadre.torch


def lhs(requires_grad=False):
    return random(8, 5, requires_grad=requires_grad)


def rhs():
    return random(3, 5, 4)


CASES = {
    "lhs is a list": (
        lambda: T.gmm([[1.0]], rhs(), SIZES),
        TypeError,
        "gmm: lhs is a list, expected a torch.Tensor",
    ),
    "rhs is a number": (
        lambda: T.gmm(lhs(), 3.0, SIZES),
        TypeError,
        "gmm: rhs is a float, expected a torch.Tensor",
    ),
    "list holds a number": (
        lambda: T.gmm(lhs(), [rhs()[0], 1], SIZES),
        TypeError,
        r"gmm: rhs\[1\] is an int",
    ),
    "complex lhs": (
        lambda: T.gmm(lhs() * 1j, rhs(), SIZES),
        TypeError,
        "gmm: lhs.dtype = torch.complex128, expected torch.float64, ",
    ),
    "sparse lhs": (
        lambda: T.gmm(lhs().to_sparse(), rhs(), SIZES),
        TypeError,
        "gmm: lhs is a Tensor, expected a strided",
    ),
    "lhs rank": (
        lambda: T.gmm(lhs()[0], rhs(), SIZES),
        ValueError,
        r"gmm: lhs.rank = 1 \(shape \[5\]\), expected 2",
    ),
    "rhs rank": (
        lambda: T.gmm(lhs(), rhs()[0], SIZES),
        ValueError,
        r"gmm: rhs.rank = 2 \(shape \[5, 4\]\), expected 3",
    ),
    "rhs rank with out": (
        lambda: T.gmm(lhs(), rhs()[0], [8], out=random(8, 4)),
        ValueError,
        r"gmm: rhs.rank = 2 \(shape \[5, 4\]\), expected 3",
    ),
    "list of stacks": (
        lambda: T.gmm(lhs(), [rhs(), rhs(), rhs()], SIZES),
        ValueError,
        r"gmm: rhs\[0\].rank = 3 \(shape \[3, 5, 4\]\), expected 2",
    ),
    "list of one stack": (
        lambda: T.gmm(lhs(), [rhs()], SIZES),
        ValueError,
        r"gmm: rhs\[0\].rank = 3 \(shape .*\), expected 2",
    ),
    "list of matrices as bias": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=[random(3, 4)] * 3),
        ValueError,
        r"gmm: bias\[0\].rank = 2 \(shape \[3, 4\]\), expected 1",
    ),
    "list of stacks as out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=[random(3, 8, 4) for _ in range(3)]),
        ValueError,
        r"gmm: out\[0\].rank = 3 \(shape .*\), expected 2",
    ),
    "stack as out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=random(3, 8, 4)),
        ValueError,
        r"gmm: out.rank = 3 \(shape \[3, 8, 4\]\), expected 2",
    ),
    "tgmm, list of stacks": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, out=[random(3, 5, 5) for _ in range(3)]),
        ValueError,
        r"tgmm: out\[0\].rank = 3 \(shape .*\), expected 2",
    ),
    "bias_grad, list of matrices": (
        lambda: T.bias_grad(lhs(), SIZES, bias=[random(3, 5)] * 3),
        ValueError,
        r"bias_grad: bias\[0\].rank = 2 \(shape .*\), expected 1",
    ),
    "bias_grad, list of matrices as out": (
        lambda: T.bias_grad(lhs(), SIZES, out=[random(3, 5) for _ in range(3)]),
        ValueError,
        r"bias_grad: out\[0\].rank = 2 \(shape .*\), expected 1",
    ),
    "k differs": (
        lambda: T.gmm(lhs()[:, :4], rhs(), SIZES),
        ValueError,
        "gmm: rhs.k = 5, expected lhs.k = 4",
    ),
    "int32 operand": (
        lambda: T.gmm(lhs().int(), rhs(), SIZES),
        TypeError,
        "gmm: lhs.dtype = torch.int32, expected torch.float64, torch.float32, .* or torch.float8_e5m2",
    ),
    "too few sizes": (
        lambda: T.gmm(lhs(), rhs(), [8]),
        ValueError,
        "gmm: group_sizes.count = 1, expected at least",
    ),
    "sum above m": (
        lambda: T.gmm(lhs(), rhs(), [2, 0, 7]),
        ValueError,
        r"gmm: sum of group_sizes\[0..2\] = 2 \+ 7",
    ),
    "negative size": (
        lambda: T.gmm(lhs(), rhs(), [2, -1, 6]),
        ValueError,
        r"gmm: group_sizes\[1\] = -1",
    ),
    "float size": (
        lambda: T.gmm(lhs(), rhs(), [2.0, 0, 6]),
        TypeError,
        r"gmm: group_sizes\[0\] is a float",
    ),
    "float sizes": (
        lambda: T.gmm(lhs(), rhs(), torch.ones(3)),
        TypeError,
        "gmm: group_sizes.dtype = torch.float32, expected torch.int8, torch.uint8, .* or torch.uint64",
    ),
    "bool sizes": (
        lambda: T.tgmm(lhs(), lhs(), torch.ones(3).bool()),
        TypeError,
        "tgmm: group_sizes.dtype = torch.bool, expected torch.int",
    ),
    "sizes are a string": (
        lambda: T.gmm(lhs(), rhs(), "206"),
        TypeError,
        "gmm: group_sizes is a str, expected a tensor",
    ),
    "matrix of sizes": (
        lambda: T.gmm(lhs(), rhs(), torch.ones(3, 1).int()),
        ValueError,
        "gmm: group_sizes.rank = 2",
    ),
    "bias shape": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias=lhs()[:3]),
        ValueError,
        "gmm: bias.n = 5, expected rhs.n = 4",
    ),
    "bias_scale alone": (
        lambda: T.gmm(lhs(), rhs(), SIZES, bias_scale=lhs()[:, 0]),
        ValueError,
        "gmm: bias_scale is given",
    ),
    "alpha shape": (
        lambda: T.gmm(lhs(), rhs(), SIZES, alpha=lhs()[0]),
        ValueError,
        r"gmm: alpha.shape\[0\] = 5",
    ),
    "alpha is a string": (
        lambda: T.gmm(lhs(), rhs(), SIZES, alpha="2"),
        TypeError,
        "gmm: alpha is a str",
    ),
    "empty list": (lambda: T.gmm(lhs(), [], SIZES), ValueError, r"gmm: len\(rhs\) = 0"),
    "group_offset": (
        lambda: T.gmm(lhs(), rhs(), SIZES, group_offset=1),
        ValueError,
        "gmm: group_offset = 1, expected 0",
    ),
    "float offset": (
        lambda: T.gmm(lhs(), rhs(), SIZES, group_offset=1.0),
        TypeError,
        "gmm: group_offset is a float",
    ),
    "float tensor as offset": (
        lambda: T.gmm(lhs(), rhs(), SIZES, group_offset=torch.ones(1)),
        TypeError,
        "gmm: group_offset.dtype = torch.float32, expected an integer type",
    ),
    "two offsets": (
        lambda: T.gmm(lhs(), rhs(), SIZES, group_offset=torch.ones(2).int()),
        ValueError,
        "gmm: group_offset.shape = \\[2\\], expected one element",
    ),
    "unknown tail": (
        lambda: T.gmm(lhs(), rhs(), SIZES, tail="keep"),
        ValueError,
        "gmm: tail = 'keep', expected 'zero'",
    ),
    "forbidden tail": (
        lambda: T.gmm(lhs(), rhs(), [2, 0, 5], tail="forbid"),
        ValueError,
        "gmm: .* 7, expected .*8",
    ),
    "untouched, no out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, tail="untouched"),
        ValueError,
        "gmm: tail = 'untouched'",
    ),
    "accumulate, no out": (
        lambda: T.gmm(lhs(), rhs(), SIZES, accumulate=True),
        ValueError,
        "gmm: out = None",
    ),
    "out wants a gradient": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=random(8, 4, requires_grad=True)),
        ValueError,
        "gmm: out.requires_grad = True, expected False",
    ),
    "input of out= wants a gradient": (
        lambda: T.gmm(lhs(True), rhs(), SIZES, out=random(8, 4)),
        ValueError,
        "gmm: lhs.requires_grad = True, expected False: calls that write into out",
    ),
    "out shape": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=random(8, 5)),
        ValueError,
        "gmm: out.n = 5, expected rhs.n = 4",
    ),
    "out and out_dtype": (
        lambda: T.gmm(lhs(), rhs(), SIZES, out=random(8, 4), out_dtype=torch.float32),
        ValueError,
        "gmm: out_dtype = torch.float32, expected None",
    ),
    "tgmm rows": (
        lambda: T.tgmm(lhs(), lhs()[1:], SIZES),
        ValueError,
        "tgmm: rhs.m = 7, expected lhs.m = 8",
    ),
    "tgmm, tensor offset": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, group_offset=torch.tensor(1)),
        ValueError,
        "tgmm: num_groups = None, expected a number",
    ),
    "tgmm groups": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, num_groups=4),
        ValueError,
        "tgmm: group_sizes.count = 3",
    ),
    "tgmm, -1 groups": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, num_groups=-1),
        ValueError,
        "tgmm: num_groups = -1, expected 0 or more",
    ),
    "tgmm, offset behind the groups": (
        lambda: T.tgmm(lhs(), lhs(), SIZES, group_offset=4),
        ValueError,
        "tgmm: group_offset = 4, expected 0 to 3, the number of group_sizes",
    ),
    "bias_grad, -1 groups": (
        lambda: T.bias_grad(lhs(), SIZES, num_groups=-1),
        ValueError,
        "bias_grad: num_groups = -1, expected 0 or more",
    ),
    "bias_grad operator, -1 groups": (
        lambda: torch.ops.cadre.bias_grad(
            lhs(), torch.tensor(SIZES), False, None, None, 0, -1, None
        ),
        RuntimeError,
        "bias_grad: num_groups = -1, expected 0 or more",
    ),
    "bias_grad ints": (
        lambda: T.bias_grad(lhs().int(), SIZES),
        TypeError,
        "bias_grad: dy.dtype = torch.int32, expected torch.float64",
    ),
    "grouped_mm, no offs": (
        lambda: T.grouped_mm(lhs(), rhs()),
        ValueError,
        "grouped_mm: offs = None, expected the end",
    ),
    "grouped_mm, offs": (
        lambda: T.grouped_mm(rhs(), rhs(), offs=SIZES),
        ValueError,
        "grouped_mm: offs = given, expected None",
    ),
    "grouped_mm rank": (
        lambda: T.grouped_mm(lhs()[0], rhs(), offs=SIZES),
        ValueError,
        r"grouped_mm: mat_a.rank = 1 \(shape \[5\]\), expected 2 or 3",
    ),
    "grouped_mm k": (
        lambda: T.grouped_mm(lhs(), rhs()[:, 1:], offs=[2, 2, 8]),
        ValueError,
        r"grouped_mm: mat_b.shape\[-2\] = 4, expected k = 5 \(mat_a.shape = \[8, 5\]",
    ),
    "grouped_mm dtypes": (
        lambda: T.grouped_mm(lhs(), rhs().int(), offs=[2, 2, 8]),
        TypeError,
        r"grouped_mm: mat_b.dtype = torch.int32, expected .*torch.int8 because mat_a.dtype",
    ),
    "grouped_mm, number of offs": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=[2, 8]),
        ValueError,
        r"grouped_mm: offs.shape\[0\] = 2, expected mat_b.shape\[0\] = 3",
    ),
    "grouped_mm, number of offs along n": (
        lambda: T.grouped_mm(rhs(), random(4, 8), offs=[2, 8]),
        ValueError,
        r"grouped_mm: offs.shape\[0\] = 2, expected mat_a.shape\[0\] = 3",
    ),
    "grouped_mm, groups": (
        lambda: T.grouped_mm(rhs(), random(2, 4, 5)),
        ValueError,
        r"grouped_mm: mat_b.shape\[0\] = 2, expected mat_a.shape\[0\] = 3",
    ),
    "grouped_mm, offs decrease": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=torch.tensor([4, 2, 8])),
        ValueError,
        r"grouped_mm: offs\[1\] = 2, expected offs\[0\] = 4 to m = 8",
    ),
    "grouped_mm, offs above m": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=[2, 2, 9]),
        ValueError,
        r"grouped_mm: offs\[2\] = 9, expected offs\[1\] = 2 to m = 8",
    ),
    "grouped_mm, offs above n": (
        lambda: T.grouped_mm(rhs(), random(4, 8), offs=[-1, 2, 8]),
        ValueError,
        r"grouped_mm: offs\[0\] = -1, expected 0 to m = 8",
    ),
    "grouped_mm, offs above k": (
        lambda: T.grouped_mm(lhs().t(), lhs(), offs=[2, 9]),
        ValueError,
        r"grouped_mm: offs\[1\] = 9, expected offs\[0\] = 2 to m = 8",
    ),
    "grouped_mm, float offs": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=torch.ones(3)),
        TypeError,
        "grouped_mm: offs.dtype = torch.float32, expected torch.int",
    ),
    "grouped_mm bias": (
        lambda: T.grouped_mm(lhs(), rhs(), offs=[2, 2, 8], bias=random(3, 5)),
        ValueError,
        r"grouped_mm: bias.shape = \[3, 5\], expected \[3, 4\]",
    ),
    "grouped_gemm k": (
        lambda: T.grouped_gemm([lhs()], [rhs()[0].t()]),
        ValueError,
        r"grouped_gemm: b\[0\].k = 4, expected a\[0\].k = 5",
    ),
    "grouped_gemm groups": (
        lambda: T.grouped_gemm([lhs()], list(rhs())),
        ValueError,
        "grouped_gemm: b.num_groups = 3, expected a.num_groups = 1",
    ),
    "grouped_gemm without c": (
        lambda: T.grouped_gemm([lhs()], [rhs()[0]], beta=1),
        ValueError,
        "grouped_gemm: c = None",
    ),
    "packed buffer with gaps": (
        lambda: T.grouped_gemm(T.GroupedTensor.packed(random(10)[::2], [1], 5), [rhs()[0]]),
        ValueError,
        r"grouped_gemm: a.strides\[0\] = 2, expected 1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_error_names_argument_expected_and_received(case):
    call, kind, message = CASES[case]
    with pytest.raises(kind, match=message):
        call()


def test_nothing_is_written_before_the_error():
    out = random(8, 4)
    before = out.clone()
    with pytest.raises(ValueError, match="sum of group_sizes"):
        T.gmm(lhs(), rhs(), [2, 0, 7], out=out)
    assert equal(out, before)


def test_old_torch_is_an_import_error():
    _shim.check_version("2.11.0+cu128")
    _shim.check_version("3.0.0")
    with pytest.raises(ImportError, match=r"torch is 2.10.1, expected 2.11 or newer: pip install"):
        _shim.check_version("2.10.1")


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x, w, s: cadre.torch.gmm(x, w, s, group_offset=2**64 + 1), ValueError, "group_offset"),
        (lambda x, w, s: cadre.torch.tgmm(x, x, s, group_offset=2**64 + 1), ValueError, "group_offset"),
        (lambda x, w, s: cadre.torch.gmm(x, w, s, out_dtype="f32"), TypeError, "out_dtype"),
        (lambda x, w, s: cadre.torch.tgmm(x, x, s, out_dtype="f32"), TypeError, "out_dtype"),
        (lambda x, w, s: cadre.torch.gmm(None, w, s), TypeError, "lhs"),
        (lambda x, w, s: cadre.torch.gmm(x, None, s), TypeError, "rhs"),
        (lambda x, w, s: cadre.torch.gmm(x, [w[0], None, w[2]], s), TypeError, r"rhs\[1\]"),
        (lambda x, w, s: cadre.torch.tgmm(None, x, s), TypeError, "lhs"),
        (lambda x, w, s: cadre.torch.bias_grad(None, s), TypeError, "dy"),
    ],
)
def test_what_the_dispatcher_would_refuse_is_named(call, error, words):
    x, w, sizes = torch.randn(6, 4), torch.randn(3, 4, 5), torch.tensor([2, 0, 4])
    with pytest.raises(error, match=words):
        call(x, w, sizes)
