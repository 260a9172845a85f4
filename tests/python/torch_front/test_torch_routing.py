"""select_experts, route, permute and combine: what plain torch gives, gradients to any order, transforms, bad input."""

import cadre.torch
import pytest
import torch
from cadre.torch import Routing
from torch.autograd import gradcheck, gradgradcheck
from torch_oracle import equal, random

T = cadre.torch
TOKENS, EXPERTS, TOP_K, H = 37, 9, 3, 5

SELECTIONS = {
    "softmax": {},
    "softmax over all": {"normalize": False},
    "sigmoid": {"score": "sigmoid"},
    "sigmoid as it is": {"score": "sigmoid", "normalize": False, "scale": 2.5},
    "best groups": {"score": "sigmoid", "num_groups": 3, "top_groups": 2, "scale": 2.5},
    "groups by their best expert": {"num_groups": 3, "top_groups": 1, "group_score": "max"},
}


def chosen_by_torch(logits, top_k, score="softmax", normalize=True, scale=1.0, bias=None, **groups):
    scores = torch.softmax(logits, -1) if score == "softmax" else torch.sigmoid(logits)
    ranked = scores if bias is None else scores + bias
    if groups:
        by_group = ranked.unflatten(-1, (groups["num_groups"], -1))
        best = by_group.topk(1 if groups.get("group_score") == "max" else 2, -1).values.sum(-1)
        left = torch.zeros_like(best, dtype=torch.bool)
        left = left.scatter(-1, best.topk(groups["top_groups"], -1).indices, True)
        ranked = by_group.masked_fill(~left.unsqueeze(-1), -torch.inf).flatten(-2)
    ids = ranked.topk(top_k, -1).indices
    weights = scores.gather(-1, ids)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return scale * weights, ids


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_experts_and_weights_are_those_of_topk(device, name, with_bias):
    logits = random(TOKENS, EXPERTS, device=device)
    bias = random(EXPERTS, device=device) if with_bias else None
    options = SELECTIONS[name]
    weights, ids = T.select_experts(logits, TOP_K, correction_bias=bias, **options)
    expected, expected_ids = chosen_by_torch(logits, TOP_K, bias=bias, **options)
    assert torch.equal(ids, expected_ids) and ids.dtype == torch.int64
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_of_narrow_logits_may_be_wide(device, dtype):
    logits = random(TOKENS, EXPERTS, dtype=dtype, device=device)
    weights, ids = T.select_experts(logits, 2, out_dtype=torch.float32, ids_dtype=torch.int32)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    torch.testing.assert_close(weights, chosen_by_torch(logits.float(), 2)[0])
    assert T.select_experts(logits, 2)[0].dtype == dtype


def routed_by_hand(ids, num_experts):
    """Routing by a stable sort in Python."""
    slots = [(int(e), t, j) for t, row in enumerate(ids.tolist()) for j, e in enumerate(row)]
    kept = sorted((slot for slot in slots if 0 <= slot[0] < num_experts), key=lambda slot: slot[0])
    sizes = [sum(slot[0] == e for slot in kept) for e in range(num_experts)]
    source_row, slot_row = [-1] * len(slots), torch.full(ids.shape, -1)
    for row, (_, t, j) in enumerate(kept):
        source_row[row] = t
        slot_row[t, j] = row
    return torch.tensor(sizes), torch.tensor(source_row), slot_row


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("out", [torch.int32, torch.int64], ids=str)
def test_rows_are_sorted_by_expert_and_keep_their_order(device, dtype, out):
    ids = torch.randint(0, EXPERTS + 2, (TOKENS, TOP_K)).to(dtype)  # the last two are nobody's
    routing = T.route(ids.to(device), EXPERTS, dtype=out)
    for got, expected in zip(routing, routed_by_hand(ids, EXPERTS), strict=True):
        assert got.dtype == out and torch.equal(got.cpu().long(), expected)


def make(device="cpu", requires_grad=False, dropped=True):
    ids = torch.randint(0, EXPERTS + dropped, (TOKENS, TOP_K), device=device)
    tensors = {
        "y": random(TOKENS * TOP_K, H, device=device, requires_grad=requires_grad),
        "weights": random(TOKENS, TOP_K, device=device, requires_grad=requires_grad),
        "shared": random(TOKENS, H, device=device, requires_grad=requires_grad),
        "residual": random(TOKENS, H, device=device, requires_grad=requires_grad),
    }
    return T.route(ids, EXPERTS), tensors


def combined_by_torch(routing, y, weights=None, shared=None, residual=None):
    slot_row = routing.slot_row.long()
    rows = torch.where((slot_row >= 0).unsqueeze(-1), y[slot_row.clamp(min=0)], 0)
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    total = rows.sum(1)
    return total + sum(each for each in (shared, residual) if each is not None)


def test_permute_copies_rows_and_combine_sums_them(device):
    routing, tensors = make(device)
    x = random(TOKENS, H, device=device)
    rows = T.permute(x, routing)
    source = routing.source_row.long()
    expected = torch.where((source >= 0).unsqueeze(-1), x[source.clamp(min=0)], 0)
    assert equal(rows, expected)
    for names in ((), ("weights",), ("shared",), ("weights", "shared", "residual")):
        given = {name: tensors[name] for name in names}
        torch.testing.assert_close(
            T.combine(tensors["y"], routing, **given),
            combined_by_torch(routing, tensors["y"], **given),
        )
    wide = T.combine(tensors["y"].bfloat16(), routing, out_dtype=torch.float32)
    assert wide.dtype == torch.float32


def test_rows_that_no_token_names_are_not_read_and_have_no_gradient(device):
    routing, tensors = make(device)
    y = tensors["y"].clone()
    count = int(routing.group_sizes.sum())
    y[count:] = float("nan")
    y.requires_grad_()
    out = T.combine(y, routing, tensors["weights"])
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert (y.grad[count:] == 0).all()


@pytest.mark.parametrize("name", SELECTIONS)
def test_gradients_of_select_experts(device, name):
    logits = random(4, EXPERTS, device=device, requires_grad=True)
    select = lambda logits: T.select_experts(logits, TOP_K, **SELECTIONS[name])[0]  # noqa: E731
    assert gradcheck(select, (logits,), check_forward_ad=True)
    assert gradgradcheck(select, (logits,))


def test_gradients_of_permute_and_combine(device):
    routing, tensors = make(device, requires_grad=True)
    x = random(TOKENS, H, device=device, requires_grad=True)
    assert gradcheck(lambda x: T.permute(x, routing), (x,), check_forward_ad=True)
    assert gradgradcheck(lambda x: T.permute(x, routing), (x,))
    inputs = tuple(tensors.values())

    def combine(y, weights, shared, residual):
        return T.combine(y, routing, weights, shared=shared, residual=residual)

    assert gradcheck(combine, inputs, check_forward_ad=True)
    assert gradgradcheck(combine, inputs)


def layer(x, logits, w13, w2):
    """A whole mixture-of-experts layer."""
    weights, ids = T.select_experts(logits, 2)
    routing = T.route(ids, logits.shape[1])
    hidden = T.gmm(T.permute(x, routing), w13, routing.group_sizes)
    gate, up = hidden.chunk(2, -1)
    rows = T.gmm(torch.nn.functional.silu(gate) * up, w2, routing.group_sizes)
    return T.combine(rows, routing, weights, residual=x)


def layer_inputs(device, *, requires_grad):
    shapes = ((11, 6), (11, 4), (4, 6, 14), (4, 7, 6))
    return [random(*shape, device=device, requires_grad=requires_grad) for shape in shapes]


def test_a_layer_has_the_values_and_gradients_of_a_loop_over_tokens(device):
    inputs = layer_inputs(device, requires_grad=True)
    x, logits, w13, w2 = inputs
    weights, ids = chosen_by_torch(logits, 2)
    rows = []
    for t in range(x.shape[0]):
        total = x[t]
        for j in range(2):
            gate, up = (x[t] @ w13[ids[t, j]]).chunk(2)
            product = (torch.nn.functional.silu(gate) * up) @ w2[ids[t, j]]
            total = total + weights[t, j] * product
        rows.append(total)
    expected, out = torch.stack(rows), layer(*inputs)
    torch.testing.assert_close(out, expected)
    dy = random(*out.shape, device=device)
    wanted = torch.autograd.grad(expected, inputs, dy)
    for got, want in zip(torch.autograd.grad(out, inputs, dy), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_a_layer_compiles_as_one_graph_and_maps(device):
    inputs = layer_inputs(device, requires_grad=True)
    out = layer(*inputs)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(*inputs)
    assert equal(compiled, out)
    dy = random(*out.shape, device=device)
    pairs = zip(
        torch.autograd.grad(compiled, inputs, dy), torch.autograd.grad(out, inputs, dy), strict=True
    )
    assert all(equal(*pair) for pair in pairs)
    several = [torch.stack([each.detach(), -each.detach()]) for each in inputs]
    mapped = torch.func.vmap(layer)(*several)
    assert equal(mapped[1], layer(*(each[1] for each in several)))


def test_a_token_has_the_same_bits_in_every_batch(device):
    x, logits, w13, w2 = layer_inputs(device, requires_grad=False)
    assert equal(layer(x, logits, w13, w2)[3:5], layer(x[3:5], logits[3:5], w13, w2))


ROUTING, _TENSORS = make()
LOGITS = random(TOKENS, EXPERTS)
FAULTS = {
    "top_k": (
        lambda: T.select_experts(LOGITS, EXPERTS + 1),
        ValueError,
        "select_experts: .*expert_ids",
    ),
    "negative top_k": (
        lambda: T.select_experts(LOGITS, -1),
        ValueError,
        "select_experts: top_k = -1, expected 0 or more",
    ),
    "top_k is a float": (
        lambda: T.select_experts(LOGITS, 2.0),
        TypeError,
        "select_experts: top_k is a float, expected an int",
    ),
    "logits of ints": (
        lambda: T.select_experts(LOGITS.int(), 2),
        TypeError,
        "select_experts: logits.dtype = torch.int32, expected torch.float64",
    ),
    "score": (
        lambda: T.select_experts(LOGITS, 2, score="tanh"),
        ValueError,
        "select_experts: score = 'tanh', expected 'softmax' or 'sigmoid'",
    ),
    "ids_dtype": (
        lambda: T.select_experts(LOGITS, 2, ids_dtype=torch.int8),
        TypeError,
        "select_experts: ids_dtype = torch.int8, expected torch.int32 or torch.int64",
    ),
    "ids of floats": (
        lambda: T.route(LOGITS, EXPERTS),
        TypeError,
        "route: expert_ids.dtype = torch.float64, expected torch.int8",
    ),
    "ids of one token": (
        lambda: T.route(torch.tensor([1, 2]), EXPERTS),
        ValueError,
        r"route: expert_ids.rank = 1 \(shape \[2\]\), expected 2",
    ),
    "no routing": (
        lambda: T.permute(LOGITS, torch.arange(4)),
        TypeError,
        "permute: routing is a Tensor, expected what cadre.torch.route returns",
    ),
    "x of another rank": (
        lambda: T.permute(LOGITS[0], ROUTING),
        ValueError,
        r"permute: x.rank = 1 \(shape \[9\]\), expected 2",
    ),
    "weights of another shape": (
        lambda: T.combine(random(TOKENS * TOP_K, H), ROUTING, random(TOKENS, TOP_K + 1)),
        ValueError,
        "combine: weights.shape",
    ),
    "y is a list": (
        lambda: T.combine([1.0], ROUTING),
        TypeError,
        "combine: y is a list, expected a torch.Tensor",
    ),
    "an index that is no row": (
        lambda: T.permute(LOGITS, Routing(ROUTING[0], ROUTING[1] + TOKENS, ROUTING[2])),
        ValueError,
        r"permute: source_row\[",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named(name):
    call, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        call()
