"""jax.lax.ragged_dot and ragged_dot_general on cadre's kernels, with group_offset, vmap and second derivatives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _arguments
from ._ops import gmm
from ._primitives import gmm_p, tgmm_p, unify


def ragged_dot(
    lhs,
    rhs,
    group_sizes,
    precision=None,
    preferred_element_type=None,
    group_offset=None,
    out_sharding=None,
    *,
    activation=None,
    ragged_dot_dimension_numbers=None,
):
    """lax.ragged_dot: lhs [m, k], rhs [g, k, n], group_sizes [g] -> [m, n]; rows behind the last group are zero.

    Beyond lax: group_offset works (shape () or (1,)), vmap is complete, int8 gives int32. `activation` (applied before the
    result is rounded to its type), tokamax's GroupSizes and ragged_dot_dimension_numbers (which make it ragged_dot_general)
    are accepted, so that the function can be passed in tokamax's `implementation=(cadre.jax.ragged_dot,)`.
    """
    if ragged_dot_dimension_numbers is not None:
        return ragged_dot_general(
            lhs,
            rhs,
            group_sizes,
            ragged_dot_dimension_numbers,
            precision,
            preferred_element_type,
            group_offset,
            out_sharding,
            activation=activation,
        )
    _arguments.refuse_quantized("ragged_dot", lhs, rhs)
    if jnp.ndim(lhs) != 2 or jnp.ndim(rhs) != 3:
        raise TypeError(
            f"ragged_dot: lhs.ndim = {jnp.ndim(lhs)} and rhs.ndim = {jnp.ndim(rhs)}, expected 2 and 3"
        )

    lhs = _arguments.array("ragged_dot", "lhs", lhs, 2)
    rhs = _arguments.array("ragged_dot", "rhs", rhs, 3)
    final = _arguments.out_dtype("ragged_dot", lhs, rhs, preferred_element_type)

    def product(dtype):
        return gmm(
            lhs,
            rhs,
            group_sizes,
            precision=precision,
            preferred_element_type=dtype,
            group_offset=group_offset,
        )

    return _finish(product, final, out_sharding, activation)


def ragged_dot_general(
    lhs,
    rhs,
    group_sizes,
    ragged_dot_dimension_numbers,
    precision=None,
    preferred_element_type=None,
    group_offset=None,
    out_sharding=None,
    *,
    activation=None,
):
    """lax.ragged_dot_general in its three modes; see its documentation for the dimension numbers.

    group_offset is for the mode whose ragged dim is a non-contracting one: in the other modes nothing says how many
    groups are local.
    """
    op = "ragged_dot_general"
    numbers = ragged_dot_dimension_numbers
    _arguments.refuse_quantized(op, lhs, rhs)
    lhs, rhs = (
        _arguments.array(op, name, x, jnp.ndim(x)) for name, x in (("lhs", lhs), ("rhs", rhs))
    )
    sizes = _arguments.group_sizes(op, group_sizes)
    if len(numbers.lhs_ragged_dimensions) != 1:
        raise TypeError(
            f"{op}: lhs_ragged_dimensions = {numbers.lhs_ragged_dimensions}, expected exactly one"
        )
    (lhs_contract, _), (lhs_batch, _) = numbers.dot_dimension_numbers
    ragged = numbers.lhs_ragged_dimensions[0]
    if ragged in (*lhs_batch, *lhs_contract) and group_offset is not None:
        raise NotImplementedError(
            f"{op}: group_offset is given, expected none unless the ragged dim is non-contracting"
        )
    offset = _arguments.group_offset(op, group_offset)
    final = _arguments.out_dtype(op, lhs, rhs, preferred_element_type)

    def product(dtype):
        settings = {"out_dtype": dtype, "precision": _arguments.precision(op, precision)}
        if ragged in lhs_batch:
            return lax.dot_general(
                lhs,
                rhs,
                numbers.dot_dimension_numbers,
                precision=precision,
                preferred_element_type=dtype,
            )
        if ragged in lhs_contract:
            return _ragged_contracting(op, lhs, rhs, sizes, numbers, settings)
        sharded = group_offset is not None
        return _ragged_rows(op, lhs, rhs, sizes, numbers, settings, offset, sharded=sharded)

    return _finish(product, final, out_sharding, activation)


def _finish(product, final, out_sharding, activation):
    """product(final type), or with an activation, which sees what the accumulator holds."""
    if activation is None:
        out = product(final)
    else:
        accumulator = jnp.dtype(jnp.float32) if np.dtype(final).itemsize == 2 else final
        out = activation(product(accumulator)).astype(final)
    return out if out_sharding is None else jax.sharding.reshard(out, out_sharding)


def _sizes_of(array, dims):
    return tuple(array.shape[d] for d in dims)


def _expanded_sizes(op, sizes, prefix, inner):
    """Sizes as [prefix..., g] (a plain [g] is broadcast), counted in rows of `inner` elements each."""
    if sizes.ndim == 1:
        sizes = sizes.reshape((1,) * len(prefix) + sizes.shape)
    elif sizes.shape[:-1] != prefix:
        raise TypeError(
            f"{op}: group_sizes.shape = {sizes.shape}, expected {prefix + sizes.shape[-1:]}"
        )
    return sizes if inner == 1 else sizes * jnp.asarray(inner, sizes.dtype)


def _others(array, *used):
    taken = {d for dims in used for d in dims}
    return [d for d in range(array.ndim) if d not in taken]


def _ragged_rows(op, lhs, rhs, sizes, numbers, settings, offset, sharded):
    """[b..., x..., m, y..., k...] x [g, b..., k..., n...]: the ragged dim is m; x and b are batch dims."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    if len(numbers.rhs_group_dimensions) != 1:
        raise TypeError(
            f"{op}: rhs_group_dimensions = {numbers.rhs_group_dimensions}, expected exactly one"
        )
    group = numbers.rhs_group_dimensions[0]
    rows = _others(lhs, lhs_contract, lhs_batch)
    cols = _others(rhs, rhs_contract, rhs_batch, [group])
    position = rows.index(numbers.lhs_ragged_dimensions[0])
    outer, inner = rows[:position], rows[position + 1 :]
    k = _sizes_of(lhs, lhs_contract)
    _arguments.equal(op, "rhs's contracting dims", _sizes_of(rhs, rhs_contract), "lhs's", k)
    _arguments.equal(
        op, "rhs's batch dims", _sizes_of(rhs, rhs_batch), "lhs's", _sizes_of(lhs, lhs_batch)
    )
    _arguments.num_local_groups(op, rhs.shape[group], sizes.shape[-1], sharded)

    prefix = _sizes_of(lhs, lhs_batch) + _sizes_of(lhs, outer)
    m = lhs.shape[rows[position]] * math.prod(_sizes_of(lhs, inner))
    left = lhs.transpose(*lhs_batch, *rows, *lhs_contract).reshape(*prefix, m, math.prod(k))
    # The layout that needs no data to move: n before k, or k before n.
    transposed = bool(cols) and bool(rhs_contract) and max(cols) < min(rhs_contract)
    matrix = (*cols, *rhs_contract) if transposed else (*rhs_contract, *cols)
    n, inner_k = math.prod(_sizes_of(rhs, cols)), math.prod(k)
    right = rhs.transpose(*rhs_batch, group, *matrix).reshape(
        *_sizes_of(rhs, rhs_batch),
        *(1,) * len(outer),
        rhs.shape[group],
        *((n, inner_k) if transposed else (inner_k, n)),
    )
    sizes = _expanded_sizes(op, sizes, prefix, math.prod(_sizes_of(lhs, inner)))
    offset = offset.reshape((1,) * len(prefix))
    out = gmm_p.bind(
        *unify(left, right, sizes, offset),
        transpose_rhs=transposed,
        batch_rank=len(prefix),
        **settings,
    )
    return out.reshape(*_sizes_of(lhs, lhs_batch), *_sizes_of(lhs, rows), *_sizes_of(rhs, cols))


def _ragged_contracting(op, lhs, rhs, sizes, numbers, settings):
    """[b..., m..., k...] x [b..., k..., n...] -> [g, b..., m..., n...]: the ragged dim is one of k."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    if numbers.rhs_group_dimensions:
        raise TypeError(
            f"{op}: rhs_group_dimensions = {numbers.rhs_group_dimensions}, expected none"
        )
    rows = _others(lhs, lhs_contract, lhs_batch)
    cols = _others(rhs, rhs_contract, rhs_batch)
    k = _sizes_of(lhs, lhs_contract)
    batch = _sizes_of(lhs, lhs_batch)
    _arguments.equal(op, "rhs's contracting dims", _sizes_of(rhs, rhs_contract), "lhs's", k)
    _arguments.equal(op, "rhs's batch dims", _sizes_of(rhs, rhs_batch), "lhs's", batch)
    position = list(lhs_contract).index(numbers.lhs_ragged_dimensions[0])
    outer, inner = k[:position], math.prod(k[position + 1 :])
    prefix = batch + outer
    length = k[position] * inner
    m, n = math.prod(_sizes_of(lhs, rows)), math.prod(_sizes_of(rhs, cols))
    left = lhs.transpose(*lhs_batch, *lhs_contract, *rows).reshape(*prefix, length, m)
    right = rhs.transpose(*rhs_batch, *rhs_contract, *cols).reshape(*prefix, length, n)
    sizes = _expanded_sizes(op, sizes, prefix, inner)
    offset = jnp.zeros((1,) * len(prefix), jnp.int32)
    out = tgmm_p.bind(
        *unify(left, right, sizes, offset),
        num_groups=sizes.shape[-1],
        batch_rank=len(prefix),
        **settings,
    )
    # Outer contracting dims were walked as batch dims; their products belong to one sum.
    axes = tuple(range(len(batch), len(prefix)))
    out = jnp.sum(out, axis=axes, dtype=out.dtype) if axes else out
    out = jnp.moveaxis(out, len(batch), 0)
    return out.reshape(sizes.shape[-1], *batch, *_sizes_of(lhs, rows), *_sizes_of(rhs, cols))
