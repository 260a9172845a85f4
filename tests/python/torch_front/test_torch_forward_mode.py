"""Forward-mode derivatives: torch.func.jvp, jacfwd and hessian, and torch.autograd.forward_ad, in f64 with n other than k."""

import cadre.torch as T
import pytest
import torch
import torch_oracle
from torch.autograd import forward_ad, gradcheck
from torch_oracle import nan_rows, random

M, K, N, G = 9, 3, 5, 3
SIZES = [3, 0, 4]


def epilogue(device, listed):
    """A function of all of gmm's differentiable inputs, and those."""
    shapes = [(M, K), (G,), (M,), (M,), *[(N, K)] * G, *[(N,)] * G]
    inputs = tuple(random(*shape, device=device) for shape in shapes)

    def function(lhs, alpha, bias_scale, row_scale, *parameters):
        rhs, bias = list(parameters[:G]), list(parameters[G:])
        return T.gmm(
            lhs,
            rhs if listed else torch.stack(rhs),
            torch.tensor(SIZES, device=device),
            transpose_rhs=True,
            alpha=alpha,
            bias=bias if listed else torch.stack(bias),
            bias_scale=bias_scale,
            row_scale=row_scale,
        )

    return function, inputs


def functions(device):
    sizes = torch.tensor(SIZES, device=device)

    def make(*shapes):
        return tuple(random(*shape, device=device) for shape in shapes)

    a, b, c = make((G, 2, K), (G, K, N), (G, 2, N))
    rows = torch.tensor([2, 4])
    packed = lambda x, y: T.grouped_gemm(T.GroupedTensor.packed(x, rows, K), y).tensors[0]
    return {
        "gmm": (lambda x, w: T.gmm(x, w, sizes), make((M, K), (G, K, N))),
        "gmm of one input": (lambda x: T.gmm(x, b, sizes), make((M, K))),
        "gmm of a shard": (
            lambda x, w: T.gmm(x, w, sizes, group_offset=1),
            make((M, K), (2, K, N)),
        ),
        "whole epilogue": epilogue(device, listed=False),
        "whole epilogue, lists": epilogue(device, listed=True),
        "tgmm": (lambda x, y, s: T.tgmm(x, y, sizes, alpha=s), make((M, K), (M, N), (G,))),
        "bias_grad": (lambda dy, s: T.bias_grad(dy, sizes, bias_scale=s), make((M, N), (M,))),
        "bias_scale_grad": (
            lambda dy, bias: T.bias_grad(dy, sizes, bias=bias)[1],
            make((M, N), (G, N)),
        ),
        "grouped_mm": (lambda x, w: T.grouped_mm(x, w, offs=[3, 3, 7]), make((M, K), (G, K, N))),
        "grouped_mm, n": (lambda w, x: T.grouped_mm(w, x, offs=[3, 3, 7]), make((G, N, K), (K, M))),
        "grouped_mm, k": (lambda x, y: T.grouped_mm(x, y, offs=[3, 7]), make((K, M), (M, N))),
        "grouped_gemm": (
            lambda *x: T.grouped_gemm(x[0], x[1], c=x[2], alpha=x[3], beta=x[4]),
            (a, b, c, *make((G,), (G,))),
        ),
        "grouped_gemm, lists": (
            lambda *x: T.grouped_gemm(list(x[:2]), list(x[2:])),
            make((2, K), (4, K), (K, N), (K, 1)),
        ),
        "grouped_gemm, packed": (packed, make((6 * K,), (2, K, N))),
    }


NAMES = list(functions("cpu"))


def tangents_like(inputs):
    return tuple(torch.randn_like(each) for each in inputs)


@pytest.mark.parametrize("name", NAMES)
def test_jvp_is_the_limit_of_differences(device, name):
    function, inputs = functions(device)[name]
    inputs = tuple(each.requires_grad_() for each in inputs)
    assert gradcheck(function, inputs, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("name", NAMES)
def test_func_jvp_is_the_product_with_the_jacobian(device, name):
    function, inputs = functions(device)[name]
    tangents = tangents_like(inputs)
    out, tangent = torch.func.jvp(function, inputs, tangents)
    listed = [out] if isinstance(out, torch.Tensor) else list(out)
    tangent = [tangent] if isinstance(tangent, torch.Tensor) else list(tangent)
    _, expected = torch.autograd.functional.jvp(
        lambda *x: function(*x) if len(listed) == 1 else tuple(function(*x)), inputs, tangents
    )
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for ours, theirs in zip(tangent, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gmm", "whole epilogue, lists", "tgmm", "grouped_gemm"])
def test_forward_over_reverse_is_reverse_over_reverse(device, name):
    """What torch.func.hessian computes, for all inputs at once."""
    function, inputs = functions(device)[name]
    tangents = tangents_like(inputs)
    weight = torch.randn_like(function(*inputs))
    gradient = torch.func.grad(
        lambda *x: (function(*x).sin() * weight).sum(), argnums=tuple(range(len(inputs)))
    )
    _, product = torch.func.jvp(gradient, inputs, tangents)
    _, expected = torch.autograd.functional.vhp(
        lambda *x: (function(*x).sin() * weight).sum(), inputs, tangents
    )
    for ours, theirs in zip(product, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_hessian_and_jacfwd(device):
    x, w = random(4, 2, device=device), random(2, 2, 3, device=device)
    sizes = torch.tensor([1, 2], device=device)
    ours = lambda w: (T.gmm(x, w, sizes).sin()).sum()
    loop = lambda w: (torch_oracle.gmm(x, w, [1, 2]).sin()).sum()
    torch.testing.assert_close(torch.func.hessian(ours)(w), torch.func.hessian(loop)(w))
    torch.testing.assert_close(
        torch.func.jacfwd(torch.func.jacfwd(ours))(w), torch.func.hessian(loop)(w)
    )
    torch.testing.assert_close(
        torch.func.jacfwd(lambda x: T.gmm(x, w, sizes))(x),
        torch.func.jacrev(lambda x: T.gmm(x, w, sizes))(x),
    )


def test_dual_tensors_carry_their_tangent(device):
    x, w, t = (random(*shape, device=device) for shape in ((M, K), (G, K, N), (M, K)))
    sizes = torch.tensor(SIZES, device=device)
    with forward_ad.dual_level():
        out, tangent = forward_ad.unpack_dual(T.gmm(forward_ad.make_dual(x, t), w, sizes))
    torch.testing.assert_close(out, T.gmm(x, w, sizes), rtol=0, atol=0)
    torch.testing.assert_close(tangent, T.gmm(t, w, sizes), rtol=0, atol=0)


def test_rows_of_no_group_are_not_read_and_have_no_tangent(device):
    x = nan_rows(random(M, K, device=device), [(0, sum(SIZES))])
    w, t = random(G, K, N, device=device), random(G, K, N, device=device)
    sizes = torch.tensor(SIZES, device=device)
    _, tangent = torch.func.jvp(lambda w: T.gmm(x, w, sizes), (w,), (t,))
    assert (tangent[sum(SIZES) :] == 0).all()
    assert tangent.isfinite().all()


def test_a_tangent_and_out_are_refused():
    x, w = random(M, K), random(G, K, N)
    with (
        forward_ad.dual_level(),
        pytest.raises(ValueError, match="gmm: lhs's tangent = given, expected none: calls that write"),
    ):
        T.gmm(forward_ad.make_dual(x, x), w, SIZES, out=random(M, N))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_transforms_are_right_or_refused(fullgraph):
    """The graph breaks at the op, which is an error with fullgraph; a tangent is never dropped."""
    torch._dynamo.reset()  # a function whose graph broke is not compiled again
    x, w, t = random(M, K), random(G, K, N), random(M, K)
    sizes = torch.tensor(SIZES)

    def jvp(x, t):
        return torch.func.jvp(lambda x: T.gmm(x, w, sizes), (x,), (t,))[1]

    compiled = torch.compile(jvp, fullgraph=fullgraph, backend="eager")
    if fullgraph:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(x, t)
    else:
        torch.testing.assert_close(compiled(x, t), T.gmm(t, w, sizes))
