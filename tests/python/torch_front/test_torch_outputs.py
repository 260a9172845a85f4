"""Outputs that the caller gives: `out` and `d`, as autograd and the version counter see them."""

import cadre.torch as T
import pytest
import torch
from torch_oracle import equal, random

SIZES = [2, 0, 6]


def written(name, buffer):
    """Runs the op that writes into `buffer`, a stack [3, 5, 4], or into rows of it."""
    if name == "gmm":
        T.gmm(random(15, 2), random(3, 2, 4), [7, 0, 8], out=buffer.view(15, 4))
    elif name == "gmm, list":
        T.gmm(random(8, 2), random(3, 2, 4), [5, 0, 3], out=list(buffer))
    elif name == "gmm, accumulate":
        T.gmm(random(15, 2), random(3, 2, 4), SIZES, out=buffer.view(15, 4), accumulate=True)
    elif name == "tgmm":
        T.tgmm(random(8, 5), random(8, 4), SIZES, out=buffer)
    elif name == "tgmm, list":
        T.tgmm(random(8, 5), random(8, 4), SIZES, out=list(buffer), accumulate=True)
    elif name == "bias_grad":
        T.bias_grad(random(8, 4), SIZES, out=buffer[:, 0])
    elif name == "grouped_gemm":
        T.grouped_gemm(random(3, 5, 2), random(3, 2, 4), d=buffer)
    elif name == "grouped_gemm, list":
        T.grouped_gemm(list(random(3, 5, 2)), list(random(3, 2, 4)), d=list(buffer))


OPS = [
    "gmm",
    "gmm, list",
    "gmm, accumulate",
    "tgmm",
    "tgmm, list",
    "bias_grad",
    "grouped_gemm",
    "grouped_gemm, list",
]


@pytest.mark.parametrize("name", OPS)
def test_autograd_refuses_what_was_overwritten(name):
    buffer = random(3, 5, 4)
    weight = random(3, 5, 4, requires_grad=True)
    loss = (weight * buffer).sum()
    written(name, buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", OPS)
def test_one_write_raises_the_version(name):
    buffer = random(3, 5, 4)
    before = buffer._version
    written(name, buffer)
    assert buffer._version > before


def test_a_compiled_write_raises_the_version():
    lhs, rhs, out = random(8, 2), random(3, 2, 4), random(8, 4)
    sizes = torch.tensor(SIZES)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def write(lhs, rhs, sizes, out):
        T.gmm(lhs, rhs, sizes, out=out)

    before = out._version
    write(lhs, rhs, sizes, out)
    assert out._version > before
    assert equal(out, T.gmm(lhs, rhs, sizes))


def test_outputs_made_in_inference_mode_are_written():
    with torch.inference_mode():
        out = random(8, 4)
        lhs, rhs = random(8, 2), random(3, 2, 4)
        T.gmm(lhs, rhs, SIZES, out=out)
        assert equal(out, T.gmm(lhs, rhs, SIZES))


@pytest.mark.parametrize("cut", ["split", "apart", "room for more"])
def test_gmm_writes_a_matrix_for_each_group(device, cut):
    """Views of one buffer, or buffers of their own; with sizes on the host each as large as its group."""
    sizes = [2, 0, 5]
    lhs, rhs = random(8, 3, device=device), random(3, 3, 4, device=device)
    expected = T.gmm(lhs, rhs, sizes).split([*sizes, 1])[:3]
    buffer = torch.full((7, 4), float("nan"), dtype=lhs.dtype, device=device)
    out = list(buffer.split(sizes))
    if cut != "split":
        out = [torch.full((size, 4), 7.0, dtype=lhs.dtype, device=device) for size in sizes]
    if cut == "room for more":
        out[0] = torch.full((6, 4), 7.0, dtype=lhs.dtype, device=device)
    for given in (sizes, torch.tensor(sizes, dtype=torch.uint8)):
        assert T.gmm(lhs, rhs, given, out=out) is out
        assert equal(out[0][:2], expected[0])
        assert equal(out[2], expected[2])
    assert (out[0][2:] == 7.0).all()
    T.gmm(lhs, rhs, sizes, out=out, accumulate=True)
    assert equal(out[2], 2 * expected[2])
    T.gmm(lhs, rhs, sizes, out=out, c=[each.clone() for each in expected], beta=1)
    assert equal(out[2], 2 * expected[2])


def test_gmm_writes_a_matrix_for_each_group_of_a_shard():
    sizes = [4, 2, 0, 3]
    lhs, rhs = random(9, 3), random(2, 3, 4)
    expected = T.gmm(lhs, rhs, sizes, group_offset=1)
    for offset in (1, torch.tensor(1), torch.tensor([1], dtype=torch.uint8)):
        out = [torch.full((size, 4), float("nan"), dtype=lhs.dtype) for size in (2, 0)]
        T.gmm(lhs, rhs, sizes, out=out, group_offset=offset)
        assert equal(out[0], expected[4:6])


def test_a_list_of_one_is_no_tensor_of_all_rows():
    """Rows of no group belong to nobody's matrix: they keep what they hold."""
    lhs, rhs, out = random(8, 3), random(1, 3, 4), torch.full((8, 4), 7.0, dtype=torch.float64)
    T.gmm(lhs, rhs, [5], out=[out])
    assert (out[5:] == 7.0).all()
    T.gmm(lhs, rhs, [5], out=out)
    assert (out[5:] == 0.0).all()


def test_a_matrix_smaller_than_its_group_is_refused(device):
    lhs, rhs = random(8, 3, device=device), random(3, 3, 4, device=device)
    out = [torch.full((size, 4), 7.0, dtype=lhs.dtype, device=device) for size in (2, 1, 4)]
    with pytest.raises(
        ValueError, match=r"gmm: group_sizes\[0\] = 3, expected at most out\[0\].rows = 2"
    ):
        T.gmm(lhs, rhs, [3, 1, 4], out=out)
    with pytest.raises(
        ValueError, match=r"gmm: group_sizes\[2\] = 5, expected at most out.rows = 4"
    ):
        T.gmm(lhs, rhs, [2, 1, 5], out=out)
    message = r"gmm: out\[1\].dtype = torch.float32, expected out\[2\].dtype = torch.float64"
    with pytest.raises(TypeError, match=message):
        T.gmm(lhs, rhs, [2, 1, 4], out=[out[0], out[1].float(), out[2]])
    assert all((each == 7.0).all() for each in out)


@pytest.mark.gpu
def test_sizes_on_a_device_need_matrices_of_one_size():
    lhs, rhs = random(8, 3, device="cuda"), random(3, 3, 4, device="cuda")
    sizes = torch.tensor([2, 1, 5], device="cuda")
    with pytest.raises(ValueError, match=r"gmm: out\[0\].rows = 2, expected one number of rows"):
        T.gmm(lhs, rhs, sizes, out=[torch.empty(size, 4).cuda().double() for size in (2, 1, 5)])
    out = [torch.full((6, 4), 7.0, dtype=lhs.dtype, device="cuda") for _ in range(3)]
    T.gmm(lhs, rhs, sizes, out=out)
    expected = T.gmm(lhs, rhs, sizes)
    assert equal(out[2][:5], expected[3:])
    assert (out[1][1:] == 7.0).all()
