"""moe_mlp: every activation, layout and form against a loop over tokens, gradients, compilation, shards, bad input."""

import cadre.torch
import pytest
import torch
from cadre._options import ACTIVATIONS as KINDS
from cadre.torch._activation import activation_of
from torch.autograd import gradcheck, gradgradcheck
from torch_oracle import equal, random

T = cadre.torch
TOKENS, H, I, G, TOP_K = 13, 6, 5, 4, 3
CLAMP = {"alpha": 1.3, "limit": 0.8, "up_offset": 0.5}


def make(device="cpu", *, kind="swiglu", transposed=False, requires_grad=False, dtype=torch.float64):
    """Ids, some of which no expert has, and the tensors of a layer by name."""
    columns = 2 * I if "glu" in kind else I
    shapes = {
        "x": (TOKENS, H),
        "weights": (TOKENS, TOP_K),
        "w13": (G, H, columns) if transposed else (G, columns, H),
        "w2": (G, I, H) if transposed else (G, H, I),
        "bias13": (G, columns),
        "bias2": (G, H),
        "shared": (TOKENS, H),
        "residual": (TOKENS, H),
    }
    tensors = {
        name: random(*shape, device=device, dtype=dtype, requires_grad=requires_grad)
        for name, shape in shapes.items()
    }
    return torch.randint(-1, G + 1, (TOKENS, TOP_K), device=device), tensors


def by_hand(
    ids, x, weights, w13, w2, bias13, bias2, shared, residual, *, function, transposed, on_input
):
    rows = []
    for t in range(TOKENS):
        total = shared[t] + residual[t]
        for j, expert in enumerate(ids[t].tolist()):
            if not 0 <= expert < G:
                continue
            first, second = w13[expert], w2[expert]
            if not transposed:
                first, second = first.t(), second.t()
            row = x[t] * weights[t, j] if on_input else x[t]
            out = function(row @ first + bias13[expert]) @ second + bias2[expert]
            total = total + (out if on_input else weights[t, j] * out)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True], ids=["out by in", "in by out"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["concatenated", "interleaved"])
@pytest.mark.parametrize("on_input", [False, True], ids=["weighted out", "weighted in"])
def test_values_and_gradients_are_those_of_a_loop_over_tokens(
    device, kind, transposed, interleaved, on_input
):
    ids, tensors = make(device, kind=kind, transposed=transposed, requires_grad=True)
    function = activation_of("test", kind, interleaved, tuple(CLAMP.values()))
    expected = by_hand(
        ids, **tensors, function=function, transposed=transposed, on_input=on_input
    )
    options = {"transposed": transposed, "interleaved": interleaved, **CLAMP}
    out = T.moe_mlp(
        expert_ids=ids, activation=kind, weights_on_input=on_input, **tensors, **options
    )
    torch.testing.assert_close(out, expected)
    inputs, dy = list(tensors.values()), random(TOKENS, H, device=device)
    pairs = zip(
        torch.autograd.grad(out, inputs, dy),
        torch.autograd.grad(expected, inputs, dy),
        strict=True,
    )
    for got, want in pairs:
        torch.testing.assert_close(got, want)


def test_lists_of_parameters_and_no_options(device):
    ids, tensors = make(device, requires_grad=True)
    stacked = T.moe_mlp(tensors["x"], ids, None, tensors["w13"], tensors["w2"])
    lists = {
        name: [each.detach().clone().requires_grad_() for each in tensors[name]]
        for name in ("w13", "w2")
    }
    listed = T.moe_mlp(tensors["x"], ids, None, **lists)
    assert equal(stacked, listed)
    dy = random(TOKENS, H, device=device)
    stacked.backward(dy)
    listed.backward(dy)
    for name, each in lists.items():
        assert equal(torch.stack([matrix.grad for matrix in each]), tensors[name].grad)


@pytest.mark.parametrize("on_input", [False, True])
def test_gradients_of_gradients(device, on_input):
    ids, tensors = make(device, requires_grad=True)
    layer = lambda *inputs: T.moe_mlp(  # noqa: E731
        inputs[0], ids, inputs[1], inputs[2], inputs[3], weights_on_input=on_input
    )
    inputs = tuple(tensors[name] for name in ("x", "weights", "w13", "w2"))
    assert gradcheck(layer, inputs, fast_mode=True)
    assert gradgradcheck(layer, inputs, fast_mode=True)
    gradient = torch.func.grad(lambda x: layer(x, *inputs[1:]).square().sum())
    tangent = torch.func.jvp(lambda x: layer(x, *inputs[1:]), (inputs[0],), (inputs[0],))[1]
    assert gradient(inputs[0]).shape == tangent.shape == (TOKENS, H)


def test_what_no_gradient_is_wanted_of_gets_none(device):
    ids, tensors = make(device)
    w13 = tensors["w13"].requires_grad_()
    T.moe_mlp(expert_ids=ids, **tensors).sum().backward()
    assert w13.grad is not None and tensors["x"].grad is None


def test_compiles_as_one_graph(device):
    ids, tensors = make(device, requires_grad=True)
    out = T.moe_mlp(expert_ids=ids, **tensors)
    compiled = torch.compile(T.moe_mlp, fullgraph=True, backend="aot_eager")
    again = compiled(expert_ids=ids, **tensors)
    assert equal(out, again)
    inputs, dy = list(tensors.values()), random(TOKENS, H, device=device)
    pairs = zip(
        torch.autograd.grad(again, inputs, dy), torch.autograd.grad(out, inputs, dy), strict=True
    )
    assert all(equal(*pair) for pair in pairs)


def test_checkpointing_gives_the_same_bits(device):
    ids, tensors = make(device, requires_grad=True)
    names, inputs = list(tensors), list(tensors.values())
    layer = lambda *args: T.moe_mlp(expert_ids=ids, **dict(zip(names, args)))  # noqa: E731
    dy = random(TOKENS, H, device=device)
    again = torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=False)
    pairs = zip(
        torch.autograd.grad(again, inputs, dy),
        torch.autograd.grad(layer(*inputs), inputs, dy),
        strict=True,
    )
    assert all(equal(*pair) for pair in pairs)


def with_hooks(call):
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each, lambda each: each):
        return call()


def test_backward_overwrites_the_pre_activation_only_where_nobody_reads_it_again(device):
    ids, tensors = make(device, requires_grad=True, dtype=torch.float32)
    inputs, dy = list(tensors.values()), random(TOKENS, H, device=device).float()
    layer = lambda: T.moe_mlp(expert_ids=ids, **tensors)  # noqa: E731

    def run(out, **options):
        """(gradients, whether the pre-activation was overwritten)"""
        preact = out.grad_fn.saved_tensors[-1]
        before = preact.clone()
        return torch.autograd.grad(out, inputs, dy, **options), not equal(preact, before)

    expected, overwritten = run(layer())
    assert overwritten
    kept = layer()
    for _ in range(2):
        gradients, overwritten = run(kept, retain_graph=True)
        assert not overwritten and all(map(equal, gradients, expected))
    gradients, overwritten = run(with_hooks(layer))
    assert not overwritten and all(map(equal, gradients, expected))
    gradients, overwritten = run(kept)
    assert overwritten and all(map(equal, gradients, expected))


@pytest.mark.parametrize("wanted", [["x"], ["w2"], ["weights"], ["w13", "bias2"], ["bias13"]], ids=str)
def test_gradients_of_some_have_the_bits_of_all(device, wanted):
    ids, tensors = make(device, requires_grad=True, dtype=torch.float32)
    dy = random(TOKENS, H, device=device).float()
    out = T.moe_mlp(expert_ids=ids, **tensors)
    every = dict(zip(tensors, torch.autograd.grad(out, list(tensors.values()), dy), strict=True))
    some = {name: each.detach().requires_grad_(name in wanted) for name, each in tensors.items()}
    T.moe_mlp(expert_ids=ids, **some).backward(dy)
    assert all(equal(some[name].grad, every[name]) for name in wanted)


def test_autocast_casts_x_and_the_weights(device):
    ids, tensors = make(device, dtype=torch.float32, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = T.moe_mlp(tensors["x"], ids, tensors["weights"], tensors["w13"], tensors["w2"])
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert tensors["w13"].grad.dtype == tensors["x"].grad.dtype == torch.float32


@pytest.mark.parametrize("place", ["number", "tensor"])
def test_shards_of_the_experts_add_up(device, place):
    ids, tensors = make(device)
    tensors = {name: tensors[name] for name in ("x", "weights", "w13", "w2", "bias13", "bias2")}
    whole = T.moe_mlp(expert_ids=ids, **tensors)
    total = torch.zeros_like(whole)
    for first in (0, 2):
        shard = {
            name: each if name in ("x", "weights") else each[first : first + 2]
            for name, each in tensors.items()
        }
        offset = first if place == "number" else torch.tensor([first], device=device)
        total += T.moe_mlp(expert_ids=ids, **shard, num_experts=G, group_offset=offset)
    torch.testing.assert_close(total, whole)


def test_a_token_has_the_same_bits_in_every_batch(device):
    ids, tensors = make(device, dtype=torch.float32)
    names = ("x", "weights", "w13", "w2")
    out = T.moe_mlp(expert_ids=ids, **{name: tensors[name] for name in names})
    few = {name: tensors[name][3:6] if name in ("x", "weights") else tensors[name] for name in names}
    assert equal(out[3:6], T.moe_mlp(expert_ids=ids[3:6], **few))


def test_without_gradients_no_pre_activation_is_kept(device):
    ids, tensors = make(device)
    routing = T.route(ids, G)
    assert equal(T.moe_mlp(expert_ids=ids, **tensors), T.moe_mlp(expert_ids=routing, **tensors))
    arguments = {
        "x": tensors["x"],
        "w13": [tensors["w13"]],
        "w2": [tensors["w2"]],
        **routing._asdict(),
        "activation": KINDS["swiglu"],
        "clamp": [0.0, 0.0, 0.0],
    }
    rows = [
        cadre.torch._operators.moe_mlp.call(keeps_preact=kept, **arguments)[1].shape[0]
        for kept in (False, True)
    ]
    assert rows == [0, TOKENS * TOP_K]


def bad(**changes):
    ids, tensors = make()
    return T.moe_mlp(**{"expert_ids": ids, **tensors, **changes})


FAULTS = {
    "a gate of odd width": (
        lambda: bad(w13=random(G, 2 * I + 1, H), bias13=None),
        ValueError,
        "moe_mlp: w13",
    ),
    "w2 of another width": (lambda: bad(w2=random(G, H, I + 1)), ValueError, "moe_mlp: w2"),
    "one matrix as w13": (
        lambda: bad(w13=random(2 * I, H)),
        ValueError,
        r"moe_mlp: w13.rank = 2 \(shape \[10, 6\]\), expected 3",
    ),
    "no expert": (lambda: bad(w13=[]), ValueError, r"moe_mlp: len\(w13\) = 0"),
    "ids of floats": (
        lambda: bad(expert_ids=random(TOKENS, TOP_K)),
        TypeError,
        "moe_mlp: expert_ids.dtype = torch.float64",
    ),
    "weights of another shape": (
        lambda: bad(weights=random(TOKENS, TOP_K + 1)),
        ValueError,
        "moe_mlp: weights",
    ),
    "unknown activation": (
        lambda: bad(activation="swish"),
        ValueError,
        "moe_mlp: activation = 'swish', expected 'swiglu', 'geglu', .* or a function",
    ),
    "activation is a number": (
        lambda: bad(activation=5),
        TypeError,
        "moe_mlp: activation is an int, expected a name or a function",
    ),
    "a shard of how many": (
        lambda: bad(group_offset=1),
        ValueError,
        "moe_mlp: num_experts = None, expected a number",
    ),
    "x of ints": (lambda: bad(x=random(TOKENS, H).int()), TypeError, "moe_mlp: x.dtype"),
    "x of another rank": (
        lambda: bad(x=random(H)),
        ValueError,
        r"moe_mlp: x.rank = 1 \(shape \[6\]\), expected 2",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named(name):
    call, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        call()
