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
        r"gmm: lhs.shape = \(5,\), expected \[m, k\]",
    ),
    "rhs rank": (
        lambda: cadre.gmm(LHS, RHS[0, 0], SIZES),
        ValueError,
        r"gmm: rhs.shape = \(4,\), expected \[g, k, n\]",
    ),
    "rhs is one matrix": (
        lambda: cadre.gmm(LHS, RHS[0], SIZES),
        ValueError,
        r"gmm: rhs.shape = \(5, 4\), expected \[g, k, n\]",
    ),
    "unknown dtype": (
        lambda: cadre.gmm(LHS.astype(complex), RHS, SIZES),
        TypeError,
        "gmm: lhs.dtype = complex128, expected float64, float32, bfloat16, float16, int8, float8_e4m3fn or float8_e5m2",
    ),
    "int32 operand": (
        lambda: cadre.gmm(LHS.astype("i4"), RHS, SIZES),
        TypeError,
        "gmm: lhs.dtype = int32, expected float64, float32, bfloat16, float16, int8, float8_e4m3fn or float8_e5m2",
    ),
    "complex scale": (
        lambda: cadre.gmm(LHS, RHS, SIZES, row_scale=LHS[:, 0].astype(complex)),
        TypeError,
        "gmm: row_scale.dtype = complex128, expected float64, float32, bfloat16 or float16",
    ),
    "complex out": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out=numpy.zeros((8, 4), complex)),
        TypeError,
        "gmm: out.dtype = complex128, expected float64, float32, bfloat16, float16 or int32",
    ),
    "out_dtype that NumPy doesn't know": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out_dtype="junk"),
        TypeError,
        "gmm: out_dtype = 'junk', expected float64, float32, bfloat16, float16 or int32",
    ),
    "out_dtype of sizes alone": (
        lambda: cadre.gmm(LHS, RHS, SIZES, out_dtype=numpy.int16),
        TypeError,
        "gmm: out_dtype = .*int16.*, expected float64, float32, bfloat16, float16 or int32",
    ),
    "transpose_rhs is a word": (
        lambda: cadre.gmm(LHS, RHS, SIZES, transpose_rhs="no"),
        TypeError,
        "gmm: transpose_rhs is a str, expected a bool",
    ),
    "accumulate is a word": (
        lambda: cadre.tgmm(LHS, LHS, SIZES, out=numpy.zeros((3, 5, 5)), accumulate="no"),
        TypeError,
        "tgmm: accumulate is a str, expected a bool",
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
        "gmm: group_sizes.dtype = float64, expected int8, int16",
    ),
    "matrix of sizes": (
        lambda: cadre.gmm(LHS, RHS, numpy.ones((3, 1), "i4")),
        ValueError,
        r"group_sizes.shape = \(3, 1\), expected",
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
        "tgmm: num_groups = 4, expected 0 to 3",
    ),
    "bias_grad groups": (
        lambda: cadre.bias_grad(LHS, SIZES, num_groups=-1),
        ValueError,
        "bias_grad: num_groups = -1, expected 0 to 3",
    ),
    "bias_grad offset": (
        lambda: cadre.bias_grad(LHS, SIZES, group_offset=4),
        ValueError,
        "bias_grad: group_offset = 4, expected 0 to 3",
    ),
    "list of stacked weights": (
        lambda: cadre.gmm(LHS, [RHS, RHS, RHS], SIZES),
        ValueError,
        r"gmm: rhs\[0\].shape = \(3, 5, 4\), expected a matrix, one for each group",
    ),
    "list of biases that are matrices": (
        lambda: cadre.gmm(LHS, RHS, SIZES, bias=[RHS[0]] * 3),
        ValueError,
        r"gmm: bias\[0\].shape = \(5, 4\), expected a vector",
    ),
    "list of stacked outputs": (
        lambda: cadre.tgmm(LHS, LHS, SIZES, out=[numpy.zeros((3, 5, 5))] * 3),
        ValueError,
        r"tgmm: out\[0\].shape = \(3, 5, 5\), expected a matrix",
    ),
    "list of two types": (
        lambda: cadre.gmm(LHS, [RHS[0], RHS[1].astype("f4")], [1, 2]),
        TypeError,
        r"gmm: rhs\[1\].dtype = float32, expected rhs\[0\].dtype = float64",
    ),
    "offset beyond 64 bits": (
        lambda: cadre.gmm(LHS, RHS, SIZES, group_offset=2**64 + 1),
        ValueError,
        "gmm: group_offset = 18446744073709551617, expected a number that fits into int64",
    ),
    "size beyond 64 bits": (
        lambda: cadre.gmm(LHS, RHS, [2, 2**64, 6]),
        ValueError,
        r"gmm: group_sizes\[1\] = 18446744073709551616, expected a number that fits",
    ),
    "size beyond int64 in an array": (
        lambda: cadre.gmm(LHS, RHS, numpy.array([2, 2**63, 6], "u8")),
        ValueError,
        r"gmm: group_sizes\[1\] = 9223372036854775808, expected at most",
    ),
    "num_groups beyond 64 bits": (
        lambda: cadre.tgmm(LHS, LHS, SIZES, num_groups=2**64),
        ValueError,
        "tgmm: num_groups = 18446744073709551616",
    ),
    "sizes that are bools": (
        lambda: cadre.gmm(LHS, RHS, numpy.array([True, False, True])),
        TypeError,
        "gmm: group_sizes.dtype = bool, expected int8, int16, int32, int64, uint8, uint16, uint32 or uint64",
    ),
    "scale that is a matrix": (
        lambda: cadre.gmm(LHS, RHS, SIZES, row_scale=LHS),
        ValueError,
        r"gmm: row_scale.shape = \(8, 5\), expected \[m\]",
    ),
    "grouped_gemm lengths": (
        lambda: cadre.grouped_gemm([LHS], [LHS, LHS], transb=True),
        ValueError,
        r"grouped_gemm: len\(b\) = 2, expected len\(a\) = 1",
    ),
    "grouped_gemm beta alone": (
        lambda: cadre.grouped_gemm([LHS], [LHS], transb=True, beta=1.0),
        ValueError,
        "grouped_gemm: c = None, expected matrices",
    ),
    "grouped_gemm outputs with two kinds of gaps": (
        lambda: cadre.grouped_gemm(
            [LHS, LHS], [LHS, LHS], transb=True, d=[numpy.zeros((8, 8)), numpy.zeros((8, 9))[:, 1:]]
        ),
        ValueError,
        r"grouped_gemm: d\[1\].strides = \(9, 1\), expected a matrix without gaps",
    ),
    "bias_grad ints": (
        lambda: cadre.bias_grad(LHS.astype("i1"), SIZES),
        TypeError,
        "bias_grad: dy.dtype = int8, expected float64, float32, bfloat16 or float16",
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
