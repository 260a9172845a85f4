"""gmm, tgmm, bias_grad and grouped_linear."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .._types import ScaleMode
from . import _arguments, _groups, _named, _qarray, _recipes, _scaled
from ._primitives import bias_grad_p, gmm_p, tgmm_p, unify
from ._scaled import ScaledArray
from ._types import ArrayLike, DTypeLike, Precision, Sizes


@_named.scope
def gmm(
    lhs: ArrayLike | ScaledArray,
    rhs: ArrayLike | ScaledArray,
    group_sizes: Sizes,
    transpose_rhs: bool = False,
    *,
    bias: ArrayLike | None = None,
    group_offset: ArrayLike | None = None,
    existing_out: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    precision: Precision = None,
    fast_accumulation: bool = False,
    recipe: ScaleMode | None = None,
) -> jax.Array:
    """out[r] = lhs[r] @ rhs[group(r)] (+ bias[group(r)]).

    lhs: [m, k]. rhs: [g, k, n], or [g, n, k] with transpose_rhs. group_sizes: integers, one for each group; their sum
    may be below m, and rows behind it are zero. bias: [g, n].
    group_offset: with it, group_sizes may describe more groups than rhs holds, and rhs[0] is group group_offset; rows of
    groups that rhs doesn't hold are zero. existing_out: [m, n]; rows of rhs's groups are replaced, all others are kept.
    recipe: lhs and rhs, of f32, bf16 or f16, are quantised on the way to a product in FP8, which has lhs's type unless another
    one is asked for. Both gradients are products in FP8, too, and what is kept for them is FP8; reverse mode alone, once.
    lhs and rhs may be ScaledArrays of FP8 data; such a product is bf16 unless another type is asked for, and not
    differentiable. fast_accumulation lets sums in FP8 keep fewer bits than f32 has. Either may be a QArray of qwix.

    >>> lhs, rhs, sizes = jnp.ones((6, 4)), jnp.ones((3, 4, 5)), jnp.array([2, 0, 3])
    >>> cadre.jax.gmm(lhs, rhs, sizes)[:, 0]  # the last row has no group
    Array([4., 4., 4., 4., 4., 0.], dtype=float32)
    >>> jax.grad(lambda rhs: cadre.jax.gmm(lhs, rhs, sizes, recipe="mx").sum())(rhs)[:, 0, 0]
    Array([2., 0., 3.], dtype=float32)
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
        fast_accumulation=fast_accumulation,
        recipe=recipe,
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
    fast_accumulation=False,
    recipe=None,
):
    """gmm on behalf of an op whose operands are called so: errors speak of what the user wrote."""
    left, right = names
    transpose_rhs = _arguments.flag(op, "transpose_rhs", transpose_rhs)
    if recipe is None and _qarray.is_qarray(lhs, rhs) and not _scaled.is_scaled(lhs, rhs):
        return _gmm_of_qarrays(
            op,
            lhs,
            rhs,
            group_sizes,
            names=names,
            transpose_rhs=transpose_rhs,
            bias=bias,
            group_offset=group_offset,
            existing_out=existing_out,
            preferred_element_type=preferred_element_type,
            precision=precision,
            fast_accumulation=fast_accumulation,
        )
    fast_accumulation = _arguments.flag(op, "fast_accumulation", fast_accumulation)
    dims = ("m", "k"), ("g", "n", "k") if transpose_rhs else ("g", "k", "n")
    scales = None
    if recipe is None:
        lhs, rhs, scales = _scaled.taken(op, names, lhs, rhs, dims)
        dtype = _arguments.product_dtype(op, lhs, rhs, preferred_element_type)
    else:
        lhs, rhs = _recipes.operands(op, recipe, names, (lhs, rhs), dims)
        dtype = _recipes.out_dtype(op, lhs, preferred_element_type)
    inner, outer = (2, 1) if transpose_rhs else (1, 2)
    _arguments.equal(op, f"{right}.k", rhs.shape[inner], f"{left}.k", lhs.shape[1])
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    _arguments.weights_fit_sizes(op, right, rhs, 0, sizes, group_offset is not None)
    offset = _arguments.group_offset(op, group_offset, sizes)
    precision = _arguments.precision(op, precision, lhs, rhs)
    bias = () if bias is None else (bias,)
    if bias:
        bias = (_arguments.floats(op, "bias", *bias, ("g", "n")),)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"{op}: bias is given, expected none because the result is {dtype}")
        expected = (rhs.shape[0], rhs.shape[outer])
        _arguments.equal(op, "bias.shape", bias[0].shape, "(g, n)", expected)
    operands, params = (lhs, rhs, sizes, offset), {"transpose_rhs": transpose_rhs, "out_dtype": dtype}
    if recipe is not None:
        call = _recipes.Call(op, recipe, fast_accumulation=fast_accumulation, **params)
        out = _recipes.gmm(call, *operands, bias)
    elif scales:
        out = scales.gmm(*operands, bias, fast_accumulation=fast_accumulation, **params)
    else:
        out = gmm_p.bind(*unify(*operands, *bias), batch_rank=0, precision=precision, **params)
    return _beside(op, existing_out, out, sizes, offset, rhs.shape[0])


def _beside(op, existing_out, out, sizes, offset, num_local):
    """`out`, with the rows of existing_out, where that is given, in the place of those that no local group has."""
    if existing_out is None:
        return out
    existing_out = _arguments.existing_out(op, existing_out, "(m, n)", out.shape, out.dtype)
    local = _groups.local_rows(out.shape[0], sizes, offset, num_local)
    return jnp.where(local[:, None], out, existing_out)


def _gmm_of_qarrays(op, lhs, rhs, group_sizes, *, names, bias, existing_out, **options):
    """gmm_of where one operand or both are QArrays: a product of codes whose sums are multiplied by the scales."""
    preferred = options.pop("preferred_element_type")
    lhs, rhs = (_qarray.opened(op, *each) for each in zip(names, (lhs, rhs)))
    dtype = _qarray.out_dtype(op, lhs, rhs, preferred)
    dims = ("m", "k"), ("g", "n", "k") if options["transpose_rhs"] else ("g", "k", "n")
    for name, value, expected in zip(names, (lhs, rhs), dims):
        _arguments.rank_is(op, name, value, expected)
    product = _qarray.codes_of(lhs, rhs, options["transpose_rhs"])
    if not isinstance(product, _qarray.Codes):
        options |= {"bias": bias, "existing_out": existing_out, "preferred_element_type": dtype}
        return gmm_of(op, *product, group_sizes, names=names, **options)
    sums = gmm_of(
        op,
        product.lhs,
        product.rhs,
        group_sizes,
        names=names,
        preferred_element_type=product.sum_dtype,
        **options,
    )
    if bias is not None:
        bias = _arguments.floats(op, "bias", bias, ("g", "n"))
        expected = (rhs.shape[0], sums.shape[1])
        _arguments.equal(op, "bias.shape", bias.shape, "(g, n)", expected)
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    offset = _arguments.group_offset(op, options["group_offset"], sizes)
    out = product.scaled(sums, sizes, offset, bias).astype(dtype)
    return _beside(op, existing_out, out, sizes, offset, rhs.shape[0])


@_named.scope
def tgmm(
    lhs: ArrayLike | ScaledArray,
    rhs: ArrayLike | ScaledArray,
    group_sizes: Sizes,
    *,
    group_offset: ArrayLike | None = None,
    num_groups: int | None = None,
    existing_out: ArrayLike | None = None,
    preferred_element_type: DTypeLike | None = None,
    precision: Precision = None,
    fast_accumulation: bool = False,
) -> jax.Array:
    """out[i] = lhs[rows of group i]^T @ rhs[rows of group i]: the gradient of gmm's rhs.

    lhs: [m, k]. rhs: [m, n]. num_groups: how many groups the result has, from group_offset on (default: all of
    group_sizes). existing_out: [g, k, n], added to the result. An empty group gives zeros. Of FP8 data it multiplies the
    column-wise copies that quantize makes (columns=True).

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
        fast_accumulation=fast_accumulation,
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
    fast_accumulation=False,
):
    """tgmm on behalf of another op."""
    names, dims = ("lhs", "rhs"), (("m", "k"), ("m", "n"))
    fast_accumulation = _arguments.flag(op, "fast_accumulation", fast_accumulation)
    copies = [_scaled.is_copy(x) for x in (lhs, rhs)]
    lhs, rhs, scales = _scaled.taken(op, names, lhs, rhs, dims, columns=True)
    if not any(copies):
        _arguments.equal(op, "rhs.m", rhs.shape[0], "lhs.m", lhs.shape[0])
    sizes = _arguments.group_sizes_vector(op, group_sizes)
    num_groups = _arguments.num_groups(
        op, "num_groups", num_groups, sizes.shape[0], group_offset is not None
    )
    operands = lhs, rhs, sizes, _arguments.group_offset(op, group_offset, sizes)
    dtype = _arguments.product_dtype(op, lhs, rhs, preferred_element_type)
    precision = _arguments.precision(op, precision, lhs, rhs)
    if existing_out is not None:
        k, n = (x.shape[0 if copy else 1] for x, copy in zip((lhs, rhs), copies))
        shape = (num_groups, k, n)
        existing_out = _arguments.existing_out(op, existing_out, "(g, k, n)", shape, dtype)

    def product(dtype):
        params = {"num_groups": num_groups, "out_dtype": dtype}
        if scales:
            return scales.tgmm(*operands, fast_accumulation=fast_accumulation, **params)
        return tgmm_p.bind(*unify(*operands), batch_rank=0, precision=precision, **params)

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
    recipe: ScaleMode | None = None,
) -> jax.Array:
    """x[r] @ weight[group(r)]^T + bias[group(r)]. weight: [g, n, k], or [g, k, n] with transpose_weight=False.

    recipe: products in FP8, as in gmm.

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
        recipe=recipe,
    )
