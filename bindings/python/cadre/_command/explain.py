"""Show which kernel a problem gets, and why each other one refuses it.

No tensor is made: any size may be asked about.
"""

import ctypes

from .. import _structs
from .._library import check, library, new
from . import problem

EXAMPLE = "cadre explain --m 4096 --k 2048 --n 1536 --groups 8 --dtype bf16"


def _count(text):
    value = int(text)
    if not 0 <= value <= 10**12:
        raise ValueError
    return value


_count.__name__ = "whole number from 0 to 10**12"  # what argparse calls the type in its message


def add_arguments(parser):
    ops = ("gmm", "tgmm", "grouped_gemm", "bias_grad")
    parser.add_argument("--op", choices=ops, default="gmm", help="default: %(default)s")
    parser.add_argument("--m", type=_count, required=True, help="rows (tokens) of all groups")
    parser.add_argument("--k", type=_count, help="inner dimension (not for bias_grad)")
    parser.add_argument("--n", type=_count, required=True, help="columns of the result")
    parser.add_argument("--groups", type=_count, required=True, help="number of groups (experts)")
    parser.add_argument("--dtype", default="bf16", help="type of lhs; default: %(default)s")
    parser.add_argument("--rhs-dtype", help="default: that of lhs")
    parser.add_argument("--out-dtype", help="default: what the product has")
    parser.add_argument("--transpose-rhs", action="store_true", help="rhs is stored [g, n, k]")
    parser.add_argument("--bias", action="store_true", help="gmm adds a bias")
    parser.add_argument("--accumulate", action="store_true", help="add to what the output holds")
    parser.add_argument(
        "--device", default="cpu", help="cpu, cuda or cuda:INDEX; default: %(default)s"
    )
    parser.add_argument("--backend", help="ask this backend alone")
    parser.add_argument("--kernel", help="pin a kernel by its name")


def _device(name):
    kind, _, index = name.partition(":")
    if name == "cpu":
        return _structs.Device(_structs.CPU, 0)
    if kind == "cuda" and (name == "cuda" or index.isdecimal()):
        return _structs.Device(_structs.CUDA, int(index or 0))
    raise ValueError(f"--device = {name}, expected cpu, cuda or cuda:INDEX")


def run(options):
    if options.groups > 1 << 20:
        raise ValueError(f"--groups = {options.groups}, expected at most {1 << 20}")
    arguments = problem.arguments(
        options.op,
        m=options.m,
        k=options.k,
        n=options.n,
        groups=options.groups,
        dtype=options.dtype,
        rhs_dtype=options.rhs_dtype,
        out_dtype=options.out_dtype,
        transpose_rhs=options.transpose_rhs,
        bias=options.bias,
        accumulate=options.accumulate,
        kernel=options.kernel,
        device=_device(options.device),
    )
    settings = new(_structs.ContextOptions)
    settings.backend = None if options.backend is None else options.backend.encode()
    context = ctypes.c_void_p()
    check(library.cadre_context_create(ctypes.byref(settings), ctypes.byref(context)))
    try:
        code, text = problem.explain(context, arguments)
    finally:
        library.cadre_context_destroy(context)
    if text is None:
        check(code)
    print(text, end="")
    return 0 if code == _structs.OK else 4
