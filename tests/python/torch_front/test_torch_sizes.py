"""Group sizes, offsets and dims of every integer type that torch has, taken as they are."""

import cadre.torch as T
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_oracle import equal, random

SIZES = [2, 0, 6]
INTEGERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]


def places(device):
    return {"cpu", device}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_op_takes_sizes_of_every_integer_type(device, dtype):
    lhs, rhs, dy = (random(*shape, device=device) for shape in ((9, 5), (3, 5, 4), (9, 4)))
    for place in places(device):
        sizes = torch.tensor(SIZES, dtype=dtype, device=place)
        ends = torch.tensor([2, 2, 8], dtype=dtype, device=place)
        assert equal(T.gmm(lhs, rhs, sizes), T.gmm(lhs, rhs, SIZES))
        assert equal(T.gmm(lhs, list(rhs), sizes), T.gmm(lhs, rhs, SIZES))
        assert equal(T.tgmm(lhs, dy, sizes), T.tgmm(lhs, dy, SIZES))
        assert equal(T.bias_grad(dy, sizes), T.bias_grad(dy, SIZES))
        assert equal(T.grouped_mm(lhs, rhs, offs=ends), T.gmm(lhs, rhs, SIZES))
        strided = torch.stack([sizes, sizes], 1)[:, 0]
        assert not strided.is_contiguous()
        assert equal(T.gmm(lhs, rhs, strided), T.gmm(lhs, rhs, SIZES))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_offsets_and_dims_are_of_every_integer_type(device, dtype):
    lhs, rhs = random(9, 5, device=device), random(2, 5, 4, device=device)
    expected = T.gmm(lhs, rhs, SIZES, group_offset=1)
    for place in places(device):
        offset = torch.tensor([1], dtype=dtype, device=place)
        assert equal(T.gmm(lhs, rhs, SIZES, group_offset=offset), expected)
    rows = torch.tensor([2, 3], dtype=dtype)
    packed = T.GroupedTensor.packed(lhs[:5].reshape(-1), rows, 5)
    out = T.grouped_gemm(packed, rhs).tensors[0].view(5, 4)
    assert equal(out, T.gmm(lhs[:5], rhs, [2, 3]))


def test_the_largest_values_of_a_type_are_read_as_they_are():
    lhs, rhs = random(300, 2), random(2, 2, 3)
    for dtype, size in ((torch.uint8, 255), (torch.int8, 127), (torch.uint16, 299)):
        sizes = torch.tensor([size, 1], dtype=dtype)
        assert equal(T.gmm(lhs, rhs, sizes), T.gmm(lhs, rhs, [size, 1]))
    with pytest.raises(ValueError, match=r"gmm: group_sizes\[0\] = -1"):
        T.gmm(lhs, rhs, torch.tensor([-1, 1], dtype=torch.int8))
    with pytest.raises(ValueError, match=r"gmm: sum of group_sizes|gmm: group_sizes\[0\]"):
        T.gmm(lhs, rhs, torch.tensor([2**64 - 1, 1], dtype=torch.uint64))
    with pytest.raises(ValueError, match=r"grouped_mm: offs\[1\] = 4, expected offs\[0\] = 200"):
        T.grouped_mm(lhs, rhs, offs=torch.tensor([200, 4], dtype=torch.uint8))


class Recorded(TorchDispatchMode):
    """The names of the operators that ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_no_operator_converts_the_sizes(dtype):
    lhs, rhs, sizes = random(9, 5), random(3, 5, 4), torch.tensor(SIZES, dtype=dtype)
    with Recorded() as recorded:
        T.gmm(lhs, rhs, sizes)
        T.tgmm(lhs, lhs, sizes, alpha=2.0)
    assert all(name.startswith("cadre::") for name in recorded.names), recorded.names


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint64], ids=str)
def test_gradients_transforms_and_compiled_calls_take_them(device, dtype):
    lhs, rhs = random(9, 5, device=device), random(3, 5, 4, device=device)
    sizes = torch.tensor(SIZES, dtype=dtype, device=device)

    def gradient(lhs, rhs, sizes):
        return torch.func.grad(lambda x: T.gmm(x, rhs, sizes).sin().sum())(lhs)

    expected = gradient(lhs, rhs, torch.tensor(SIZES, device=device))
    assert equal(gradient(lhs, rhs, sizes), expected)
    leaf = lhs.clone().requires_grad_()
    T.gmm(leaf, rhs, sizes).sin().sum().backward()
    assert equal(leaf.grad, expected)
    mapped = torch.func.vmap(lambda x: T.gmm(x, rhs, sizes))(torch.stack([lhs, -lhs]))
    assert equal(mapped[1], -mapped[0])
    compiled = torch.compile(T.gmm, fullgraph=True, backend="aot_eager")
    assert equal(compiled(lhs, rhs, sizes), T.gmm(lhs, rhs, SIZES))
