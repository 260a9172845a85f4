"""FP8 rows over an exchange: data and scales travel together, and arrive as a ScaledTensor. Cases for
expert_parallel_ranks.py."""

import cadre.torch as T
import torch
from cadre.torch import expert_parallel as ep
from expert_parallel_cases import E, TOKENS, TOP_K, call
from expert_parallel_refusals import expect
from expert_parallel_stand_ins import OverGloo

CASES = {}
K, N = 200, 24  #: two blocks of 128 in a row, the second one short


def case(function):
    CASES[function.__name__] = function
    return function


def exchanges():
    return ep.AllToAll(E), ep.Capacity(E, TOP_K * TOKENS), OverGloo(E, TOP_K * TOKENS)


def quantized(here, mode, dtype=torch.float8_e4m3fn):
    """Of each rank its own, as the rank would: in mode "tensor" the scales differ."""
    wide = torch.randn(here.ranks * TOKENS, K) * torch.rand(here.ranks * TOKENS, 1)
    return [T.quantize(wide[part], mode, dtype=dtype) for part in here.parts(TOKENS)]


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


@case
def fp8_rows_arrive_with_the_scales_of_their_ranks(here):
    for mode in ("tensor", "row", "block_128", "mx"):
        for exchange in exchanges():
            _, ids, weights, _, mine = call(here)
            parts = quantized(here, mode)
            rows, sizes, handle = exchange.dispatch(parts[here.rank], ids[mine], weights[mine])
            assert isinstance(rows, T.ScaledTensor) and rows.mode == ("row" if mode == "tensor" else mode)
            # One process: the same permutation of the data and of the scales of each token.
            routing = T.route(ids, E)
            data = T.permute(torch.cat([each.data for each in parts]), routing)
            scales = [each.scales.expand(TOKENS) if mode == "tensor" else each.scales for each in parts]
            scales = T.permute(torch.cat(scales).view(len(ids), -1), routing)
            ends = routing.group_sizes.cumsum(0)
            first = exchange.first_expert
            held = slice(int(ends[first - 1]) if first else 0, int(ends[first + exchange.local_experts - 1]))
            count = held.stop - held.start
            assert int(sizes.sum()) == count
            assert torch.equal(as_bytes(rows.data[:count]), as_bytes(data[held]))
            arrived = rows.scales.view(rows.data.shape[0], -1)
            assert torch.equal(as_bytes(arrived[:count]), as_bytes(scales[held]))
            # And products of them are those of one process, as is what collect sums up.
            of_weights = "row" if mode == "tensor" else mode
            w = T.quantize(torch.randn(E, N, K), of_weights)
            here_w = T.ScaledTensor(*(each[first : first + exchange.local_experts] for each in (w.data, w.scales)), of_weights)
            out = exchange.collect(T.gmm(rows, here_w, sizes, transpose_rhs=True), handle)
            whole = T.ScaledTensor(data, scales.view(-1) if of_weights == "row" else scales, of_weights)
            y = T.gmm(whole, w, routing.group_sizes, transpose_rhs=True)
            assert torch.equal(out, T.combine(y, routing, weights)[mine]), mode


@case
def fp8_rows_that_differ_or_cannot_travel_are_named_on_every_rank(here):
    odd = here.rank == 1
    for exchange in exchanges():
        _, ids, _, _, mine = call(here)
        row, other = quantized(here, "row")[here.rank], quantized(here, "block_128")[here.rank]
        wide = quantized(here, "row", torch.float8_e5m2)[here.rank]
        for x, name, there, here_has in (
            (other, "x.scales", "f32 of mode 'block_128'", "f32 of mode 'row'"),
            (wide, "x.dtype", "torch.float8_e5m2", "torch.float8_e4m3fn"),
            (row.data, "x.scales", "none", "f32 of mode 'row'"),
        ):
            differs = ValueError, f"{name} on rank 1 = {there}, expected the same on every rank; rank 0 has {here_has}"
            expect(here, lambda: exchange.dispatch(x if odd else row, ids[mine]), *differs, differs)
        for x, kind, message in (
            (T.ScaledTensor(row.data, row.scales[:3], "row"), ValueError, r"x.scales.shape = \[3\], expected \[17\], for"),
            (T.ScaledTensor(row.data, row.scales.double(), "row"), TypeError, "x.scales.dtype = torch.float64, exp"),
            (T.ScaledTensor(row.data.float(), row.scales, "row"), TypeError, "x.data.dtype = torch.float32, exp"),
            (T.ScaledTensor([row.data], row.scales, "row"), TypeError, "x.data is a list"),
            (T.ScaledTensor(row.data, row.scales, "row", columns=True), ValueError, "x.columns = True, expected False"),
        ):
            expect(here, lambda: exchange.dispatch(x if odd else row, ids[mine]), kind, message)
        exchange.dispatch(row, ids[mine])
        # A rank's one scale becomes that of each of its rows.
        one = quantized(here, "tensor")[here.rank]
        assert exchange.dispatch(one if odd else row, ids[mine]).rows.mode == "row"
