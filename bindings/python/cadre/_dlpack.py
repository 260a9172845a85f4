"""Views of DLPack tensors on the CPU, without a copy and for every element type (NumPy's own import knows no bf16)."""

import ctypes
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

import numpy

from . import _structs
from ._errors import wrong_type, wrong_value

_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost (pinned)

# (DLDataTypeCode, bits) -> cadre's code. 10, 12 and 14 are DLPack 1.1's float8 codes.
_CODES = {
    (0, 8): _structs.I8,
    (0, 32): _structs.I32,
    (0, 64): _structs.I64,
    (1, 32): _structs.U32,
    (2, 16): _structs.F16,
    (2, 32): _structs.F32,
    (2, 64): _structs.F64,
    (4, 16): _structs.BF16,
    (10, 8): _structs.E4M3,
    (12, 8): _structs.E5M2,
    (14, 8): _structs.E8M0,
}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _check_device(op, argument, tensor):
    device_type, device_id = (int(part) for part in tensor.__dlpack_device__())
    if device_type not in _CPU_DEVICES:
        raise wrong_value(
            op,
            f"{argument}.device",
            f"DLPack device ({device_type}, {device_id})",
            "the CPU: (1, 0)",
        )


def array_of(op, argument, tensor):
    """A NumPy array on the memory of an object that has `__dlpack__`, of a type that NumPy knows."""
    _check_device(op, argument, tensor)
    try:
        return numpy.from_dlpack(tensor)
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise wrong_type(
            op, argument, tensor, f"one that NumPy can import through DLPack ({error})"
        ) from error


def view_of(op, argument, tensor):
    """A cadre_tensor on the memory of an object that has `__dlpack__`. It holds the capsule, and so the memory, alive."""
    _check_device(op, argument, tensor)
    try:
        capsule = tensor.__dlpack__()
    except (BufferError, TypeError, RuntimeError) as error:
        raise wrong_type(
            op, argument, tensor, f"one that can be exported through DLPack ({error})"
        ) from error
    # An unversioned capsule: a DLManagedTensor, whose first member is the DLTensor. Left unconsumed, it frees itself.
    source = ctypes.cast(_pointer_of(capsule, b"dltensor"), POINTER(_DLTensor)).contents
    code = _CODES.get((source.code, source.bits), 0) if source.lanes == 1 else 0
    if not code:
        received = f"DLPack type (code {source.code}, {source.bits} bits, {source.lanes} lanes)"
        raise wrong_type(
            op,
            f"{argument}.dtype",
            tensor,
            f"an element type that cadre knows; received {received}",
        )
    if source.ndim > _structs.MAX_RANK:
        shape = tuple(source.shape[: source.ndim])
        raise wrong_value(op, f"{argument}.shape", shape, f"at most {_structs.MAX_RANK} dimensions")
    view = _structs.Tensor(
        data=(source.data or 0) + source.byte_offset, dtype=code, rank=source.ndim
    )
    stride = 1
    for i in reversed(range(source.ndim)):
        view.shape[i] = source.shape[i]
        view.strides[i] = source.strides[i] if source.strides else stride
        stride *= source.shape[i]
    view.owner = capsule
    return view
