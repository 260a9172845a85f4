"""ejKernel's grouped_matmul and transposed_grouped_matmul, in the positional order of the functions behind its grouped_matmulv2 on a TPU.

Beyond ejKernel: any m without padding, a defined tail (zero), gradients of every operand. `tiling`,
`input_buffer_count` and `interpret` are TPU arguments: the first two are checked, and none changes a result.
"""

import jax.numpy as jnp

from . import _arguments, _drop_in

_INSTEAD = "; group_offset is the seventh argument here, or a keyword"


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

    existing_out: rows of rhs's groups are replaced, all others are kept. precision: as in cadre.jax.gmm.
    """
    del interpret
    op = "grouped_matmul"
    _arguments.positive(op, "input_buffer_count", input_buffer_count, _INSTEAD)
    return _drop_in.gmm(
        op,
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=tiling,
        group_offset=group_offset,
        existing_out=existing_out,
        transpose_rhs=transpose_rhs,
        precision=precision,
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
    del interpret
    op = "transposed_grouped_matmul"
    _arguments.positive(op, "input_buffer_count", input_buffer_count, _INSTEAD)
    return _drop_in.tgmm(
        op,
        lhs,
        rhs,
        group_sizes,
        preferred_element_type=preferred_element_type,
        tiling=tiling,
        group_offset=group_offset,
        num_actual_groups=num_actual_groups,
        existing_out=existing_out,
    )
