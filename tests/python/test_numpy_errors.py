"""Bad input to the NumPy front: the error names the op, the argument, what was expected and what was received."""

import cadre
import numpy
import pytest

LHS = numpy.random.default_rng(1).standard_normal((8, 5))
RHS = numpy.random.default_rng(2).standard_normal((3, 5, 4))
SIZES = [2, 0, 6]

CASES = {
    "lhs is no array": (
        lambda: cadre.gmm([[1.0]], RHS, SIZES),
        TypeError,
        "gmm: lhs is a list, expected a NumPy array",
    ),
    "lhs rank": (
        lambda: cadre.gmm(LHS[0], RHS, SIZES),
        ValueError,
        "gmm: lhs.rank = 1, expected 2",
    ),
    "rhs rank": (
        lambda: cadre.gmm(LHS, RHS[0, 0], SIZES),
        ValueError,
        "gmm: rhs.rank = 1, expected 2 or 3",
    ),
    "rhs is one matrix": (
        lambda: cadre.gmm(LHS, RHS[0], SIZES),
        ValueError,
        "gmm: rhs = rows of one tensor, expected",
    ),
    "unknown dtype": (
        lambda: cadre.gmm(LHS.astype(complex), RHS, SIZES),
        TypeError,
        "gmm: lhs.dtype = complex128",
    ),
    "int32 operand": (
        lambda: cadre.gmm(LHS.astype("i4"), RHS, SIZES),
        TypeError,
        "gmm: rhs.dtype = f64, expected a type",
    ),
    "k differs": (
        lambda: cadre.gmm(LHS[:, :4], RHS, SIZES),
        ValueError,
        "gmm: rhs.k = 5, expected lhs.k = 4",
    ),
    "too few sizes": (
        lambda: cadre.gmm(LHS, RHS, [8]),
        ValueError,
        "gmm: group_sizes.count = 1, expected at least",
    ),
    "sum above m": (
        lambda: cadre.gmm(LHS, RHS, [2, 0, 7]),
        ValueError,
        r"gmm: sum of group_sizes\[0..2\] = 2 \+ 7",
    ),
    "negative size": (
        lambda: cadre.gmm(LHS, RHS, [2, -1, 6]),
        ValueError,
        r"gmm: group_sizes\[1\] = -1",
    ),
    "float sizes": (
        lambda: cadre.gmm(LHS, RHS, [2.0, 0, 6]),
        TypeError,
        r"gmm: group_sizes\[0\] is a float",
    ),
    "float size array": (
        lambda: cadre.gmm(LHS, RHS, numpy.ones(3)),
        TypeError,
        "gmm: group_sizes.dtype = f64",
    ),
    "matrix of sizes": (
        lambda: cadre.gmm(LHS, RHS, numpy.ones((3, 1), "i4")),
        ValueError,
        "group_sizes.rank = 2",
    ),
    "out shape": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out=numpy.empty((8, 5))),
        ValueError,
        "gmm: out.n = 5, expected",
    ),
    "out read-only": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out=numpy.broadcast_to(0.0, (8, 4))),
        ValueError,
        "gmm: out.flags.writeable = False",
    ),
    "out is an input": (
        lambda: cadre.gmm(LHS[:, :4], RHS[:, :4], SIZES, out=LHS[:, 1:]),
        ValueError,
        "gmm: out overlaps lhs",
    ),
    "out and out_dtype": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out=numpy.empty((8, 4)), out_dtype="f4"),
        ValueError,
        "gmm: out_dtype = f4, expected None",
    ),
    "accumulate into nothing": (
        lambda: cadre.gmm(LHS, RHS, SIZES, accumulate=True),
        ValueError,
        "gmm: out = None",
    ),
    "untouched without out": (
        lambda: cadre.gmm(LHS, RHS, SIZES, tail="untouched"),
        ValueError,
        "gmm: tail = 'untouched'",
    ),
    "unknown tail": (
        lambda: cadre.gmm(LHS, RHS, SIZES, tail="keep"),
        ValueError,
        "gmm: tail = 'keep', expected 'zero'",
    ),
    "unknown precision": (
        lambda: cadre.gmm(LHS, RHS, SIZES, precision="fp8"),
        ValueError,
        "gmm: precision = 'fp8'",
    ),
    "bias_scale alone": (
        lambda: cadre.gmm(LHS, RHS, SIZES, bias_scale=LHS[:, 0]),
        ValueError,
        "gmm: bias_scale is given",
    ),
    "bias shape": (
        lambda: cadre.gmm(LHS, RHS, SIZES, bias=LHS[:3]),
        ValueError,
        "gmm: bias.n = 5, expected rhs.n = 4",
    ),
    "group_offset too large": (
        lambda: cadre.gmm(LHS, RHS, SIZES, group_offset=1),
        ValueError,
        "gmm: group_offset = 1",
    ),
    "list of two shapes": (
        lambda: cadre.gmm(LHS, [RHS[0], RHS[1, :, 1:]], [1, 2]),
        ValueError,
        r"gmm: rhs\[1\].shape",
    ),
    "empty list": (lambda: cadre.gmm(LHS, [], [1, 2]), ValueError, r"gmm: len\(rhs\) = 0"),
    "strides of half an item": (
        lambda: cadre.gmm(numpy.zeros((8, 5), [("a", "f8"), ("b", "i4")])["a"], RHS, SIZES),
        ValueError,
        r"gmm: lhs.strides\[0\] = 60 bytes",
    ),
    "tgmm rows": (
        lambda: cadre.tgmm(LHS, LHS[:7], SIZES),
        ValueError,
        "tgmm: rhs.m = 7, expected lhs.m = 8",
    ),
    "tgmm groups": (
        lambda: cadre.tgmm(LHS, LHS, SIZES, num_groups=4),
        ValueError,
        "tgmm: group_sizes.count = 3",
    ),
    "bias_grad ints": (
        lambda: cadre.bias_grad(LHS.astype("i1"), SIZES),
        TypeError,
        "bias_grad: dy.dtype = i8",
    ),
    "bias_grad accumulate": (
        lambda: cadre.bias_grad(LHS, SIZES, accumulate=True),
        ValueError,
        "bias_grad: out = None",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_error_names_argument_expected_and_received(case):
    call, kind, message = CASES[case]
    before = LHS.copy(), RHS.copy()
    with pytest.raises(kind, match=message):
        call()
    numpy.testing.assert_array_equal(LHS, before[0])
    numpy.testing.assert_array_equal(RHS, before[1])
