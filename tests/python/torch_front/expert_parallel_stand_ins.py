"""Exchanges over collectives that no machine here has: torch's symmetric memory and DeepEP's buffer. What they would do is done
by gloo, to their documented behaviour; the exchanges around them are cadre's. Cases for expert_parallel_ranks.py."""

import cadre.torch as T
import torch
import torch.distributed as dist
from cadre.torch import expert_parallel as ep
from expert_parallel_cases import E, H, TOKENS, TOP_K, call, check_equal, layers, raises

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def exchanged(rows, sent, received):
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), received, sent)
    return out


class OverGloo(ep.SymmetricMemory):
    """all_to_all_vdev_2d: blocks by (rank, expert) become blocks by (expert, rank), an expert of no rows taking one; the form
    with offsets takes blocks from where they lie and puts them one behind the other."""

    def _lacks(self):
        return None

    def _allocate(self, shape, dtype, device):
        return torch.zeros(shape, dtype=dtype).fill_(113)  # nothing may depend on what a buffer held

    def _vdev_2d(self, source, target, splits, received):
        sent = splits.view(self.ranks, -1)
        arrived = torch.empty_like(sent)
        dist.all_to_all_single(arrived, sent)
        rows = exchanged(source[: int(sent.sum())], sent.sum(1).tolist(), arrived.sum(1).tolist())
        blocks = rows.split(arrived.flatten().tolist())
        target.fill_(255)
        at = 0
        for expert in range(self.local_experts):
            begin = at
            for rank in range(self.ranks):
                block = blocks[rank * self.local_experts + expert]
                received[:, expert * self.ranks + rank] = torch.tensor([len(block), at])
                target[at : at + len(block)] = block
                at += len(block)
            at += at == begin
        assert at <= len(target)

    def _vdev_2d_offset(self, source, target, held, returned):
        sizes, starts = (each.view(self.local_experts, self.ranks).T.tolist() for each in held)
        blocks = [source[start : start + size] for row, at in zip(sizes, starts, strict=True)
                  for size, start in zip(row, at, strict=True)]  # fmt: skip
        sent = [sum(row) for row in sizes]
        counts = torch.empty(self.ranks, dtype=torch.int64)
        dist.all_to_all_single(counts, torch.tensor(sent))
        rows = exchanged(torch.cat(blocks), sent, counts.tolist())
        target.fill_(255)
        target[: len(rows)] = rows


@case
def symmetric_memory_gives_the_bits_of_one_process(here):
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in (TOKENS, (5, 0, 17, 1), (0, 0, 0, 0)):
            exchange = OverGloo(E, TOP_K * TOKENS)
            check_equal(here, *layers(here, dtype, exchange=exchange), call(here, tokens, dtype))
    made = layers(here, exchange=OverGloo(E, TOP_K * TOKENS))
    check_equal(here, *made, call(here, low=E - 1, high=E))
    check_equal(here, *layers(here, exchange=OverGloo(E, TOP_K * TOKENS), chunks=2), call(here), exact_parameters=False)


@case
def symmetric_memory_is_refused_by_name_where_it_is_missing(here):
    # A CPU's torch has the operator's name and no NVSHMEM.
    raises(ValueError, "symmetric memory = (no NVSHMEM|torch .* without)", lambda: ep.SymmetricMemory(E, 8))
    raises(ValueError, "max_slots = 0, expected 1 or more", lambda: OverGloo(E, 0))
    other = 8 if here.rank == 1 else 4
    raises(ValueError, "max_slots on rank 1 = 8, .* rank 0 has 4", lambda: OverGloo(E, other))
    spread, _, _ = layers(here, exchange=OverGloo(E, TOKENS))
    x, ids, weights, _, mine = call(here)
    raises(ValueError, rf"expert_ids.numel\(\) = {TOKENS * TOP_K}, expected max_slots = {TOKENS} at most",
           lambda: spread(x[mine], ids[mine], weights[mine]))  # fmt: skip


IDS = torch.int64  #: deep_ep.topk_idx_t
WIDTH = 16  #: a multiple of what DeepEP's kernels read at once


class Buffer:
    """deep_ep.Buffer (dd758ca): its methods with their parameters. Each token goes to a rank once."""

    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        assert topk_idx.dtype == IDS and topk_idx.is_contiguous()
        self.ranks, self.rank, self.experts = dist.get_world_size(), dist.get_rank(), num_experts
        ranks = torch.where(topk_idx < 0, -1, topk_idx // (num_experts // self.ranks))
        in_rank = (ranks[:, :, None] == torch.arange(self.ranks)).any(1)
        per_expert = torch.bincount(topk_idx[topk_idx >= 0], minlength=num_experts).int()
        return in_rank.sum(0).int(), None, per_expert, in_rank, None

    def dispatch(
        self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
        num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0, config=None,
        previous_event=None, async_finish=False, allocate_on_comm_stream=False,
    ):  # fmt: skip
        # EP_HOST_ASSERT and EP_DEVICE_ASSERT of csrc/legacy/buffer.hpp and csrc/kernels/legacy/intranode.cu.
        assert x.dtype == torch.bfloat16 and x.is_contiguous() and x.shape[1] * 2 % 32 == 0
        if handle is not None:
            in_rank, sent, received, most = handle
            return self._padded(self._sent(x, in_rank, sent, received), most), None, None, None, None, None
        assert topk_idx.is_contiguous() and topk_weights.is_contiguous() and topk_idx.shape == topk_weights.shape
        assert topk_weights.dtype == torch.float32 and num_tokens_per_rank.tolist() == is_token_in_rank.sum(0).tolist()
        sent, counts = num_tokens_per_rank.long(), torch.empty(self.ranks, dtype=torch.int64)
        dist.all_to_all_single(counts, sent)
        layout = is_token_in_rank, sent.tolist(), counts.tolist()
        local = self.experts // self.ranks
        ids = self._sent(topk_idx, *layout) - self.rank * local
        weights = self._sent(topk_weights, *layout)
        here = (ids >= 0) & (ids < local)
        rows, ids, weights = self._sent(x, *layout), torch.where(here, ids, -1), torch.where(here, weights, 0.0)
        most = num_worst_tokens
        per_expert = [] if most else torch.bincount(ids[ids >= 0], minlength=local).tolist()
        ids = self._padded(ids, most, -1)
        return self._padded(rows, most), ids, self._padded(weights, most), per_expert, (*layout, most), None

    def combine(
        self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
        allocate_on_comm_stream=False,
    ):  # fmt: skip
        in_rank, sent, received, most = handle
        assert x.dtype == torch.bfloat16 and bias is None and x.is_contiguous() and len(x) == (most or sum(received))
        assert topk_weights is None or (topk_weights.is_contiguous() and topk_weights.dtype == torch.float32)
        return self._returned(x, handle).bfloat16(), None if topk_weights is None else self._returned(topk_weights, handle), None

    def _sent(self, tensor, in_rank, sent, received):
        return exchanged(torch.cat([tensor[in_rank[:, rank]] for rank in range(self.ranks)]), sent, received)

    def _returned(self, tensor, handle):
        in_rank, sent, received, _ = handle
        back = exchanged(tensor[: sum(received)], received, sent).float()
        out = torch.zeros(len(in_rank), *tensor.shape[1:])
        for rank, rows in enumerate(back.split(sent)):
            out[in_rank[:, rank]] += rows
        return out

    def _padded(self, tensor, most, value=float("nan")):
        if not most:
            return tensor
        rest = tensor.new_full((most - len(tensor), *tensor.shape[1:]), value)
        return torch.cat([tensor, rest])


@case
def deep_ep_s_buffer_brings_tokens_to_experts_and_sums_back(here):
    for most in (0, here.ranks * TOKENS + 3):
        exchange = ep.DeepEP(E, Buffer(), num_worst_tokens=most)
        _, ids, weights, _, mine = call(here, dtype=torch.bfloat16)
        x, dout = torch.randn(2, len(ids), WIDTH).bfloat16()
        ids, weights = ids.T.contiguous().T, weights.float().T.contiguous().T  # DeepEP takes no gaps
        w = torch.randn(E, WIDTH, WIDTH).bfloat16()
        a, b, c = (each.clone().requires_grad_() for each in
                   (x[mine], weights[mine], w[here.rank * (E // here.ranks) :][: E // here.ranks]))  # fmt: skip
        rows, sizes, handle = exchange.dispatch(a, ids[mine], b)
        out = exchange.collect(T.gmm(rows, c, sizes), handle, residual=a)
        out.backward(dout[mine])
        xs, ws, cs = (each.clone().requires_grad_() for each in (x, weights, w))
        routing = T.route(ids, E)
        expected = T.combine(T.gmm(T.permute(xs, routing), cs, routing.group_sizes), routing, ws, residual=xs)
        expected.backward(dout)
        held = slice(here.rank * (E // here.ranks), (here.rank + 1) * (E // here.ranks))
        pairs = ((out, expected[mine]), (a.grad, xs.grad[mine]), (b.grad, ws.grad[mine]), (c.grad, cs.grad[held]))
        for found, wanted in pairs:
            # bf16 is rounded to on each rank, once more with the residual, and in the gradients' products.
            bound = (here.ranks + 2) * 2**-8 * wanted.float().abs().max()
            assert (found.float() - wanted.float()).abs().max() <= bound


@case
def what_deep_ep_cannot_take_is_named(here):
    raises(TypeError, "buffer is an object, expected a deep_ep.Buffer: it has no get_dispatch", lambda: ep.DeepEP(E, object()))
    raises(ValueError, f"num_experts = {E + 1}, expected a multiple", lambda: ep.DeepEP(E + 1, Buffer()))
    exchange = ep.DeepEP(E, Buffer())
    x, ids, weights, _, mine = call(here)
    raises(TypeError, "x.dtype = torch.float32, expected torch.bfloat16", lambda: exchange.dispatch(x[mine], ids[mine]))
    narrow = x[mine].bfloat16()
    raises(ValueError, r"x.shape\[1\] = 12, expected a multiple of 16", lambda: exchange.dispatch(narrow, ids[mine]))
    wide, many = torch.zeros(TOKENS, WIDTH).bfloat16(), torch.zeros(TOKENS, 33, dtype=torch.int64)
    raises(ValueError, r"expert_ids.shape\[1\] = 33, expected 32 at most", lambda: exchange.dispatch(wide, many))
    raises(ValueError, "exchange = .*DeepEP object", lambda: ep.ExpertParallelMLP(E, H, H, exchange=exchange))
