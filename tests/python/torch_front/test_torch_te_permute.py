"""Transformer Engine's moe_permute and moe_unpermute: what its own tests compare with (their PyTorch forms stand here), and
gradients."""

import pytest
import torch
from cadre.torch.compat.transformer_engine import (
    moe_permute,
    moe_permute_with_probs,
    moe_unpermute,
)
from torch.autograd import gradcheck, gradgradcheck
from torch_oracle import equal, random

TOKENS, EXPERTS, H = 23, 7, 5


def make(device, top_k, dtype=torch.float64):
    """Tokens, the experts of each (no two the same), their mask, and probabilities in both forms."""
    x = random(TOKENS, H, device=device, dtype=dtype)
    ids = torch.stack([torch.randperm(EXPERTS)[:top_k] for _ in range(TOKENS)]).to(device).int()
    mask = torch.zeros(TOKENS, EXPERTS, dtype=torch.int32, device=device)
    mask.scatter_(1, ids.long(), 1)
    probs = torch.rand(TOKENS, EXPERTS, device=device, dtype=dtype) * mask
    return x, ids, mask, probs, probs.gather(1, ids.long())


def permuted_by_index(tokens, indices, num_out_tokens):
    order = torch.argsort(indices.reshape(-1), stable=True)
    return tokens.index_select(0, order[:num_out_tokens] // indices.shape[1]), order


def unpermuted_by_index(rows, order, probs):
    out = torch.zeros((probs.numel(), rows.shape[1]), dtype=rows.dtype, device=rows.device)
    out = out.index_copy(0, order[: rows.shape[0]], rows)
    return (out.reshape(-1, probs.shape[1], rows.shape[1]) * probs.unsqueeze(-1)).sum(1)


def permuted_by_mask(tokens, mask):
    chosen = mask.bool().T.contiguous()
    every = torch.arange(tokens.shape[0], device=tokens.device).expand(mask.shape[1], -1)
    order = every.masked_select(chosen)
    return tokens.index_select(0, order), order


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("dropped", [0, 4])
def test_index_form(device, top_k, dropped):
    x, ids, _, _, probs = make(device, top_k)
    kept = TOKENS * top_k - dropped
    rows, row_id_map = moe_permute(x, ids, kept if dropped else 0, map_type="index")
    expected, order = permuted_by_index(x, ids, kept)
    assert equal(rows, expected) and row_id_map.shape == (TOKENS * top_k,)
    out = moe_unpermute(rows, row_id_map, probs, map_type="index")
    torch.testing.assert_close(out, unpermuted_by_index(rows, order, probs))
    if top_k == 1 and not dropped:
        assert equal(moe_unpermute(rows, row_id_map, map_type="index"), x)


@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("kind", [torch.int32, torch.bool], ids=str)
def test_mask_form(device, top_k, kind):
    x, _, mask, probs, _ = make(device, top_k)
    rows, row_id_map = moe_permute(x, mask.to(kind), TOKENS * top_k)
    expected, order = permuted_by_mask(x, mask)
    assert equal(rows, expected)
    again, row_probs, same_map = moe_permute_with_probs(x, probs, mask.to(kind), TOKENS * top_k)
    assert equal(again, rows) and equal(same_map, row_id_map)
    assert equal(row_probs, probs.T.contiguous().masked_select(mask.bool().T.contiguous()))
    summed = moe_unpermute(rows, row_id_map, restore_shape=x.shape)
    torch.testing.assert_close(summed, top_k * x)
    weighted = moe_unpermute(rows, row_id_map, probs, x.shape)
    scaled = rows * row_probs.unsqueeze(1)
    torch.testing.assert_close(weighted, torch.zeros_like(x).index_add(0, order, scaled))
    assert equal(moe_unpermute(rows, row_id_map, probs=probs), weighted)


def test_rows_behind_the_last_choice_are_zero_and_those_beyond_the_room_dropped(device):
    x, _, mask, probs, _ = make(device, 2)
    mask[3] = 0
    rows, row_id_map = moe_permute(x, mask, 2 * TOKENS)
    assert equal(rows[:-2], permuted_by_mask(x, mask)[0]) and (rows[-2:] == 0).all()
    assert (moe_unpermute(rows, row_id_map, probs)[3] == 0).all()
    few, few_map = moe_permute(x, mask, 5)
    assert equal(few, rows[:5]) and int((few_map >= 0).sum()) == 5


@pytest.mark.parametrize("map_type", ["mask", "index"])
def test_gradients_of_every_order(device, map_type):
    x, ids, mask, probs, chosen = make(device, 2)
    routing_map, weights = (mask, probs) if map_type == "mask" else (ids, chosen)

    def through(x, weights):
        rows, row_id_map = moe_permute(x, routing_map, 2 * TOKENS, map_type=map_type)
        return moe_unpermute(rows * rows, row_id_map, weights, map_type=map_type)

    inputs = (x.requires_grad_(), weights.clone().requires_grad_())
    assert gradcheck(through, inputs, fast_mode=True) and gradgradcheck(through, inputs, fast_mode=True)
    permuted = lambda probs: moe_permute_with_probs(x, probs, mask, 2 * TOKENS)[1]  # noqa: E731
    assert gradcheck(permuted, (probs.clone().requires_grad_(),), fast_mode=True)


def test_it_compiles_as_one_graph(device):
    x, _, mask, probs, _ = make(device, 2)

    def through(x, mask, probs):
        rows, row_id_map = moe_permute(x, mask, 2 * TOKENS)
        return moe_unpermute(rows, row_id_map, probs, x.shape)

    compiled = torch.compile(through, fullgraph=True, backend="aot_eager")
    assert equal(compiled(x, mask, probs), through(x, mask, probs))


X, IDS, MASK, PROBS, _ = make("cpu", 2)
FAULTS = {
    "map_type": (
        lambda: moe_permute(X, MASK, 4, map_type="both"),
        ValueError,
        "moe_permute: map_type = 'both', expected 'mask' or 'index'",
    ),
    "tokens": (
        lambda: moe_permute(X[1:], MASK, 4),
        ValueError,
        r"moe_permute: routing_map.shape\[0\] = 23, expected inp.shape\[0\] = 22",
    ),
    "no rows": (
        lambda: moe_permute(X, MASK, 0),
        ValueError,
        "moe_permute: num_out_tokens = 0, expected 1 or more",
    ),
    "ids of floats": (
        lambda: moe_permute(X, PROBS, 4, map_type="index"),
        TypeError,
        "moe_permute: routing_map.dtype = torch.float64, expected an integer type",
    ),
    "padding": (
        lambda: moe_unpermute(X, MASK, pad_offsets=MASK[0]),
        ValueError,
        "moe_unpermute: pad_offsets = given, expected None",
    ),
    "shape": (
        lambda: moe_unpermute(X, MASK, restore_shape=(3, H)),
        ValueError,
        r"moe_unpermute: restore_shape = \[3, 5\], expected \[23, 5\]",
    ),
    "probabilities": (
        lambda: moe_unpermute(X, MASK - 1, PROBS[:, 1:]),
        ValueError,
        "moe_unpermute: merging_probs.shape",
    ),
    "probabilities of another shape": (
        lambda: moe_permute_with_probs(X, PROBS[1:], MASK, 4),
        ValueError,
        r"moe_permute_with_probs: probs.shape = \[22, 7\], expected routing_map.shape = \[23, 7\]",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named(name):
    call, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        call()
