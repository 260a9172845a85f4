"""A grouped product in Triton, as one would write it: persistent programs that walk the experts' tiles.

`rows` multiplies each expert's rows of x with its weights; `weights` gives each expert's weight gradient. Ends of the
groups stay on the device.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _rows_kernel(
    x,
    w,
    out,
    ends,
    num_groups,
    n,
    k,
    w_group,
    w_k,
    w_n,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    first_tile = 0
    begin = 0
    tiles_n = tl.cdiv(n, BLOCK_N)
    for group in range(num_groups):
        end = tl.load(ends + group)
        tiles_m = tl.cdiv(end - begin, BLOCK_M)
        last_tile = first_tile + tiles_m * tiles_n
        while tile < last_tile:
            # Tiles along m come first: they share a part of the expert's weights.
            local = tile - first_tile
            rows = begin + (local % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
            columns = (local // tiles_m) * BLOCK_N + tl.arange(0, BLOCK_N)
            steps = tl.arange(0, BLOCK_K)
            # Columns are bounded by a mask and not by tl.where, which would hide that they are consecutive.
            in_rows = rows[:, None] < end
            in_columns = columns[None, :] < n
            a = x + rows.to(tl.int64)[:, None] * k + steps[None, :]
            b = w + group.to(tl.int64) * w_group
            b += steps[:, None] * w_k + columns.to(tl.int64)[None, :] * w_n
            sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in range(tl.cdiv(k, BLOCK_K)):
                valid = step * BLOCK_K + steps < k
                left = tl.load(a, mask=valid[None, :] & in_rows, other=0.0)
                right = tl.load(b, mask=valid[:, None] & in_columns, other=0.0)
                sums = tl.dot(left, right, sums)
                a += BLOCK_K
                b += BLOCK_K * w_k
            address = out + rows.to(tl.int64)[:, None] * n + columns[None, :]
            tl.store(address, sums.to(out.dtype.element_ty), mask=in_rows & in_columns)
            tile += tl.num_programs(0)
        first_tile = last_tile
        begin = end


@triton.jit
def _weights_kernel(
    dy,
    x,
    out,
    ends,
    num_groups,
    n,
    k,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    tile = tl.program_id(0)
    first_tile = 0
    begin = 0
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_n * tl.cdiv(k, BLOCK_K)
    for group in range(num_groups):
        end = tl.load(ends + group)
        while tile < first_tile + tiles:
            local = tile - first_tile
            in_n = (local % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
            in_k = (local // tiles_n) * BLOCK_K + tl.arange(0, BLOCK_K)
            sums = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
            for first_row in range(begin, end, BLOCK_R):
                rows = first_row + tl.arange(0, BLOCK_R)
                valid = rows[:, None] < end
                wide = rows.to(tl.int64)[:, None]
                left = tl.load(
                    dy + wide * n + in_n[None, :], mask=valid & (in_n[None, :] < n), other=0.0
                )
                right = tl.load(
                    x + wide * k + in_k[None, :], mask=valid & (in_k[None, :] < k), other=0.0
                )
                sums = tl.dot(tl.trans(left), right, sums)
            matrix = out + group.to(tl.int64) * n * k
            address = matrix + in_n.to(tl.int64)[:, None] * k + in_k[None, :]
            inside = (in_n[:, None] < n) & (in_k[None, :] < k)
            tl.store(address, sums.to(out.dtype.element_ty), mask=inside)
            tile += tl.num_programs(0)
        first_tile += tiles
        begin = end


def _programs():
    return (torch.cuda.get_device_properties(0).multi_processor_count,)


def rows(x, w, ends, out, transposed):
    """out[m, n] = x[m, k] @ w_g; w is [g, n, k] when transposed, else [g, k, n]."""
    m, k = x.shape
    n = out.shape[1]
    few = m // len(ends) <= 32
    # For few rows: a thin tile and a deep pipeline, which is bound by reading the weights.
    block = {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_K": 128} if few else {}
    block = block or {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}
    w_k, w_n = (1, k) if transposed else (n, 1)
    _rows_kernel[_programs()](
        x, w, out, ends, len(ends), n, k, w.stride(0), w_k, w_n,
        **block, num_warps=4 if few else 8, num_stages=4 if few else 3,
    )  # fmt: skip
    return out


def weights(dy, x, ends, out):
    """out[g, n, k] = dy[rows of g]^T @ x[rows of g]."""
    _weights_kernel[_programs()](
        dy, x, out, ends, len(ends), dy.shape[1], x.shape[1],
        BLOCK_N=128, BLOCK_K=256, BLOCK_R=64, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
