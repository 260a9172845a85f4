"""MaxText's grouped products: its gmm with cadre's kernels, and install(), which puts it where MaxText's layers look.

    import cadre.jax.maxtext

    cadre.jax.maxtext.install()  # before training; with megablox=True, use_tokamax_gmm=False, which are MaxText's defaults

MaxText has no `implementation=` of its own. The signature is that of maxtext.kernels.megablox.ops.gmm in MaxText 0.2.5, with
which it is tested on a CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._errors import wrong_value
from . import _drop_in, _named

_OP = "maxtext.gmm"


@_named.scope
def gmm(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    preferred_element_type: DTypeLike = jnp.float32,
    tiling: Sequence[int] = (128, 128, 128, 128, 128, 128, 128, 128, 128),
    group_offset: ArrayLike | None = None,
    existing_out: ArrayLike | None = None,
    transpose_rhs: bool = False,
    interpret: bool | None = None,
    lhs_quantize_dtype: DTypeLike | None = None,
    rhs_quantize_dtype: DTypeLike | None = None,
    use_qwix_quantization: bool = False,
    use_tokamax_backend: bool = False,
    weight_gather_axes: Sequence[tuple[str, int]] | None = None,
    lhs_vma_axes: tuple[str, ...] = (),
    rhs_vma_axes: tuple[str, ...] = (),
    qwix_rule: Any = None,
    use_manual_quantization: bool = False,
    use_gmm_v2: bool = False,
    use_gmm_v2_heuristic_tiling: bool = False,
    partial_sum: ArrayLike | None = None,
) -> jax.Array:
    """lhs [m, k], rhs [g, k, n] (or [g, n, k] with transpose_rhs) -> [m, n], partial_sum [m, n] added before the rounding.

    tiling, interpret, use_tokamax_backend, use_gmm_v2, its heuristic tiling and the vma axes, which follow from the operands,
    change nothing; weight_gather_axes concerns quantised weights. Quantisation is refused.

    >>> import cadre.jax.maxtext
    >>> cadre.jax.maxtext.gmm(jnp.ones((6, 4)), jnp.ones((3, 4, 5)), jnp.array([2, 0, 4])).shape
    (6, 5)
    """
    del tiling, interpret, use_tokamax_backend, weight_gather_axes, lhs_vma_axes, rhs_vma_axes
    del use_gmm_v2, use_gmm_v2_heuristic_tiling
    quantised = {
        "lhs_quantize_dtype": lhs_quantize_dtype, "rhs_quantize_dtype": rhs_quantize_dtype, "qwix_rule": qwix_rule,
        "use_qwix_quantization": use_qwix_quantization or None, "use_manual_quantization": use_manual_quantization or None,
    }  # fmt: skip
    for name, value in quantised.items():
        if value is not None:
            raise wrong_value(_OP, name, value, "none: operands are multiplied in their own type")
    wide = preferred_element_type if partial_sum is None else jnp.float32
    out = _drop_in.gmm(
        _OP,
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=wide,
        tiling=(128, 128, 128),
        group_offset=group_offset,
        existing_out=existing_out,
        transpose_rhs=transpose_rhs,
    )
    return out if partial_sum is None else (out + partial_sum).astype(preferred_element_type)


def install() -> Callable[..., Any]:
    """Replaces gmm in MaxText's kernels; returns the original."""
    try:
        megablox = importlib.import_module("maxtext.kernels.megablox")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("maxtext"):
            raise
        raise ImportError("cadre.jax.maxtext: MaxText is not installed: pip install maxtext") from error
    original = megablox.gmm
    megablox.gmm = gmm  # layers call it as mblx.gmm
    return original
