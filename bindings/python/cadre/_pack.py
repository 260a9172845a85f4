"""pack_weights for the NumPy front: weights in the order in which this machine's kernels read them, packed once."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p

from numpy.typing import DTypeLike

from . import _dtypes, _options, _structs, _views
from ._errors import wrong_type
from ._library import check, context, library, new
from ._types import Arrays
from ._views import reference


class PackedWeights:
    """A packed copy of weights: what pack_weights returns and gmm takes as packed_rhs."""

    def __init__(self, handle: c_void_p) -> None:
        self._handle = handle
        #: The same as a number.
        self.address = handle.value
        self._destroy = weakref.finalize(self, library.cadre_packed_weights_destroy, handle)

    @property
    def size_bytes(self) -> int:
        """What the copy takes."""
        return library.cadre_packed_weights_size_bytes(self._handle)

    @property
    def kernel(self) -> str:
        """The kernel it is packed for ("avx512_bf16"); a call that gets another one reads the weights themselves."""
        return library.cadre_packed_weights_kernel(self._handle).decode()

    def __repr__(self) -> str:
        return f"<cadre.PackedWeights for {self.kernel}, {self.size_bytes} bytes>"


def _dtype(argument, dtype):
    """0 for None: the library's default."""
    if dtype is None:
        return 0
    try:
        code = _dtypes.code_of(dtype)
    except TypeError:
        code = 0
    if not code:
        raise TypeError(f"pack_weights: {argument} = {dtype!r}, expected a type that gmm takes")
    return code


def pack_weights(
    rhs: Arrays,
    *,
    transpose_rhs: bool = False,
    lhs_dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> PackedWeights:
    """Packs weights for inference on the CPU: gmm(lhs, rhs, group_sizes, packed_rhs=pack_weights(rhs)).

    rhs [g, k, n] (or [g, n, k] with transpose_rhs), one array or a list of g matrices. lhs_dtype is the type of the lhs
    that it will meet (default: that of rhs), out_dtype that of the result (default: what gmm gives for the two). The
    result has the same bits as without, and costs a second copy of the weights.

    >>> lhs, rhs = np.ones((6, 4), np.float32), np.ones((3, 4, 5), np.float32)
    >>> packed = cadre.pack_weights(rhs)
    >>> np.array_equal(cadre.gmm(lhs, rhs, [2, 0, 4], packed_rhs=packed), cadre.gmm(lhs, rhs, [2, 0, 4]))
    True
    """
    return packed(rhs, transpose_rhs, _dtype("lhs_dtype", lhs_dtype), _dtype("out_dtype", out_dtype))


def packed(rhs, transpose_rhs, lhs_code, out_code):
    """pack_weights with the C ABI's codes of the types."""
    op = "pack_weights"
    transpose_rhs = _options.flag(op, "transpose_rhs", transpose_rhs)
    args = new(_structs.PackWeightsArgs)
    args.rhs = reference(_views.grouped(op, "rhs", rhs, "[g, n, k]" if transpose_rhs else "[g, k, n]"))
    args.transpose_rhs = transpose_rhs
    args.lhs_dtype = lhs_code
    args.out_dtype = out_code
    handle = c_void_p()
    check(library.cadre_pack_weights(context(), byref(args), byref(handle)))
    return PackedWeights(handle)


def handle_of(op, packed):
    """The handle that an op's args take, or None."""
    if packed is None:
        return None
    if not isinstance(packed, PackedWeights):
        raise wrong_type(op, "packed_rhs", packed, "what pack_weights returned")
    return packed._handle
