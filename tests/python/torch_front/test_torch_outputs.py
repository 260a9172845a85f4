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
