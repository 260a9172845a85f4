"""megablox's gmm and tgmm, with its signatures: import this module in its place.

Beyond megablox: any m, k and n; a defined tail (zero); gradients of every operand, existing_out among them.
`tiling` and `interpret` are TPU arguments: `tiling` is checked as megablox checks it, neither changes the result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from . import _drop_in, _named
from ._types import ArrayLike, DTypeLike, Sizes


@_named.scope
def gmm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: ArrayLike | None = None,
    existing_out: ArrayLike | None = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """lhs [m, k], rhs [g, k, n] (or [g, n, k] with transpose_rhs) -> [m, n].

    existing_out: rows of rhs's groups are replaced, all others are kept.

    >>> import cadre.jax.megablox
    >>> cadre.jax.megablox.gmm(jnp.ones((6, 4)), jnp.ones((3, 4, 5)), jnp.array([2, 0, 4])).shape
    (6, 5)
    """
    del interpret
    return _drop_in.gmm(
        "gmm",
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=tiling,
        group_offset=group_offset,
        existing_out=existing_out,
        transpose_rhs=transpose_rhs,
    )


@_named.scope
def tgmm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: Sizes,
    preferred_element_type: DTypeLike | None = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: ArrayLike | None = None,
    num_actual_groups: int | None = None,
    existing_out: ArrayLike | None = None,
    interpret: bool = False,
) -> jax.Array:
    """lhs [k, m] (transposed, as megablox has it), rhs [m, n] -> [g, k, n]; existing_out is added.

    >>> import cadre.jax.megablox
    >>> cadre.jax.megablox.tgmm(jnp.ones((4, 6)), jnp.ones((6, 5)), jnp.array([2, 0, 4]))[:, 0, 0]
    Array([2., 0., 4.], dtype=float32)
    """
    del interpret
    return _drop_in.tgmm(
        "tgmm",
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=tiling,
        group_offset=group_offset,
        num_actual_groups=num_actual_groups,
        existing_out=existing_out,
    )
