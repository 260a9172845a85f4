"""Arguments of a call that is described, not made: tensors have addresses that nobody reads."""

import ctypes
import math

import numpy

from .. import _dtypes, _structs
from .._library import library, new

_CODES = {
    _dtypes.name_of(code): code for code in (*_dtypes.OPERANDS, _structs.I32)
}  # "bf16" -> code


def code_of(option, name):
    if name not in _CODES:
        raise ValueError(f"{option} = {name}, expected one of {', '.join(_CODES)}")
    return _CODES[name]


class _Made:
    """Hands out views far from one another."""

    def __init__(self, device):
        self.device = device
        self.used = 0

    def tensor(self, dtype, *shape):
        self.used += 1
        view = _structs.Tensor(
            data=self.used << 57, dtype=dtype, device=self.device, rank=len(shape)
        )
        for axis, dim in enumerate(shape):
            view.shape[axis] = dim
            view.strides[axis] = math.prod(shape[axis + 1 :])
        return view

    def pointer(self, dtype, *shape):
        return ctypes.pointer(self.tensor(dtype, *shape))

    def matrices(self, dtype, *shape):
        return ctypes.pointer(
            library.cadre_grouped_from_tensor(ctypes.byref(self.tensor(dtype, *shape)))
        )

    def vectors(self, dtype, *shape):
        return ctypes.pointer(
            library.cadre_grouped_vectors(ctypes.byref(self.tensor(dtype, *shape)))
        )


def _even_sizes(m, groups):
    sizes = numpy.diff(numpy.arange(groups + 1, dtype=numpy.int64) * m // max(groups, 1))
    result = _structs.Sizes(data=sizes.ctypes.data, dtype=_structs.I64, count=groups)
    result.owner = sizes
    return result


def arguments(
    op,
    *,
    m,
    n,
    groups,
    k=None,
    dtype="bf16",
    rhs_dtype=None,
    out_dtype=None,
    transpose_rhs=False,
    bias=False,
    accumulate=False,
    kernel=None,
    device=None,
):
    """The filled argument struct of an op whose groups are as even as they can be."""
    if op != "bias_grad" and k is None:
        raise ValueError(f"--k is missing, expected 0 or more for --op {op}")
    if op == "bias_grad" and k is not None:
        raise ValueError("--k is given, but --op bias_grad has no inner dimension")
    for given, name, ops in (
        (transpose_rhs, "--transpose-rhs", ("gmm", "grouped_gemm")),
        (bias, "--bias", ("gmm",)),
        (rhs_dtype, "--rhs-dtype", ("gmm", "tgmm", "grouped_gemm")),
    ):
        if given and op not in ops:
            raise ValueError(f"{name} is given, but --op {op} has no such option")
    lhs = code_of("--dtype", dtype)
    rhs = lhs if rhs_dtype is None else code_of("--rhs-dtype", rhs_dtype)
    out = code_of("--out-dtype", out_dtype) if out_dtype else _dtypes.default_output(lhs, rhs)
    if not out:
        partners = _dtypes.partners(lhs)
        wrong, why = ("--rhs-dtype", f" because --dtype = {dtype}") if partners else ("--dtype", "")
        given = (rhs_dtype or dtype) if partners else dtype
        expected = _dtypes.listed(map(_dtypes.name_of, partners or _dtypes.OPERANDS))
        raise ValueError(f"{wrong} = {given}, expected {expected}{why}")
    made = _Made(device or _structs.Device(_structs.CPU, 0))
    weights = (groups, n, k) if transpose_rhs else (groups, k, n)
    if op == "gmm":
        args = new(_structs.GmmArgs)
        args.lhs, args.rhs = made.pointer(lhs, m, k), made.matrices(rhs, *weights)
        args.out, args.transpose_rhs = made.matrices(out, m, n), transpose_rhs
        args.bias = made.vectors(out, groups, n) if bias else None
    elif op == "tgmm":
        args = new(_structs.TgmmArgs)
        args.lhs, args.rhs = made.pointer(lhs, m, k), made.pointer(rhs, m, n)
        args.out = made.matrices(out, groups, k, n)
    elif op == "grouped_gemm":
        args = new(_structs.GroupedGemmArgs)
        rows = m // max(groups, 1)
        args.a, args.b = made.matrices(lhs, groups, rows, k), made.matrices(rhs, *weights)
        args.d, args.transb = made.matrices(out, groups, rows, n), transpose_rhs
    else:
        args = new(_structs.BiasGradArgs)
        args.dy, args.dbias = made.pointer(lhs, m, n), made.vectors(out, groups, n)
    if op != "grouped_gemm":
        sizes = _even_sizes(m, groups)
        args.group_sizes, args.owner = sizes, sizes
    args.accumulate = accumulate
    options = new(_structs.CallOptions)
    options.config = None if kernel is None else kernel.encode()
    args.options = ctypes.pointer(options)
    return args


_FUNCTIONS = {
    _structs.GmmArgs: "cadre_gmm_explain",
    _structs.TgmmArgs: "cadre_tgmm_explain",
    _structs.GroupedGemmArgs: "cadre_grouped_gemm_explain",
    _structs.BiasGradArgs: "cadre_bias_grad_explain",
}


def explain(context, args):
    """(status code, what the library says of the call or None)."""
    text = ctypes.c_char_p()
    code = getattr(library, _FUNCTIONS[type(args)])(
        context, ctypes.byref(args), ctypes.byref(text)
    )
    return code, None if text.value is None else text.value.decode()
