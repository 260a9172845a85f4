"""gmm, tgmm, bias_grad and grouped_linear."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from . import _arguments, _groups, _named
from ._primitives import bias_grad_p, gmm_p, tgmm_p, unify
from ._types import ArrayLike, DTypeLike, Precision, Sizes


@_named.scope
def gmm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    transpose_rhs: bool = False,
    *,
    bias: ArrayLike | None = None,
    group_offset: ArrayLike | None = None,
    existing_out: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    precision: Precision = None,
) -> jax.Array:
    """out[r] = lhs[r] @ rhs[group(r)] (+ bias[group(r)]).

    lhs: [m, k]. rhs: [g, k, n], or [g, n, k] with transpose_rhs. group_sizes: integers, one for each group; their sum
    may be below m, and rows behind it are zero. bias: [g, n].
    group_offset: with it, group_sizes may describe more groups than rhs holds, and rhs[0] is group group_offset; rows of
    groups that rhs doesn't hold are zero. existing_out: [m, n]; rows of rhs's groups are replaced, all others are kept.

    >>> lhs, rhs = jnp.ones((6, 4)), jnp.ones((3, 4, 5))
    >>> cadre.jax.gmm(lhs, rhs, jnp.array([2, 0, 3]))[:, 0]  # the last row has no group
    Array([4., 4., 4., 4., 4., 0.], dtype=float32)
    """
    return gmm_of(
        "gmm",
        lhs,
        rhs,
        group_sizes,
        transpose_rhs=transpose_rhs,
        bias=bias,
        group_offset=group_offset,
        existing_out=existing_out,
        preferred_element_type=preferred_element_type,
        precision=precision,
    )


def gmm_of(
    op,
    lhs,
    rhs,
    group_sizes,
    *,
    names=("lhs", "rhs"),
    transpose_rhs=False,
    bias=None,
    group_offset=None,
    existing_out=None,
    preferred_element_type=None,
    precision=None,
):
    """gmm on behalf of an op whose operands are called so: errors speak of what the user wrote."""
    left, right = names
    transpose_rhs = _arguments.flag(op, "transpose_rhs", transpose_rhs)
    lhs = _arguments.array(op, left, lhs, ("m", "k"))
    rhs = _arguments.array(op, right, rhs, ("g", "n", "k") if transpose_rhs else ("g", "k", "n"))
    inner, outer = (2, 1) if transpose_rhs else (1, 2)
    _arguments.equal(op, f"{right}.k", rhs.shape[inner], f"{left}.k", lhs.shape[1])
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    _arguments.weights_fit_sizes(op, right, rhs, 0, sizes, group_offset is not None)
    offset = _arguments.group_offset(op, group_offset, sizes)
    dtype = _arguments.out_dtype(op, lhs, rhs, preferred_element_type)
    operands = [lhs, rhs, sizes, offset]
    if bias is not None:
        bias = _arguments.floats(op, "bias", bias, ("g", "n"))
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"{op}: bias is given, expected none because the result is {dtype}")
        _arguments.equal(op, "bias.shape", bias.shape, "(g, n)", (rhs.shape[0], rhs.shape[outer]))
        operands.append(bias)
    out = gmm_p.bind(
        *unify(*operands),
        transpose_rhs=transpose_rhs,
        batch_rank=0,
        out_dtype=dtype,
        precision=_arguments.precision(op, precision, lhs, rhs),
    )
    if existing_out is None:
        return out
    existing_out = _arguments.existing_out(op, existing_out, "(m, n)", out.shape, dtype)
    return jnp.where(
        _groups.local_rows(lhs.shape[0], sizes, offset, rhs.shape[0])[:, None], out, existing_out
    )


@_named.scope
def tgmm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    *,
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    existing_out: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    precision: Precision = None,
) -> jax.Array:
    """out[i] = lhs[rows of group i]^T @ rhs[rows of group i]: the gradient of gmm's rhs.

    lhs: [m, k]. rhs: [m, n]. num_groups: how many groups the result has, from group_offset on (default: all of
    group_sizes). existing_out: [g, k, n], added to the result. An empty group gives zeros.

    >>> lhs, rhs = jnp.ones((6, 4)), jnp.ones((6, 5))
    >>> cadre.jax.tgmm(lhs, rhs, jnp.array([2, 0, 4]))[:, 0, 0]
    Array([2., 0., 4.], dtype=float32)
    """
    return tgmm_of(
        "tgmm",
        lhs,
        rhs,
        group_sizes,
        group_offset=group_offset,
        num_groups=num_groups,
        existing_out=existing_out,
        preferred_element_type=preferred_element_type,
        precision=precision,
    )


def tgmm_of(
    op,
    lhs,
    rhs,
    group_sizes,
    *,
    group_offset=None,
    num_groups=None,
    existing_out=None,
    preferred_element_type=None,
    precision=None,
):
    """tgmm on behalf of another op."""
    lhs = _arguments.array(op, "lhs", lhs, ("m", "k"))
    rhs = _arguments.array(op, "rhs", rhs, ("m", "n"))
    _arguments.equal(op, "rhs.m", rhs.shape[0], "lhs.m", lhs.shape[0])
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    num_groups = _arguments.num_groups(
        op, "num_groups", num_groups, sizes.shape[0], group_offset is not None
    )
    operands = unify(lhs, rhs, sizes, _arguments.group_offset(op, group_offset, sizes))
    dtype = _arguments.out_dtype(op, lhs, rhs, preferred_element_type)
    if existing_out is not None:
        shape = (num_groups, lhs.shape[1], rhs.shape[1])
        existing_out = _arguments.existing_out(op, existing_out, "(g, k, n)", shape, dtype)

    def product(dtype):
        return tgmm_p.bind(
            *operands,
            num_groups=num_groups,
            batch_rank=0,
            out_dtype=dtype,
            precision=_arguments.precision(op, precision, lhs, rhs),
        )

    if existing_out is None:
        return product(dtype)
    # One rounding, after the sum.
    wide = _arguments.accumulator(dtype)
    return (product(wide) + existing_out.astype(wide)).astype(dtype)


@_named.scope
def bias_grad(
    dy: ArrayLike,
    group_sizes: Sizes,
    *,
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    preferred_element_type: DTypeLike | None = None,
) -> jax.Array:
    """out[i] = the sum of dy's rows of group i: the gradient of gmm's bias. dy: [m, n].

    >>> cadre.jax.bias_grad(jnp.ones((6, 2)), jnp.array([2, 0, 4]))[:, 0]
    Array([2., 0., 4.], dtype=float32)
    """
    op = "bias_grad"
    dy = _arguments.floats(op, "dy", dy, ("m", "n"))
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    num_groups = _arguments.num_groups(
        op, "num_groups", num_groups, sizes.shape[0], group_offset is not None
    )
    operands = unify(dy, sizes, _arguments.group_offset(op, group_offset, sizes))
    return bias_grad_p.bind(
        *operands,
        num_groups=num_groups,
        out_dtype=_arguments.sum_dtype(op, dy, preferred_element_type),
        batch_rank=0,
    )


@_named.scope
def grouped_linear(
    x: ArrayLike,
    weight: ArrayLike,
    group_sizes: Sizes,
    bias: ArrayLike | None = None,
    *,
    transpose_weight: bool = True,
    group_offset: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    precision: Precision = None,
) -> jax.Array:
    """x[r] @ weight[group(r)]^T + bias[group(r)]. weight: [g, n, k], or [g, k, n] with transpose_weight=False.

    >>> x, weight, bias = jnp.ones((6, 4)), jnp.ones((3, 5, 4)), jnp.ones((3, 5))
    >>> cadre.jax.grouped_linear(x, weight, jnp.array([2, 0, 4]), bias)[0, 0]
    Array(5., dtype=float32)
    """
    _arguments.flag("grouped_linear", "transpose_weight", transpose_weight)
    return gmm_of(
        "grouped_linear",
        x,
        weight,
        group_sizes,
        names=("x", "weight"),
        transpose_rhs=transpose_weight,
        bias=bias,
        group_offset=group_offset,
        preferred_element_type=preferred_element_type,
        precision=precision,
    )
