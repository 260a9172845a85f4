"""torch.compile(fullgraph=True), forward and backward, and torch.export: one graph for all group sizes."""

import cadre.torch
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch_oracle import equal, random

K, N = 6, 10


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(x, w1, w2, bias, scale, sizes):
    """A mixture-of-experts feed-forward: both layouts of weights, bias and router probabilities."""
    hidden = F.silu(cadre.torch.gmm(x, w1, sizes))
    return cadre.torch.gmm(hidden, w2, sizes, transpose_rhs=True, bias=bias, row_scale=scale)


def inputs(m, device, g=3):
    shapes = ((m, K), (g, K, N), (g, K, N), (g, K), (m,))
    return [random(*shape, device=device, requires_grad=True) for shape in shapes]


def gradients(function, tensors, sizes):
    out = function(*tensors, sizes)
    return [out, *torch.autograd.grad(out.square().sum(), tensors)]


def test_forward_and_backward_are_one_graph_and_sizes_recompile_nothing(device):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    tensors = inputs(12, device)
    for sizes in ([3, 0, 9], [0, 0, 0], [12, 0, 0], [4, 4, 1]):
        on_device = torch.tensor(sizes, device=device)
        expected = gradients(block, tensors, on_device)
        for ours, theirs in zip(gradients(compiled, tensors, on_device), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert counter.frame_count == 1


def test_another_number_of_rows_recompiles_once_at_most(device):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for m in (8, 9, 17, 33):
        tensors = inputs(m, device)
        sizes = torch.tensor([m - 5, 0, 3], device=device)
        torch.testing.assert_close(compiled(*tensors, sizes), block(*tensors, sizes))
    assert counter.frame_count <= 2


def test_dynamic_rows_from_the_start_compile_once(device):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=counter, dynamic=True)
    for m in (8, 9, 17):
        tensors = inputs(m, device)
        sizes = torch.tensor([m - 5, 0, 3], device=device)
        expected = gradients(block, tensors, sizes)
        for ours, theirs in zip(gradients(compiled, tensors, sizes), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert counter.frame_count == 1


def test_every_op_compiles_as_one_graph(device):
    def everything(x, y, w, weights, sizes, offs):
        products = cadre.torch.gmm(x, w, sizes), cadre.torch.gmm(x, weights, sizes)
        gradient = cadre.torch.tgmm(x, y, sizes)
        dbias, dscale = cadre.torch.bias_grad(y, sizes, bias=w[:, 0])
        mm = cadre.torch.grouped_mm(x, w, offs=offs)
        batched = cadre.torch.grouped_gemm(w, w, transb=True)
        buffer = torch.zeros_like(y)
        cadre.torch.gmm(x.detach(), w.detach(), sizes, out=buffer, accumulate=True)
        return *products, gradient, dbias, dscale, mm, batched, buffer

    x, y, w = (
        random(9, K, device=device),
        random(9, N, device=device),
        random(3, K, N, device=device),
    )
    weights = [each.clone() for each in w]
    sizes = torch.tensor([4, 0, 3], device=device)
    arguments = (x, y, w, weights, sizes, torch.cumsum(sizes, 0))
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(*arguments), everything(*arguments), strict=True):
        assert equal(ours, theirs)


def products_alone(x, w1, w2, bias, scale, sizes):
    return cadre.torch.gmm(
        cadre.torch.gmm(x, w1, sizes), w2, sizes, transpose_rhs=True, bias=bias, row_scale=scale
    )


def inductor_agrees(function, device):
    tensors = inputs(12, device)
    sizes = torch.tensor([3, 0, 8], device=device)
    expected = gradients(function, tensors, sizes)
    compiled = torch.compile(function, fullgraph=True)
    for ours, theirs in zip(gradients(compiled, tensors, sizes), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.gpu
def test_inductor_compiles_a_block():
    """Our operators among kernels that the default backend writes. Not on a CPU, where it compiles C++ for a minute."""
    inductor_agrees(block, "cuda")


def test_inductor_calls_the_operators():
    with torch.no_grad():
        tensors = inputs(12, "cpu")
        sizes = torch.tensor([3, 0, 8])
        compiled = torch.compile(products_alone, fullgraph=True)
        assert equal(compiled(*tensors, sizes), products_alone(*tensors, sizes))


def test_exported_program_serves_other_sizes_and_rows(device):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = torch.nn.Parameter(random(3, K, N, device=device))
            self.w2 = torch.nn.Parameter(random(3, K, N, device=device))

        def forward(self, x, sizes):
            return cadre.torch.gmm(
                F.silu(cadre.torch.gmm(x, self.w1, sizes)), self.w2, sizes, transpose_rhs=True
            )

    module = Block()
    example = random(12, K, device=device), torch.tensor([3, 0, 9], device=device)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(module, example, dynamic_shapes={"x": {0: rows}, "sizes": None})
    for m, sizes in ((12, [12, 0, 0]), (31, [5, 6, 7])):
        arguments = random(m, K, device=device), torch.tensor(sizes, device=device)
        assert equal(program.module()(*arguments), module(*arguments))


def test_shape_errors_are_found_while_tracing():
    compiled = torch.compile(
        lambda x, w, s: cadre.torch.gmm(x, w, s), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"rhs.k = 6, expected lhs.k = 5"):
        compiled(random(4, K - 1), random(2, K, N), torch.tensor([1, 2]))


@pytest.mark.parametrize(
    "in_dims", [(0, 0, 0), (0, None, None), (None, 1, 0), (1, 2, None)], ids=str
)
def test_vmap(device, in_dims):
    lhs, rhs = random(7, 4, device=device), random(2, 4, 5, device=device)
    sizes = torch.tensor([3, 2], device=device)
    batch, other_sizes = 3, torch.tensor([[3, 2], [0, 7], [1, 1]], device=device)

    def batched(tensor, dim):
        return tensor if dim is None else torch.stack([tensor * (i + 1) for i in range(batch)], dim)

    arguments = [
        batched(lhs, in_dims[0]),
        batched(rhs, in_dims[1]),
        sizes if in_dims[2] is None else other_sizes,
    ]

    def element(i):
        return [
            each if dim is None else each.select(dim, i)
            for each, dim in zip(arguments, in_dims, strict=True)
        ]

    out = torch.vmap(cadre.torch.gmm, in_dims=in_dims)(*arguments)
    assert equal(out, torch.stack([cadre.torch.gmm(*element(i)) for i in range(batch)]))

    def loss(lhs, rhs, sizes):
        return cadre.torch.gmm(lhs, rhs, sizes).square().sum()

    mapped = torch.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=in_dims)(*arguments)
    for index in (0, 1):
        expected = torch.stack(
            [torch.func.grad(loss, argnums=(0, 1))(*element(i))[index] for i in range(batch)]
        )
        torch.testing.assert_close(mapped[index], expected)


def test_vmap_of_lists_and_hessian(device):
    x = random(5, 3, device=device)
    weights = [random(3, 2, device=device) for _ in range(2)]
    sizes = torch.tensor([2, 3], device=device)
    stacked = [torch.stack([w, 2 * w]) for w in weights]
    out = torch.vmap(lambda a, b: cadre.torch.gmm(x, [a, b], sizes))(*stacked)
    assert equal(out[1], cadre.torch.gmm(x, [2 * w for w in weights], sizes))

    def loss(w):
        return cadre.torch.gmm(x, w, sizes).pow(3).sum()

    w = torch.stack(weights)
    hessian = torch.func.jacrev(torch.func.grad(loss))(w)
    leaf = w.clone().requires_grad_()
    expected = torch.autograd.functional.hessian(loss, leaf)
    torch.testing.assert_close(hessian, expected)
