"""What megablox's and ejKernel's forms share: f32 results, tgmm's lhs as [k, m], tilings checked and unused."""

import jax.numpy as jnp

from . import _arguments, _ops, _tiling


def gmm(
    op,
    lhs,
    rhs,
    group_sizes,
    *,
    preferred_element_type,
    tiling,
    group_offset,
    existing_out,
    transpose_rhs,
    precision=None,
):
    """lhs [m, k], rhs [g, k, n] or [g, n, k] -> [m, n]; existing_out is kept outside the rows of rhs's groups."""
    transpose_rhs = _arguments.flag(op, "transpose_rhs", transpose_rhs)
    lhs = _arguments.array(op, "lhs", lhs, ("m", "k"))
    rhs = _arguments.array(op, "rhs", rhs, ("g", "n", "k") if transpose_rhs else ("g", "k", "n"))
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    _tiling.check(op, tiling, *lhs.shape, rhs.shape[1 if transpose_rhs else 2])
    dtype = _f32_unless(preferred_element_type)
    return _ops.gmm_of(
        op,
        lhs,
        rhs,
        sizes,
        transpose_rhs=transpose_rhs,
        group_offset=_offset(group_offset, rhs.shape[0], sizes.shape[0]),
        existing_out=_checked(op, existing_out, dtype),
        preferred_element_type=dtype,
        precision=precision,
    )


def tgmm(
    op,
    lhs,
    rhs,
    group_sizes,
    *,
    preferred_element_type,
    tiling,
    group_offset,
    num_actual_groups,
    existing_out,
):
    """lhs [k, m], rhs [m, n] -> [g, k, n]; existing_out is added."""
    lhs = _arguments.array(op, "lhs", lhs, ("k", "m"))
    rhs = _arguments.array(op, "rhs", rhs, ("m", "n"))
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    _tiling.check(op, tiling, lhs.shape[1], lhs.shape[0], rhs.shape[1])
    num_groups = _arguments.num_groups(
        op, "num_actual_groups", num_actual_groups, sizes.shape[0], sharded=True
    )
    dtype = _f32_unless(preferred_element_type)
    return _ops.tgmm_of(
        op,
        lhs.T,
        rhs,
        sizes,
        group_offset=_offset(group_offset, num_groups, sizes.shape[0]),
        num_groups=num_groups,
        existing_out=_checked(op, existing_out, dtype),
        preferred_element_type=dtype,
    )


def _f32_unless(preferred_element_type):
    return jnp.float32 if preferred_element_type is None else preferred_element_type


def _offset(group_offset, local, total):
    """megablox starts at group 0 when no offset is given, even if rhs holds fewer groups than there are."""
    return 0 if group_offset is None and local < total else group_offset


def _checked(op, existing_out, dtype):
    """existing_out, or ValueError: neither library converts it to another preferred_element_type."""
    if existing_out is None:
        return None
    existing_out = _arguments.as_array(op, "existing_out", existing_out)
    _arguments.equal(
        op,
        "existing_out.dtype",
        existing_out.dtype.name,
        "preferred_element_type",
        jnp.dtype(dtype).name,
    )
    return existing_out
