"""Where the rows of the local groups lie, computed by XLA: for what no handler does."""

import jax
import jax.numpy as jnp
from jax import lax


def local_offsets(m, sizes, offset, num_local):
    """[num_local + 1]: where the rows of each local group start, and where those of the last one end.

    As in the kernels, groups from the first bad size on have no rows, and with a bad offset no group has any.
    """
    sizes = sizes.astype(jnp.int64 if jax.config.jax_enable_x64 else jnp.int32)
    ends = jnp.cumsum(sizes)
    # A sum that wraps in 32 bits was above m or is negative at the group that made it so: each size is at most m.
    fits = (sizes >= 0) & (sizes <= m) & (ends >= 0) & (ends <= m)
    ends = lax.cummax(jnp.where(lax.cummin(fits.astype(jnp.int32)) == 1, ends, 0))
    offsets = jnp.concatenate([jnp.zeros((1,), ends.dtype), ends])
    known = (offset >= 0) & (offset <= sizes.shape[0] - num_local)
    return jnp.where(known, lax.dynamic_slice_in_dim(offsets, offset, num_local + 1), 0)


def rows_between(m, begin, end):
    """[m]: which rows lie from begin to before end."""
    rows = jnp.arange(m, dtype=begin.dtype)
    return (rows >= begin) & (rows < end)


def local_rows(m, sizes, offset, num_local):
    """[m]: which rows belong to the local groups."""
    starts = local_offsets(m, sizes, offset, num_local)
    return rows_between(m, starts[0], starts[-1])


def of_rows(m, sizes, offset, num_local):
    """([m]: the local group of each local row, and any for the others; [m]: which rows are local)."""
    starts = local_offsets(m, sizes, offset, num_local)
    return at(m, starts[1:]), rows_between(m, starts[0], starts[-1])


def at(m, ends):
    """[m]: the group of each row, where groups end at `ends`; any for the rows behind them."""
    rows = jnp.arange(m, dtype=ends.dtype)
    groups = jnp.searchsorted(ends, rows, side="right", method="compare_all")
    return jnp.minimum(groups, ends.shape[0] - 1)
