"""ejKernel's grouped_matmul and transposed_grouped_matmul, in both of its positional orders.

Its kernels differ in the sixth argument: those that its registry calls grouped_matmul and grouped_matmulv2 have group_offset there,
the Pallas functions behind grouped_matmulv2 have input_buffer_count. So a Python int there is a count, an array or None an offset, and
what follows is read accordingly; by keyword every name of either order is taken.

Beyond ejKernel: any m without padding, a defined tail (zero), gradients of every operand. `tiling`, `input_buffer_count` and
`interpret` are TPU arguments: the first two are checked, and none changes a result.
"""

from __future__ import annotations

import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _arguments, _drop_in, _named
from ._types import ArrayLike, DTypeLike, Precision, Sizes

_TILING = (128, 128, 128)


@typing.overload
def grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: ArrayLike | None = None,
    existing_out: ArrayLike | None = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    precision: Precision = jax.lax.Precision.DEFAULT,
) -> jax.Array: ...


@typing.overload
def grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None,
    tiling: Any = (128, 128, 128),
    input_buffer_count: int = 2,
    group_offset: ArrayLike | None = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
) -> jax.Array: ...


@_named.scope
def grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = _TILING,
    *others: Any,
    **options: Any,
) -> jax.Array:
    """lhs [m, k], rhs [g, k, n] (or [g, n, k] with transpose_rhs) -> [m, n].

    existing_out: rows of rhs's groups are replaced, all others are kept. precision: as in cadre.jax.gmm.

    >>> import cadre.jax.ejkernel
    >>> cadre.jax.ejkernel.grouped_matmul(jnp.ones((6, 4)), jnp.ones((3, 4, 5)), jnp.array([2, 0, 4])).shape
    (6, 5)
    """
    op = "grouped_matmul"
    given = _read(
        op,
        others,
        options,
        registered=("group_offset", "existing_out", "transpose_rhs", "interpret", "precision"),
        pallas=("input_buffer_count", "group_offset", "transpose_rhs", "interpret"),
    )
    return _drop_in.gmm(
        op,
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=_TILING if tiling is None else tiling,
        group_offset=given.get("group_offset"),
        existing_out=given.get("existing_out"),
        transpose_rhs=given.get("transpose_rhs", False),
        precision=given.get("precision"),
    )


@typing.overload
def transposed_grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: ArrayLike | None = None,
    num_actual_groups: int | None = None,
    existing_out: ArrayLike | None = None,
    interpret: bool = False,
) -> jax.Array: ...


@typing.overload
def transposed_grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None,
    tiling: Any = (128, 128, 128),
    input_buffer_count: int = 2,
    group_offset: ArrayLike | None = None,
    num_actual_groups: int | None = None,
    interpret: bool = False,
) -> jax.Array: ...


@_named.scope
def transposed_grouped_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = _TILING,
    *others: Any,
    **options: Any,
) -> jax.Array:
    """lhs [k, m], rhs [m, n] -> [num_actual_groups, k, n]; existing_out is added.

    >>> import cadre.jax.ejkernel
    >>> cadre.jax.ejkernel.transposed_grouped_matmul(jnp.ones((4, 6)), jnp.ones((6, 5)), jnp.array([2, 0, 4]))[:, 0, 0]
    Array([2., 0., 4.], dtype=float32)
    """
    op = "transposed_grouped_matmul"
    given = _read(
        op,
        others,
        options,
        registered=("group_offset", "num_actual_groups", "existing_out", "interpret"),
        pallas=("input_buffer_count", "group_offset", "num_actual_groups", "interpret"),
    )
    return _drop_in.tgmm(
        op,
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=_TILING if tiling is None else tiling,
        group_offset=given.get("group_offset"),
        num_actual_groups=given.get("num_actual_groups"),
        existing_out=given.get("existing_out"),
    )


def _read(op, others, options, registered, pallas):
    """The arguments behind tiling by name; `others` are in one of the two orders, which the first of them tells."""
    names = registered
    if others and isinstance(others[0], int) and not isinstance(others[0], bool):
        names = pallas
    elif others and others[0] is not None and not isinstance(others[0], (jax.Array, np.ndarray)):
        raise TypeError(
            f"{op}: the sixth argument is a {type(others[0]).__name__}, "
            "expected an int (input_buffer_count), or an array or None (group_offset)"
        )
    if len(others) > len(names):
        raise TypeError(
            f"{op}: {5 + len(others)} positional arguments, expected at most {5 + len(names)}: "
            f"behind tiling {', '.join(names)}"
        )
    given = dict(zip(names, others))
    for name in options:
        if name in given:
            raise TypeError(f"{op}: {name} is given twice, by position and by name")
        if name not in registered + pallas:
            raise TypeError(f"{op}: there is no argument {name}")
    given |= options
    if "input_buffer_count" in given:
        _arguments.positive(op, "input_buffer_count", given["input_buffer_count"])
    return given
