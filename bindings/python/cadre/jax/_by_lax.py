"""The primitives' results made with lax.ragged_dot_general: where XLA has no handler (a TPU), or the handlers not the types.

lax says nothing of rows that belong to no group and takes no group_offset, so operands and results are masked, and the local rows
are rolled to the front where there are more groups than weights. The entries of a batch are walked, as the handlers walk them.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _groups

_ROWS = {
    transposed: lax.RaggedDotDimensionNumbers((((1,), (inner,)), ((), ())), (0,), (0,))
    for transposed, inner in ((False, 1), (True, 2))
}
_CONTRACTING = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def gmm(*operands, transpose_rhs, batch_rank, out_dtype, precision):
    """lhs [m,k], rhs [g,k,n] or [g,n,k], group_sizes [G], group_offset [], bias [g,n]? -> [m,n]"""

    def entry(lhs, rhs, sizes, offset, *bias):
        m, num_local, n = lhs.shape[0], rhs.shape[0], rhs.shape[1 if transpose_rhs else 2]
        rows = _LocalRows(m, sizes, offset, num_local)
        accumulator = _accumulator(lhs.dtype, rhs.dtype, out_dtype)
        out = jnp.zeros((m, n), accumulator)
        if 0 not in (*lhs.shape, *rhs.shape):
            product = _product(
                rows.first(lhs), rhs, rows.sizes, _ROWS[transpose_rhs], accumulator, precision
            )
            out = rows.back(product)
        if bias and num_local:
            out = out + bias[0].astype(accumulator)[rows.groups()]
        return _as(rows.kept(out), out_dtype)

    return _each_entry(entry, operands, batch_rank)


def tgmm(*operands, num_groups, batch_rank, out_dtype, precision):
    """lhs [m,k], rhs [m,n], group_sizes [G], group_offset [] -> [num_groups,k,n]"""

    def entry(lhs, rhs, sizes, offset):
        rows = _LocalRows(lhs.shape[0], sizes, offset, num_groups)
        accumulator = _accumulator(lhs.dtype, rhs.dtype, out_dtype)
        if 0 in (*lhs.shape, *rhs.shape, num_groups):
            return jnp.zeros((num_groups, lhs.shape[1], rhs.shape[1]), out_dtype)
        product = _product(
            rows.first(lhs), rows.first(rhs), rows.sizes, _CONTRACTING, accumulator, precision
        )
        return _as(product, out_dtype)

    return _each_entry(entry, operands, batch_rank)


def bias_grad(dy, group_sizes, group_offset, *, num_groups, batch_rank, out_dtype):
    """dy [m,n], group_sizes [G], group_offset [] -> [num_groups,n]: a product with a column of ones."""
    ones = jnp.ones(dy.shape[:-1] + (1,), dy.dtype)
    shared = {"batch_rank": batch_rank, "out_dtype": out_dtype, "precision": 0}
    out = tgmm(ones, dy, group_sizes, group_offset, num_groups=num_groups, **shared)
    return out.squeeze(-2)


class _LocalRows:
    """The rows of the local groups, all others masked."""

    def __init__(self, m, sizes, offset, num_local):
        starts = _groups.local_offsets(m, sizes, offset, num_local)
        self._m, self._begin, self._ends = m, starts[0], starts[1:]
        self._local = _groups.rows_between(m, starts[0], starts[-1])[:, None]
        self._all_groups = sizes.shape[0] == num_local  # the first local row is row 0
        self.sizes = jnp.diff(starts).astype(jnp.int32)

    def kept(self, rows):
        """Zero in all other rows, whatever they hold."""
        return jnp.where(self._local, rows, jnp.zeros((), rows.dtype))

    def first(self, rows):
        """The local rows in front; behind them zeros."""
        rows = self.kept(rows)
        return rows if self._all_groups else jnp.roll(rows, -self._begin, axis=0)

    def back(self, rows):
        """What `first` moved, where it was."""
        return rows if self._all_groups else jnp.roll(rows, self._begin, axis=0)

    def groups(self):
        """[m]: the local group of each local row, and any for the others."""
        return _groups.at(self._m, self._ends)


def _product(lhs, rhs, sizes, numbers, accumulator, precision):
    if lhs.dtype != rhs.dtype and accumulator in (jnp.float32, jnp.float64):
        lhs, rhs = lhs.astype(accumulator), rhs.astype(accumulator)
    return lax.ragged_dot_general(
        lhs,
        rhs,
        sizes,
        numbers,
        precision=lax.Precision.DEFAULT if precision else lax.Precision.HIGHEST,
        preferred_element_type=accumulator,
    )


def _accumulator(lhs, rhs, out):
    """What is added in: f32 or f64 for floats, int32 for int8, and for what cadre has no kernel for what lax takes."""
    if lhs == rhs == np.int8:
        return np.dtype(np.int32)
    complex_ones = [x for x in (out, lhs, rhs) if jnp.issubdtype(x, jnp.complexfloating)]
    if complex_ones or not jnp.issubdtype(out, jnp.floating):
        return np.dtype((complex_ones or [out])[0])
    return np.dtype(np.float64 if np.float64 in (lhs, rhs, out) else np.float32)


def _as(value, dtype):
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        value = value.real
    return value.astype(dtype)


def _each_entry(entry, operands, batch_rank):
    """`entry` of each entry of the batch, one after the other; dims of size 1 are broadcast."""
    if not batch_rank:
        return entry(*operands)
    walked = [x.shape[0] != 1 for x in operands]

    def inner(slices):
        slices = iter(slices)
        return _each_entry(
            entry, [next(slices) if w else x[0] for w, x in zip(walked, operands)], batch_rank - 1
        )

    if not any(walked):
        return inner(())[None]
    return lax.map(inner, tuple(x for w, x in zip(walked, operands) if w))
