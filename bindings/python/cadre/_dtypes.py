"""Element types: the C ABI's codes, their names, and NumPy's types (bf16 and fp8 come from ml_dtypes)."""

import ml_dtypes
import numpy

from . import _structs
from ._library import library

_NUMPY = {
    _structs.F64: numpy.dtype(numpy.float64),
    _structs.F32: numpy.dtype(numpy.float32),
    _structs.BF16: numpy.dtype(ml_dtypes.bfloat16),
    _structs.F16: numpy.dtype(numpy.float16),
    _structs.I8: numpy.dtype(numpy.int8),
    _structs.I32: numpy.dtype(numpy.int32),
    _structs.I64: numpy.dtype(numpy.int64),
    _structs.U32: numpy.dtype(numpy.uint32),
    _structs.E4M3: numpy.dtype(ml_dtypes.float8_e4m3fn),
    _structs.E5M2: numpy.dtype(ml_dtypes.float8_e5m2),
    _structs.E8M0: numpy.dtype(ml_dtypes.float8_e8m0fnu),
}
_OF_SIZES_ALONE = {
    _structs.I16: numpy.dtype(numpy.int16),
    _structs.U8: numpy.dtype(numpy.uint8),
    _structs.U16: numpy.dtype(numpy.uint16),
    _structs.U64: numpy.dtype(numpy.uint64),
}
_CODES = {dtype: code for code, dtype in (_NUMPY | _OF_SIZES_ALONE).items()}

FLOATS = (_structs.F64, _structs.F32, _structs.BF16, _structs.F16)
OPERANDS = (*FLOATS, _structs.I8, _structs.E4M3, _structs.E5M2)
RESULTS = (*FLOATS, _structs.I32)
#: Scales of quantised operands.
SCALES = (_structs.F32, _structs.E8M0)


def name_of(code):
    """ "f32", "bf16", ..."""
    return library.cadre_dtype_name(code).decode()


def size_of(code):
    return library.cadre_dtype_size(code)


def default_output(lhs, rhs):
    """The code of the type a product has unless another is asked for; 0 when the pair has no product."""
    return library.cadre_default_output_dtype(lhs, rhs)


def partners(lhs):
    """The codes of the types that multiply with this one; none for a type that is no operand."""
    return tuple(rhs for rhs in OPERANDS if default_output(lhs, rhs))


def code_of(dtype):
    """The code of a NumPy dtype (or what numpy.dtype accepts), or 0."""
    return _CODES.get(numpy.dtype(dtype), 0)


def numpy_of(code):
    return _NUMPY[code]


def numpy_names(codes):
    """ "float64, float32 or int8": what NumPy calls these types."""
    return listed(_NUMPY[code].name for code in codes)


def listed(names):
    """ "a, b or c"."""
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last
