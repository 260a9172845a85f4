"""ejKernel's grouped_matmul and transposed_grouped_matmul, with their positional order.

Beyond ejKernel: any m without padding, a defined tail (zero), gradients of every operand. `tiling`,
`input_buffer_count` and `interpret` are TPU arguments: they are checked or ignored, and change no result.
"""

import jax.numpy as jnp

from . import megablox
from ._arguments import precision as _check_precision


def grouped_matmul(
    lhs,
    rhs,
    group_sizes,
    preferred_element_type=jnp.float32,
    tiling=(128, 128, 128),
    input_buffer_count=2,
    group_offset=None,
    transpose_rhs=False,
    interpret=False,
    *,
    existing_out=None,
    precision=None,
):
    """lhs [m, k], rhs [g, k, n] (or [g, n, k] with transpose_rhs) -> [m, n].

    existing_out: rows of rhs's groups are replaced, all others are kept.
    """
    _check_buffers("grouped_matmul", input_buffer_count)
    _check_precision("grouped_matmul", precision)
    dtype = jnp.float32 if preferred_element_type is None else preferred_element_type
    return megablox.gmm(
        lhs, rhs, group_sizes, dtype, tiling, group_offset, existing_out, transpose_rhs, interpret
    )


def transposed_grouped_matmul(
    lhs,
    rhs,
    group_sizes,
    preferred_element_type=jnp.float32,
    tiling=(128, 128, 128),
    input_buffer_count=2,
    group_offset=None,
    num_actual_groups=None,
    interpret=False,
    *,
    existing_out=None,
):
    """lhs [k, m], rhs [m, n] -> [num_actual_groups, k, n]; existing_out is added."""
    _check_buffers("transposed_grouped_matmul", input_buffer_count)
    dtype = jnp.float32 if preferred_element_type is None else preferred_element_type
    return megablox.tgmm(
        lhs,
        rhs,
        group_sizes,
        dtype,
        tiling,
        group_offset,
        num_actual_groups,
        existing_out,
        interpret,
    )


def _check_buffers(op, input_buffer_count):
    if input_buffer_count < 1:
        raise ValueError(f"{op}: input_buffer_count = {input_buffer_count}, expected 1 or more")
