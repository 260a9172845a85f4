"""megablox's gmm and tgmm, with its signatures: import this module in its place.

Beyond megablox: any m, k and n; a defined tail (zero); gradients of every operand, existing_out among them.
`tiling` and `interpret` are TPU arguments: `tiling` is checked as megablox checks it, neither changes the result.
"""

import jax.numpy as jnp

from . import _ops, _tiling


def gmm(
    lhs,
    rhs,
    group_sizes,
    preferred_element_type=jnp.float32,
    tiling=(128, 128, 128),
    group_offset=None,
    existing_out=None,
    transpose_rhs=False,
    interpret=False,
):
    """lhs [m, k], rhs [g, k, n] (or [g, n, k] with transpose_rhs) -> [m, n].

    existing_out: rows of rhs's groups are replaced, all others are kept.
    """
    del interpret
    _tiling.check("gmm", tiling, lhs.shape[0], lhs.shape[1], rhs.shape[1 if transpose_rhs else 2])
    if existing_out is not None and existing_out.dtype != jnp.dtype(preferred_element_type):
        raise ValueError(
            f"gmm: existing_out.dtype = {existing_out.dtype.name}, expected preferred_element_type = "
            f"{jnp.dtype(preferred_element_type).name}"
        )
    offset = _offset(group_offset, rhs.shape[0], group_sizes.shape[0])
    return _ops.gmm(
        lhs,
        rhs,
        group_sizes,
        transpose_rhs=transpose_rhs,
        group_offset=offset,
        existing_out=existing_out,
        preferred_element_type=preferred_element_type,
    )


def tgmm(
    lhs,
    rhs,
    group_sizes,
    preferred_element_type=jnp.float32,
    tiling=(128, 128, 128),
    group_offset=None,
    num_actual_groups=None,
    existing_out=None,
    interpret=False,
):
    """lhs [k, m] (transposed, as megablox has it), rhs [m, n] -> [g, k, n]; existing_out is added."""
    del interpret
    _tiling.check("tgmm", tiling, lhs.shape[1], lhs.shape[0], rhs.shape[1])
    num_groups = group_sizes.shape[0] if num_actual_groups is None else num_actual_groups
    offset = _offset(group_offset, num_groups, group_sizes.shape[0])
    return _ops.tgmm(
        lhs.T,
        rhs,
        group_sizes,
        group_offset=offset,
        num_groups=num_groups,
        existing_out=existing_out,
        preferred_element_type=preferred_element_type,
    )


def _offset(group_offset, local, total):
    """megablox starts at group 0 when no offset is given, even if rhs holds fewer groups than there are."""
    return 0 if group_offset is None and local < total else group_offset
