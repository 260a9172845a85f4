"""First and second derivatives of every op by gradcheck and gradgradcheck, in f64, with n different from k."""

import gc
import weakref

import cadre.torch
import pytest
import torch
import torch_oracle
from torch.autograd import gradcheck, gradgradcheck
from torch_oracle import equal, groups_of, nan_rows, random

M, K, N = 11, 3, 5
CASES = {
    "one group": ([7], 1, 0),
    "empty groups and a tail": ([4, 0, 3, 0], 4, 0),
    "all empty": ([0, 0, 0], 3, 0),
    "eight groups": ([1, 0, 2, 3, 0, 1, 1, 2], 8, 0),
    "a shard of eight": ([1, 0, 2, 3, 0, 1, 1, 2], 3, 2),
}


def wanted(*shape, device):
    return random(*shape, device=device, requires_grad=True)


def checked(function, inputs):
    return gradcheck(function, inputs) and gradgradcheck(function, inputs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_gmm(device, transpose_rhs, case):
    sizes, g, offset = CASES[case]
    on_device = torch.tensor(sizes, device=device)
    lhs = wanted(M, K, device=device)
    rhs = wanted(g, *((N, K) if transpose_rhs else (K, N)), device=device)
    assert checked(
        lambda *x: cadre.torch.gmm(*x, on_device, transpose_rhs=transpose_rhs, group_offset=offset),
        (lhs, rhs),
    )


@pytest.mark.parametrize("listed", [False, True], ids=["stacked", "listed"])
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_whole_epilogue(device, transpose_rhs, listed):
    sizes, g = torch.tensor([3, 0, 4], device=device), 3
    epilogue = [wanted(g, device=device), wanted(M, device=device), wanted(M, device=device)]
    weights = [wanted(*((N, K) if transpose_rhs else (K, N)), device=device) for _ in range(g)]
    biases = [wanted(N, device=device) for _ in range(g)]

    def function(lhs, alpha, bias_scale, row_scale, *parameters):
        rhs, bias = list(parameters[:g]), list(parameters[g:])
        return cadre.torch.gmm(
            lhs,
            rhs if listed else torch.stack(rhs),
            sizes,
            transpose_rhs=transpose_rhs,
            alpha=alpha,
            bias=bias if listed else torch.stack(bias),
            bias_scale=bias_scale,
            row_scale=row_scale,
        )

    assert checked(function, (wanted(M, K, device=device), *epilogue, *weights, *biases))


@pytest.mark.parametrize("case", CASES)
def test_tgmm(device, case):
    sizes, g, offset = CASES[case]
    on_device = torch.tensor(sizes, device=device)
    inputs = wanted(M, K, device=device), wanted(M, N, device=device), wanted(g, device=device)
    assert checked(
        lambda lhs, rhs, alpha: cadre.torch.tgmm(
            lhs, rhs, on_device, alpha=alpha, num_groups=g, group_offset=offset
        ),
        inputs,
    )


@pytest.mark.parametrize("listed", [False, True], ids=["stacked", "listed"])
def test_bias_grad(device, listed):
    sizes = torch.tensor([3, 0, 4], device=device)

    def function(dy, scale, *bias):
        return cadre.torch.bias_grad(
            dy, sizes, bias=list(bias) if listed else torch.stack(bias), bias_scale=scale
        )

    vectors = [wanted(N, device=device) for _ in range(3)]
    assert checked(function, (wanted(M, N, device=device), wanted(M, device=device), *vectors))


@pytest.mark.parametrize("form", ["2Dx3D", "3Dx2D", "2Dx2D", "3Dx3D"])
def test_grouped_mm(device, form):
    shapes = {
        "2Dx3D": ((7, K), (3, K, N), (3, N)),
        "3Dx2D": ((3, N, K), (K, 7), (3, N)),
        "2Dx2D": ((K, 7), (7, N), (3, N)),
        "3Dx3D": ((3, 4, K), (3, K, N), (3, N)),
    }[form]
    offs = None if form == "3Dx3D" else torch.tensor([2, 2, 6], device=device)
    inputs = tuple(wanted(*shape, device=device) for shape in shapes)
    assert checked(lambda a, b, bias: cadre.torch.grouped_mm(a, b, offs=offs, bias=bias), inputs)


@pytest.mark.parametrize("form", ["list", "packed"])
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
def test_grouped_gemm(device, form, transa, transb):
    dims = [(2, 3, 4), (3, 1, 2)]
    shapes = [
        [(k, m) if transa else (m, k) for m, k, n in dims],
        [(n, k) if transb else (k, n) for m, k, n in dims],
        [(m, n) for m, k, n in dims],
    ]

    def operand(tensors, index):
        if form == "list":
            return cadre.torch.GroupedTensor.list(tensors)
        rows, cols = zip(*shapes[index], strict=True)
        return cadre.torch.GroupedTensor.packed(tensors[0], list(rows), list(cols))

    def new(index):
        if form == "list":
            return [wanted(*shape, device=device) for shape in shapes[index]]
        return [wanted(sum(rows * cols for rows, cols in shapes[index]), device=device)]

    inputs = [new(0), new(1), new(2)]
    counts = [len(each) for each in inputs]

    def function(alpha, beta, *flat):
        a, b, c = flat[: counts[0]], flat[counts[0] : -counts[2]], flat[-counts[2] :]
        return tuple(
            cadre.torch.grouped_gemm(
                operand(a, 0),
                operand(b, 1),
                c=operand(c, 2),
                alpha=alpha,
                beta=beta,
                transa=transa,
                transb=transb,
            ).tensors
        )

    scalars = wanted(2, device=device), wanted(2, device=device)
    assert checked(function, (*scalars, *(tensor for each in inputs for tensor in each)))


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("square", [False, True])
def test_weight_gradient_has_the_layout_of_the_weight(device, square, transpose_rhs):
    """A gradient that comes out transposed fits a square weight, so its values are compared too."""
    n = K if square else N
    sizes = [4, 0, 5]
    lhs = random(M, K, device=device)
    rhs = random(3, *((n, K) if transpose_rhs else (K, n)), device=device, requires_grad=True)
    dy = random(M, n, device=device)
    cadre.torch.gmm(lhs, rhs, sizes, transpose_rhs=transpose_rhs).backward(dy)
    assert rhs.grad.shape == rhs.shape
    for i, start, end in groups_of(sizes, 3):
        wgrad = lhs[start:end].t() @ dy[start:end]
        torch.testing.assert_close(rhs.grad[i], wgrad.t() if transpose_rhs else wgrad)


def test_rows_of_no_group_are_not_read_and_get_zero_gradients(device):
    """NaN in the tail and in foreign rows of every operand, dy included, changes no gradient."""
    sizes, offset, g = [2, 3, 1, 2], 1, 2
    local = [(start, end) for _, start, end in groups_of(sizes, g, offset)]
    options = {"alpha": random(g, device=device), "bias": random(g, N, device=device)}
    clean = [random(M, K, device=device), random(M, device=device), random(M, device=device)]
    rhs, dy = random(g, K, N, device=device), random(M, N, device=device)

    def gradients(lhs, bias_scale, row_scale, dy):
        inputs = [lhs, bias_scale, row_scale, rhs, *options.values()]
        inputs = [each.clone().requires_grad_() for each in inputs]
        out = cadre.torch.gmm(
            inputs[0],
            inputs[3],
            torch.tensor(sizes, device=device),
            alpha=inputs[4],
            bias=inputs[5],
            bias_scale=inputs[1],
            row_scale=inputs[2],
            group_offset=offset,
        )
        return torch.autograd.grad(out, inputs, dy)

    poisoned = gradients(*(nan_rows(each, local) for each in (*clean, dy)))
    for gradient, expected in zip(poisoned, gradients(*clean, dy), strict=True):
        assert equal(gradient, expected)
    outside = torch.ones(M, dtype=torch.bool)
    for start, end in local:
        outside[start:end] = False
    for gradient in poisoned[:3]:
        assert (gradient.cpu()[outside] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_have_their_input_dtype(device, dtype):
    lhs = random(6, K, dtype=dtype, device=device, requires_grad=True)
    rhs = random(2, K, N, dtype=torch.float32, device=device, requires_grad=True)
    bias = random(2, N, dtype=torch.float32, device=device, requires_grad=True)
    scale = random(6, dtype=dtype, device=device, requires_grad=True)
    cadre.torch.gmm(lhs, rhs, [2, 4], bias=bias, row_scale=scale).square().sum().backward()
    assert [each.grad.dtype for each in (lhs, rhs, bias, scale)] == [
        dtype,
        torch.float32,
        torch.float32,
        dtype,
    ]


def test_gradients_agree_with_a_loop_over_groups(device):
    sizes = [4, 0, 5]
    names = ("lhs", "rhs", "alpha", "bias", "bias_scale", "row_scale")
    shapes = ((M, K), (3, K, N), (3,), (3, N), (M,), (M,))
    inputs = [random(*shape, device=device, requires_grad=True) for shape in shapes]
    dy = random(M, N, device=device)

    def gradients(function):
        named = dict(zip(names, inputs, strict=True))
        return torch.autograd.grad(
            function(named.pop("lhs"), named.pop("rhs"), sizes, **named), inputs, dy
        )

    for name, ours, theirs in zip(
        names, gradients(cadre.torch.gmm), gradients(torch_oracle.gmm), strict=True
    ):
        torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_activations_are_not_kept_where_no_gradient_needs_them(device):
    """lhs is saved for the weight's gradient alone, the weight for lhs's alone; after backward nothing is kept."""

    def after_forward(lhs_wants, rhs_wants):
        lhs = random(M, K, device=device)
        rhs = random(2, K, N, device=device)
        lhs_input = (lhs * 1).requires_grad_(lhs_wants)
        rhs_input = (rhs * 1).requires_grad_(rhs_wants)
        references = weakref.ref(lhs_input), weakref.ref(rhs_input)
        out = cadre.torch.gmm(lhs_input, rhs_input, [4, 5])
        saved = {id(tensor) for tensor in _saved(out.grad_fn)}
        return id(lhs_input) in saved, id(rhs_input) in saved, references

    assert after_forward(lhs_wants=True, rhs_wants=False)[:2] == (False, True)
    assert after_forward(lhs_wants=False, rhs_wants=True)[:2] == (True, False)

    lhs = (random(M, K, device=device) * 1).requires_grad_()
    activation = lhs * 2
    kept = weakref.ref(activation)
    rhs = random(2, K, N, device=device, requires_grad=True)
    out = cadre.torch.gmm(activation, rhs, [4, 5])
    del activation
    gc.collect()
    assert kept() is not None
    out.sum().backward()
    del out
    gc.collect()
    assert kept() is None


def _saved(node):
    return [tensor for tensor in node.saved_tensors if tensor is not None]


def test_third_derivatives(device):
    lhs, rhs = wanted(4, 2, device=device), wanted(2, 2, 3, device=device)

    def cubic(lhs, rhs):
        out = cadre.torch.gmm(lhs, rhs, [1, 3])
        (first,) = torch.autograd.grad(out.pow(3).sum(), lhs, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), rhs, create_graph=True)
        return second

    assert gradcheck(cubic, (lhs, rhs))
