"""jax.lax.ragged_dot and ragged_dot_general on cadre's kernels, with group_offset, vmap and second derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from .._types import ScaleMode
from . import _arguments, _dimension_numbers, _named, _ops, _qarray, _recipes, _scaled
from ._dimension_numbers import Mode
from ._finished import Finished, functions_of
from ._primitives import gmm_p, tgmm_p, unify
from ._scaled import ScaledArray
from ._types import ArrayLike, DTypeLike, Precision, Sizes

# [m, k] x [g, k, n]
_PLAIN = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


@_named.scope
def ragged_dot(
    lhs: ArrayLike | ScaledArray,
    rhs: ArrayLike | ScaledArray,
    group_sizes: Sizes,
    precision: Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    activation: Callable[[jax.Array], jax.Array] | None = None,
    manual_axis_type: Any = None,
    zero_initialize: bool = False,
    fuse_gateup_activation: Literal["silu", "gelu", "gelu_tanh"] | None = None,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers | None = None,
    recipe: ScaleMode | None = None,
) -> jax.Array:
    """lax.ragged_dot: lhs [m, k], rhs [g, k, n], group_sizes [g] -> [m, n]; rows behind the last group are zero.

    Beyond lax: group_offset works (shape () or (1,)), vmap is complete, int8 gives int32, operands may be ScaledArrays or
    qwix's QArrays, and with a recipe, as in gmm, it is a product in FP8 of lhs's type. Types that cadre doesn't multiply are
    left to lax, which says what the result is or why there is none. What tokamax passes on is accepted, so
    that the function can stand in its `implementation=(cadre.jax.ragged_dot,)`: GroupSizes, `activation` (applied before the
    result is rounded to its type), `fuse_gateup_activation` ("silu", "gelu" or "gelu_tanh", likewise: the first half of the
    columns is activated and multiplies the second), `manual_axis_type` (what the result varies over inside shard_map),
    `zero_initialize` (rows of no group are zero anyway) and ragged_dot_dimension_numbers, which make it ragged_dot_general.

    >>> lhs, rhs = jnp.ones((6, 4)), jnp.ones((3, 4, 5))
    >>> jax.jit(cadre.jax.ragged_dot)(lhs, rhs, jnp.array([2, 0, 3]))[:, 0]
    Array([4., 4., 4., 4., 4., 0.], dtype=float32)
    """
    op = "ragged_dot"
    del zero_initialize
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
            manual_axis_type=manual_axis_type,
            fuse_gateup_activation=fuse_gateup_activation,
            recipe=recipe,
        )
    lhs, rhs = _operand(op, "lhs", lhs, ("m", "k")), _operand(op, "rhs", rhs, ("g", "k", "n"))
    product = _product(op, lhs, rhs, group_sizes, _PLAIN, precision, group_offset, recipe)
    functions = functions_of(op, fuse_gateup_activation, activation)
    return product.finished(preferred_element_type, functions, manual_axis_type, out_sharding)


@_named.scope
def ragged_dot_general(
    lhs: ArrayLike | ScaledArray,
    rhs: ArrayLike | ScaledArray,
    group_sizes: Sizes,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    precision: Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    *,
    activation: Callable[[jax.Array], jax.Array] | None = None,
    manual_axis_type: Any = None,
    zero_initialize: bool = False,
    fuse_gateup_activation: Literal["silu", "gelu", "gelu_tanh"] | None = None,
    recipe: ScaleMode | None = None,
) -> jax.Array:
    """lax.ragged_dot_general in its three modes; see its documentation for the dimension numbers.

    Groups of group_sizes [g] along rows [m, k] x [g, k, n] -> [m, n], along what is summed [m, k] x [m, n] -> [g, k, n], or
    along batches, with dims in any order.
    group_offset is for the mode whose ragged dim is a non-contracting one: in the other modes nothing says how many
    groups are local. The keywords are those of ragged_dot; recipe is for [m, k] x [g, k, n] and [m, k] x [g, n, k].

    >>> inner = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())  # groups along what is summed
    >>> cadre.jax.ragged_dot_general(jnp.ones((6, 4)), jnp.ones((6, 5)), jnp.array([2, 0, 4]), inner)[:, 0, 0]
    Array([2., 0., 4.], dtype=float32)
    """
    del zero_initialize
    op, numbers = "ragged_dot_general", ragged_dot_dimension_numbers
    lhs, rhs = _operand(op, "lhs", lhs), _operand(op, "rhs", rhs)
    product = _product(op, lhs, rhs, group_sizes, numbers, precision, group_offset, recipe)
    functions = functions_of(op, fuse_gateup_activation, activation)
    return product.finished(preferred_element_type, functions, manual_axis_type, out_sharding)


def _operand(op, name, value, dims=None):
    """An array, a QArray or a ScaledArray."""
    if _scaled.is_scaled(value):
        return value
    value = _qarray.opened(op, name, value)
    if not _qarray.is_qarray(value):
        _arguments.refuse_containers(op, name, value)
        value = _arguments.as_array(op, name, value)
    if dims is not None:
        _arguments.rank_is(op, name, value, dims, TypeError)
    return value


def _product(op, lhs, rhs, group_sizes, numbers, precision, group_offset, recipe):
    rest = group_sizes, numbers, precision, group_offset
    if recipe is not None or _scaled.is_scaled(lhs, rhs):
        return _Quantised(op, lhs, rhs, *rest, recipe)
    if not _qarray.is_qarray(lhs, rhs):
        return _Product(op, lhs, rhs, *rest)
    _dimension_numbers.check(op, lhs, rhs, numbers)
    if _form(numbers) in _OF_ROWS:
        return _Quantised(op, lhs, rhs, *rest)
    return _Product(op, _qarray.dequantised(lhs), _qarray.dequantised(rhs), *rest)


def _form(numbers):
    """The lists of dims in RaggedDotDimensionNumbers: contracting, batch, ragged, group."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    ragged, group = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    return tuple(map(tuple, (lhs_contract, rhs_contract, lhs_batch, rhs_batch, ragged, group)))


# gmm's transpose_rhs, by the form of the numbers; and tgmm's form.
_OF_ROWS = {((1,), (inner,), (), (), (0,), (0,)): inner == 2 for inner in (1, 2)}
_OF_COLUMNS = ((0,), (0,), (), (), (0,), ())


class _Quantised(Finished):
    """A product of ScaledArrays or of QArrays, or with a recipe, in a form that gmm or tgmm has."""

    def __init__(self, op, lhs, rhs, group_sizes, numbers, precision, group_offset, recipe=None):
        self.op, self.lhs, self.rhs, self.form = op, lhs, rhs, _form(numbers)
        self.sizes, self.options = group_sizes, {"precision": precision, "group_offset": group_offset}
        self.recipe = recipe
        if recipe is not None:
            if self.form not in _OF_ROWS:
                raise NotImplementedError(
                    f"{op}: ragged_dot_dimension_numbers = {numbers}, expected those of gmm because recipe = {recipe!r}"
                )
            dims = ("m", "k"), ("g", "n", "k") if _OF_ROWS[self.form] else ("g", "k", "n")
            self.lhs, self.rhs = _recipes.operands(op, recipe, ("lhs", "rhs"), (lhs, rhs), dims)
        if self.form not in _OF_ROWS and self.form != _OF_COLUMNS:
            raise NotImplementedError(
                f"{op}: ragged_dot_dimension_numbers = {numbers}, expected those of gmm or tgmm because the operands are ScaledArrays"
            )

    def final(self, preferred):
        if self.recipe is not None:
            return _recipes.out_dtype(self.op, self.lhs, preferred)
        if _scaled.is_scaled(self.lhs, self.rhs):
            return _arguments.fp8_out_dtype(self.op, preferred)
        return _qarray.out_dtype(self.op, self.lhs, self.rhs, preferred)

    def of_type(self, dtype):
        options = {"preferred_element_type": dtype, **self.options}
        if self.form == _OF_COLUMNS:
            return _ops.tgmm_of(self.op, self.lhs, self.rhs, self.sizes, **options)
        transpose_rhs = _OF_ROWS[self.form]
        options |= {"transpose_rhs": transpose_rhs, "recipe": self.recipe}
        return _ops.gmm_of(self.op, self.lhs, self.rhs, self.sizes, **options)


class _Product(Finished):
    """Checked operands of one call. Faults of shape are TypeErrors, as they are in lax."""

    def __init__(self, op, lhs, rhs, group_sizes, numbers, precision, group_offset):
        self.op, self.numbers = op, numbers
        self.lhs, self.rhs = lhs, rhs
        self.sizes = _arguments.group_sizes(op, group_sizes)
        self.mode = _dimension_numbers.check(op, self.lhs, self.rhs, numbers)
        if self.sizes.ndim == 0:
            raise TypeError(f"{op}: group_sizes.shape = (), expected [..., num_groups]")
        self.precision = _arguments.precision(op, precision, self.lhs, self.rhs)
        self.sharded = group_offset is not None
        if self.sharded and self.mode is not Mode.ROWS:
            raise NotImplementedError(
                f"{op}: group_offset is given, expected none unless the ragged dim is non-contracting"
            )
        self.offset = _arguments.group_offset(op, group_offset, self.sizes)

    def final(self, preferred):
        return _arguments.lax_out_dtype(self.op, self.lhs, self.rhs, preferred)

    def of_type(self, dtype):
        if self.mode is Mode.BATCH:
            return _ragged_batch(self, dtype)
        if self.mode is Mode.CONTRACTING:
            return _ragged_contracting(self, dtype)
        return _ragged_rows(self, dtype)

    @property
    def ragged_dim(self):
        return self.numbers.lhs_ragged_dimensions[0]

    def sizes_over(self, prefix, rows_each=1):
        """Sizes as [prefix..., g] (a plain [g] is broadcast), counted in rows, of which an element of the dim is so many.

        Sizes out of range stay out of range: multiplied as they are they could wrap around to right ones.
        """
        sizes = self.sizes
        if sizes.ndim == 1:
            sizes = sizes.reshape((1,) * len(prefix) + sizes.shape)
        elif sizes.shape[:-1] != prefix:
            raise TypeError(
                f"{self.op}: group_sizes.shape = {sizes.shape}, expected {prefix + sizes.shape[-1:]}"
            )
        if isinstance(rows_each, int) and rows_each == 1:
            return sizes
        if sizes.dtype.itemsize < 4:  # too narrow for a number of rows
            sizes = sizes.astype(jnp.int32)
        least = 0 if jnp.issubdtype(sizes.dtype, jnp.unsignedinteger) else -1
        too_many = jnp.asarray(self.lhs.shape[self.ragged_dim] + 1, sizes.dtype)
        clamped = jnp.clip(sizes, jnp.asarray(least, sizes.dtype), too_many)
        return clamped * jnp.asarray(rows_each, sizes.dtype)


def _sizes_of(array, dims):
    return tuple(array.shape[d] for d in dims)


def _others(array, *used):
    taken = {d for dims in used for d in dims}
    return [d for d in range(array.ndim) if d not in taken]


def _ragged_rows(product, dtype):
    """[b..., x..., m, y..., k...] x [g, b..., k..., n...]: the ragged dim is m; x and b are batch dims."""
    lhs, rhs, numbers = product.lhs, product.rhs, product.numbers
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (group,) = numbers.rhs_group_dimensions
    sharded, sizes = product.sharded, product.sizes
    _arguments.weights_fit_sizes(product.op, "rhs", rhs, group, sizes, sharded, TypeError)
    rows = _others(lhs, lhs_contract, lhs_batch)
    cols = _others(rhs, rhs_contract, rhs_batch, [group])
    position = rows.index(product.ragged_dim)
    outer, inner = rows[:position], rows[position + 1 :]

    prefix = _sizes_of(lhs, lhs_batch) + _sizes_of(lhs, outer)
    rows_each = math.prod(_sizes_of(lhs, inner))
    m = lhs.shape[product.ragged_dim] * rows_each
    k, n = math.prod(_sizes_of(lhs, lhs_contract)), math.prod(_sizes_of(rhs, cols))
    left = lhs.transpose(*lhs_batch, *rows, *lhs_contract).reshape(*prefix, m, k)
    # The layout that needs no data to move: n before k, or k before n.
    transposed = bool(cols) and bool(rhs_contract) and max(cols) < min(rhs_contract)
    matrix = (*cols, *rhs_contract) if transposed else (*rhs_contract, *cols)
    right = rhs.transpose(*rhs_batch, group, *matrix).reshape(
        *_sizes_of(rhs, rhs_batch),
        *(1,) * len(outer),
        rhs.shape[group],
        *((n, k) if transposed else (k, n)),
    )
    sizes = product.sizes_over(prefix, rows_each)
    offset = product.offset.reshape((1,) * len(prefix))
    out = gmm_p.bind(
        *unify(left, right, sizes, offset),
        transpose_rhs=transposed,
        batch_rank=len(prefix),
        out_dtype=dtype,
        precision=product.precision,
    )
    return out.reshape(*_sizes_of(lhs, lhs_batch), *_sizes_of(lhs, rows), *_sizes_of(rhs, cols))


def _ragged_contracting(product, dtype):
    """[b..., m..., k...] x [b..., k..., n...] -> [g, b..., m..., n...]: the ragged dim is one of k."""
    lhs, rhs = product.lhs, product.rhs
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = product.numbers.dot_dimension_numbers
    rows = _others(lhs, lhs_contract, lhs_batch)
    cols = _others(rhs, rhs_contract, rhs_batch)
    k = _sizes_of(lhs, lhs_contract)
    batch = _sizes_of(lhs, lhs_batch)
    position = list(lhs_contract).index(product.ragged_dim)
    outer, rows_each = k[:position], math.prod(k[position + 1 :])
    prefix = batch + outer
    length = k[position] * rows_each
    m, n = math.prod(_sizes_of(lhs, rows)), math.prod(_sizes_of(rhs, cols))
    left = lhs.transpose(*lhs_batch, *lhs_contract, *rows).reshape(*prefix, length, m)
    right = rhs.transpose(*rhs_batch, *rhs_contract, *cols).reshape(*prefix, length, n)
    sizes = product.sizes_over(prefix, rows_each)
    offset = product.offset.reshape((1,) * len(prefix))
    # Outer contracting dims are walked as batch dims; their products belong to one sum, rounded once.
    axes = tuple(range(len(batch), len(prefix)))
    out = tgmm_p.bind(
        *unify(left, right, sizes, offset),
        num_groups=sizes.shape[-1],
        batch_rank=len(prefix),
        out_dtype=_arguments.accumulator(dtype) if axes else dtype,
        precision=product.precision,
    )
    out = jnp.sum(out, axis=axes, dtype=out.dtype).astype(dtype) if axes else out
    out = jnp.moveaxis(out, len(batch), 0)
    return out.reshape(sizes.shape[-1], *batch, *_sizes_of(lhs, rows), *_sizes_of(rhs, cols))


def _ragged_batch(product, dtype):
    """[b..., m..., k...] x [b..., k..., n...]: a dense product whatever the sizes are, so it is lax's own.

    lax would convert operands of two types to the result's; here they are widened. On a GPU lax's default for f32 is tf32.
    """
    lhs, rhs = product.lhs, product.rhs
    _, (lhs_batch, _) = product.numbers.dot_dimension_numbers
    product.sizes_over(_sizes_of(lhs, lhs_batch[: lhs_batch.index(product.ragged_dim)]))
    precision = lax.Precision.DEFAULT if product.precision else lax.Precision.HIGHEST
    numbers = product.numbers.dot_dimension_numbers
    if not _arguments.multiplies([lhs.dtype, rhs.dtype], dtype):
        return lax.dot_general(lhs, rhs, numbers, precision=precision, preferred_element_type=dtype)
    wide = _arguments.out_dtype(product.op, lhs, rhs, None)
    if wide != jnp.int32:  # int8 x int8 is what lax itself adds in int32
        lhs, rhs = lhs.astype(wide), rhs.astype(wide)
    out = lax.dot_general(
        lhs,
        rhs,
        numbers,
        precision=precision,
        preferred_element_type=dtype if dtype == wide else _arguments.accumulator(wide),
    )
    return out.astype(dtype)
