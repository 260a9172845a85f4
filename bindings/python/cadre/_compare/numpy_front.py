"""The layer with cadre's NumPy front, and with a product for each expert by NumPy's BLAS and by oneDNN.

Gather, activation and weighted sum are NumPy's own in both.
"""

import numpy

import cadre

from . import onednn
from .case import ALPHA, LIMIT, UP_OFFSET
from .contender import Contender

NAME = "NumPy"
RIVAL = "a loop of numpy's @"


def available():
    return None


def version():
    return numpy.__version__


def default_dtype(device):
    return "f32"  # NumPy multiplies no 16-bit types with BLAS


def copies():
    return 1


def _layer(case, products):
    """The layer around `products(rows, w [g, n, k], sizes) -> [m, n]`."""
    order, sizes = case.sorted_rows()
    token, expert = order // case.top_k, case.ids.reshape(-1)[order]
    scale = case.weights.reshape(-1)[order][:, None].astype(numpy.float32)
    row_of_slot = numpy.empty_like(order)
    row_of_slot[order] = numpy.arange(order.size)
    i = case.intermediate

    def call():
        pre = products(case.x[token], case.w13, sizes)
        if case.bias13 is not None:
            pre += case.bias13[expert]
        gate, up = pre[:, :i], pre[:, i:]
        if case.layer.clamped:
            gate, up = numpy.minimum(gate, LIMIT), numpy.clip(up, -LIMIT, LIMIT) + UP_OFFSET
            inner = gate / (1 + numpy.exp(-ALPHA * gate)) * up
        else:
            inner = gate / (1 + numpy.exp(-gate)) * up
        y = products(inner.astype(case.x.dtype), case.w2, sizes)
        if case.bias2 is not None:
            y += case.bias2[expert]
        y = y * scale
        return y[row_of_slot].reshape(case.tokens, case.top_k, -1).sum(1)

    return call


def _loop(multiply):
    """`multiply(a [m, k], b [n, k], out [m, n])` for each expert."""

    def products(rows, weights, sizes):
        out = numpy.empty((rows.shape[0], weights.shape[1]), rows.dtype)
        begin = 0
        for expert, size in enumerate(sizes):
            if size:
                multiply(rows[begin : begin + size], weights[expert], out[begin : begin + size])
            begin += size
        return out

    return products


def _by_blas(a, b, out):
    numpy.matmul(a, b.T, out=out)


def release():
    """Nothing: NumPy's arrays are gone with their case."""


def contenders(case, device):
    """(contenders, reasons of those that are left out)."""

    def made(name, products):
        return Contender(name, _layer(case, products), lambda: None, numpy.asarray)

    mine = made("cadre", lambda rows, weights, sizes: cadre.gmm(rows, weights, sizes, transpose_rhs=True))
    if case.dtype != "f32":
        return [mine], {
            RIVAL: f"NumPy has no fast product of {case.dtype}",
            onednn.RIVAL: f"its C function for a product takes f32, not {case.dtype}",
        }
    multiply, reason = onednn.open_product()
    if multiply is None:
        return [mine, made(RIVAL, _loop(_by_blas))], {onednn.RIVAL: reason}
    return [mine, made(RIVAL, _loop(_by_blas)), made(onednn.RIVAL, _loop(multiply))], {}
