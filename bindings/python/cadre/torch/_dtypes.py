"""torch's element types and the C ABI's."""

import torch

from .. import _dtypes, _structs

CODES = {
    torch.float64: _structs.F64,
    torch.float32: _structs.F32,
    torch.bfloat16: _structs.BF16,
    torch.float16: _structs.F16,
    torch.int8: _structs.I8,
    torch.int32: _structs.I32,
    torch.int64: _structs.I64,
    torch.uint32: _structs.U32,
    torch.int16: _structs.I16,
    torch.uint8: _structs.U8,
    torch.uint16: _structs.U16,
    torch.uint64: _structs.U64,
    torch.float8_e4m3fn: _structs.E4M3,
    torch.float8_e5m2: _structs.E5M2,
    torch.float8_e8m0fnu: _structs.E8M0,
}
_TYPES = {code: dtype for dtype, code in CODES.items()}
#: "f32" -> torch.float32: the library's names, as its messages have them.
NAMES = {_dtypes.name_of(code): dtype for code, dtype in _TYPES.items()}

#: What group sizes, offsets and dims may be.
INDICES = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
)
#: What results, biases and scales may be; results of int8 x int8 may be int32, too.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: What scales of quantised operands may be.
SCALES = (torch.float32, torch.float8_e8m0fnu)
#: What operands may be.
OPERANDS = (*FLOATS, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)

#: (lhs, rhs) -> the type of their product, for every pair that has one: the library's own table.
PRODUCTS = {
    (lhs, rhs): _TYPES[product]
    for lhs, lhs_code in CODES.items()
    for rhs, rhs_code in CODES.items()
    if (product := _dtypes.default_output(lhs_code, rhs_code))
}


def product(op, lhs, rhs, names=("lhs", "rhs")):
    """The dtype of a product unless another is asked for. `names`: the caller's, of the operands."""
    try:
        return PRODUCTS[lhs, rhs]
    except KeyError:
        partners = [right for left, right in PRODUCTS if left == lhs]
        if not partners:
            raise wrong_dtype(op, names[0], lhs, OPERANDS) from None
        raise TypeError(
            f"{op}: {names[1]}.dtype = {rhs}, expected {_dtypes.listed(partners)} because {names[0]}.dtype = {lhs}"
        ) from None


def wrong_dtype(op, argument, dtype, expected):
    """The error for a tensor of a type that is none of `expected`."""
    return TypeError(f"{op}: {argument}.dtype = {dtype}, expected {_dtypes.listed(expected)}")


def accumulator(dtype):
    """The float type that sums of this type run in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
