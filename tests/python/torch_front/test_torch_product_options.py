"""gmm and tgmm with rows by index, activations and packed weights: the bits of the ops that they stand for, gradients to any
order, compilation, and what is refused."""

import cadre.torch
import pytest
import torch
from cadre._options import ACTIVATIONS
from cadre.torch._activation import activation_of
from torch.autograd import gradcheck, gradgradcheck
from torch_oracle import equal, random

T = cadre.torch
TOKENS, K, N, G, TOP_K = 11, 5, 6, 4, 3
CLAMP = (1.3, 0.8, 0.5)


def make(device, *, requires_grad=False, dtype=torch.float64, transposed=False):
    """x, weights [g, k, n], bias and a routing in which some slots are dropped and one expert has two of a token."""
    ids = torch.randint(-1, G + 1, (TOKENS, TOP_K), device=device)
    ids[0] = 2
    shape = (G, N, K) if transposed else (G, K, N)
    options = {"device": device, "dtype": dtype, "requires_grad": requires_grad}
    return random(TOKENS, K, **options), random(*shape, **options), random(G, N, **options), T.route(ids, G)


@pytest.mark.parametrize("form", ["routing", "index"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_by_index_have_the_bits_of_permuted_rows(device, form, dtype):
    x, w, bias, routing = make(device, dtype=dtype)
    index = routing if form == "routing" else routing.source_row
    rows, sizes = T.permute(x, routing), routing.group_sizes
    assert equal(T.gmm(x, w, sizes, bias=bias, lhs_rows=index), T.gmm(rows, w, sizes, bias=bias))
    listed = T.gmm(x, list(w), sizes, lhs_rows=index)
    assert equal(listed, T.gmm(rows, w, sizes))
    out = torch.full((TOKENS * TOP_K, N), 3.0, device=device, dtype=dtype)
    T.gmm(x, w, sizes, lhs_rows=index, out=out)
    assert equal(out, listed)
    dy = random(TOKENS * TOP_K, N, device=device).to(dtype)
    assert equal(T.tgmm(x, dy, sizes, lhs_rows=index), T.tgmm(rows, dy, sizes))
    assert equal(T.tgmm(dy, x, sizes, rhs_rows=index), T.tgmm(dy, rows, sizes))
    assert equal(T.tgmm(x, x, sizes, lhs_rows=index, rhs_rows=index), T.tgmm(rows, rows, sizes))


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_through_an_index_are_those_of_permuted_rows(device, transposed):
    x, w, bias, routing = make(device, requires_grad=True, dtype=torch.float32, transposed=transposed)
    options = {"group_sizes": routing.group_sizes, "bias": bias, "transpose_rhs": transposed}
    dy = random(TOKENS * TOP_K, N, device=device).float()
    got = torch.autograd.grad(T.gmm(x, w, lhs_rows=routing, **options), (x, w, bias), dy)
    want = torch.autograd.grad(T.gmm(T.permute(x, routing), w, **options), (x, w, bias), dy)
    assert all(map(equal, got, want))


def test_gradients_of_gradients_through_an_index(device):
    x, w, bias, routing = make(device, requires_grad=True)
    scale = random(TOKENS * TOP_K, device=device, requires_grad=True)
    alpha = random(G, device=device, requires_grad=True)
    sizes = routing.group_sizes

    def product(x, w, bias, scale, alpha):
        return T.gmm(x, w, sizes, bias=bias, row_scale=scale, alpha=alpha, lhs_rows=routing)

    assert gradcheck(product, (x, w, bias, scale, alpha), fast_mode=True)
    assert gradgradcheck(product, (x, w, bias, scale, alpha), fast_mode=True)
    y = random(TOKENS, N, device=device, requires_grad=True)
    both = lambda x, y: T.tgmm(x, y, sizes, lhs_rows=routing, rhs_rows=routing)  # noqa: E731
    assert gradcheck(both, (x, y), fast_mode=True) and gradgradcheck(both, (x, y), fast_mode=True)
    tangent = torch.func.jvp(lambda x: product(x, w, bias, scale, alpha), (x,), (x,))[1]
    torch.testing.assert_close(tangent, product(x, w, torch.zeros_like(bias), scale, alpha))


def function(kind, interleaved):
    return activation_of("test", kind, interleaved, CLAMP)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("interleaved", [False, True], ids=["concatenated", "interleaved"])
@pytest.mark.parametrize("indexed", [False, True], ids=["rows", "index"])
def test_an_activation_is_that_of_the_product(device, kind, interleaved, indexed):
    x, w, bias, routing = make(device, requires_grad=True)
    lhs = x if indexed else T.permute(x, routing).detach().requires_grad_()
    options = {"group_sizes": routing.group_sizes, "bias": bias, "lhs_rows": routing if indexed else None}
    product = T.gmm(lhs, w, **options)
    expected = function(kind, interleaved)(product)
    options |= {"activation": kind, "interleaved": interleaved, "clamp": CLAMP}
    out, preact = T.gmm(lhs, w, preactivation=True, **options)
    torch.testing.assert_close(out, expected)
    assert equal(preact, product) and equal(T.gmm(lhs, w, **options), out)
    with torch.no_grad():
        assert equal(T.gmm(lhs, w, **options), out)
    # Through the result, and through what the activation was applied to.
    dy, dz = torch.randn_like(out), torch.randn_like(preact)
    got = torch.autograd.grad((out, preact), (lhs, w, bias), (dy, dz))
    want = torch.autograd.grad((expected, product), (lhs, w, bias), (dy, dz))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_activation_of_lists_transforms_and_any_function(device):
    x, w, bias, routing = make(device, requires_grad=True)
    rows, sizes = T.permute(x, routing).detach().requires_grad_(), routing.group_sizes
    activated = lambda rows, w, bias: T.gmm(rows, w, sizes, bias=bias, activation="swiglu")  # noqa: E731
    out = activated(rows, w, bias)
    listed = activated(rows, list(w.unbind(0)), list(bias.unbind(0)))
    assert equal(out, listed)
    dy = torch.randn_like(out)
    pairs = (torch.autograd.grad(each, (rows, w, bias), dy) for each in (out, listed))
    assert all(map(equal, *pairs))
    assert gradgradcheck(activated, (rows, w, bias), fast_mode=True)
    gradient = torch.func.grad(lambda rows: (activated(rows, w, bias) * dy).sum())(rows)
    torch.testing.assert_close(gradient, torch.autograd.grad(activated(rows, w, bias), rows, dy)[0])
    tanh, preact = T.gmm(rows, w, sizes, activation=torch.tanh, preactivation=True)
    assert equal(tanh, torch.tanh(preact)) and equal(preact, T.gmm(rows, w, sizes))


def test_rows_and_activations_compile_as_one_graph(device):
    x, w, bias, routing = make(device, requires_grad=True, dtype=torch.float32)

    def layer(x, w, bias):
        return T.gmm(x, w, routing.group_sizes, bias=bias, lhs_rows=routing, activation="geglu")

    out = layer(x, w, bias)
    again = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, w, bias)
    dy = torch.randn_like(out)
    assert equal(out, again)
    pairs = (torch.autograd.grad(each, (x, w, bias), dy) for each in (out, again))
    assert all(map(equal, *pairs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_packed_weights_have_the_same_bits(dtype):
    x, w, bias, routing = make("cpu", dtype=dtype, transposed=True)
    packed = T.pack_weights(w, transpose_rhs=True)
    assert packed.size_bytes > 0
    options = {"group_sizes": routing.group_sizes, "transpose_rhs": True, "lhs_rows": routing, "bias": bias}
    for rhs in (w, list(w)):
        expected = T.gmm(x, rhs, **options)
        assert equal(T.gmm(x, rhs, packed_rhs=packed, **options), expected)
        out = torch.full_like(expected, 7)
        T.gmm(x, rhs, packed_rhs=packed, out=out, **options)
        assert equal(out, expected)
    options["activation"] = "swiglu"
    assert equal(T.gmm(x, w, packed_rhs=packed, **options), T.gmm(x, w, **options))
    compiled = torch.compile(T.gmm, fullgraph=True, backend="aot_eager")
    assert equal(compiled(x, w, packed_rhs=packed, **options), T.gmm(x, w, **options))
    w2 = random(G, K, N // 2).to(dtype)
    layer = (x, routing, torch.rand(TOKENS, TOP_K), w, w2)
    packs = {"packed_w13": packed, "packed_w2": T.pack_weights(w2, transpose_rhs=True)}
    assert equal(T.moe_mlp(*layer, **packs), T.moe_mlp(*layer))


def bad(**changes):
    x, w, bias, routing = make("cpu", **changes.pop("of", {}))
    arguments = {"lhs": x, "rhs": w, "group_sizes": routing.group_sizes, "bias": bias, "lhs_rows": routing}
    return T.gmm(**{**arguments, **changes})


def other_weights():
    return T.pack_weights(random(G, K, N + 1))


FAULTS = {
    "a gradient through an index alone": (
        lambda: bad(of={"requires_grad": True}, lhs_rows=torch.zeros(4, dtype=torch.int64)),
        ValueError,
        r"gmm: lhs_rows = a tensor, expected what route\(\) returned, because lhs wants a gradient",
    ),
    "an index of floats": (lambda: bad(lhs_rows=torch.zeros(33)), TypeError, "gmm: lhs_rows.dtype"),
    "an index of another rank": (
        lambda: bad(lhs_rows=torch.zeros(3, 11, dtype=torch.int64)),
        ValueError,
        "gmm: lhs_rows.rank = 2",
    ),
    "an index that is a list": (lambda: bad(lhs_rows=[0]), TypeError, "gmm: lhs_rows is a list"),
    "an index out of range": (
        lambda: bad(lhs_rows=torch.full((33,), TOKENS)),
        ValueError,
        r"gmm: lhs_rows\[0\] = 11, expected -1 or 0 to lhs.shape\[0\] - 1 = 10",
    ),
    "a routing of other tokens": (
        lambda: bad(lhs=random(TOKENS + 1, K)),
        ValueError,
        r"gmm: lhs_rows.slot_row.shape\[0\] = 11, expected lhs.shape\[0\] = 12",
    ),
    "unknown activation": (
        lambda: bad(activation="swish"),
        ValueError,
        "gmm: activation = 'swish', expected 'swiglu'",
    ),
    "a gate of odd width": (
        lambda: bad(rhs=random(G, K, 7), bias=None, activation="swiglu"),
        ValueError,
        "gmm: rhs.n = 7, expected an even number",
    ),
    "an activation into out": (
        lambda: bad(activation="silu", out=random(TOKENS * TOP_K, N)),
        ValueError,
        "gmm: out = given, expected none because there is an activation",
    ),
    "packed weights and a gradient": (
        lambda: bad(of={"requires_grad": True}, packed_rhs=T.pack_weights(random(G, K, N))),
        ValueError,
        "gmm: lhs.requires_grad = True, expected False: packed weights are for inference",
    ),
    "packed weights of another shape": (
        lambda: bad(packed_rhs=other_weights()),
        ValueError,
        r"gmm: packed_rhs = torch.float64 \[4, k 5, n 7\], expected rhs = torch.float64 \[4, k 5, n 6\]",
    ),
    "weights that aren't packed": (
        lambda: bad(packed_rhs=random(G, K, N)),
        TypeError,
        "gmm: packed_rhs is a .*Tensor, expected what pack_weights returned",
    ),
    "a list of numbers to pack": (
        lambda: T.pack_weights([1.0]),
        TypeError,
        r"pack_weights: rhs\[0\] is a float, expected a torch.Tensor",
    ),
    "to pack for integers": (
        lambda: T.pack_weights(random(G, K, N), lhs_dtype="f32"),
        TypeError,
        "pack_weights: lhs_dtype = 'f32', expected a torch.dtype",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_named(name):
    call, kind, message = FAULTS[name]
    with pytest.raises(kind, match=message):
        call()
