"""GroupedLinear with buffers of the caller's: out and dgrad_out take what would be returned, and nothing else changes."""

import pytest
import torch
from linear_oracle import COVERED, FORM_NAMES, FORMS, SPLITS, K, M, N, make, poisoned, reference
from torch.utils.checkpoint import checkpoint
from torch_oracle import equal, random

every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


@every_form
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("supply", ["out", "dgrad_out", "both"])
def test_rows_behind_the_last_split_of_a_buffer_are_left_alone(device, form, rank, supply):
    layer = make(device, form)
    shape = (M, K) if rank == 2 else (2, M // 2, K)
    base = random(*shape, device=device)
    dy = random(*shape[:-1], N, device=device)
    expected_x = base.clone().requires_grad_()
    expected = layer(expected_x, SPLITS)
    expected.backward(dy)

    out = random(M, N, device=device) if supply != "dgrad_out" else None
    dgrad = random(M, K, device=device) if supply != "out" else None
    kept = [None if each is None else each[COVERED:].clone() for each in (out, dgrad)]
    x = base.clone().requires_grad_()
    y = layer(x, torch.tensor(SPLITS, device=device), None, out, dgrad)
    assert y.shape == expected.shape and y.requires_grad
    assert equal(y.reshape(M, N)[:COVERED], expected.reshape(M, N)[:COVERED])
    y.backward(dy)
    if out is not None:
        assert y.data_ptr() == out.data_ptr() and not out.requires_grad
        assert equal(out[COVERED:], kept[0])
    if dgrad is not None:
        assert equal(dgrad[COVERED:], kept[1])
        assert equal(dgrad[:COVERED], expected_x.grad.reshape(M, K)[:COVERED])
    assert equal(x.grad.reshape(M, K)[:COVERED], expected_x.grad.reshape(M, K)[:COVERED])


@every_form
@pytest.mark.parametrize("options", [{"out": (M, N)}, {"dgrad_out": (M, K)}], ids=str)
def test_gradients_are_the_same_bits_with_buffers_as_without(device, form, options):
    layer = make(device, form, torch.bfloat16)
    x = random(M, K, dtype=torch.bfloat16, device=device, requires_grad=True)
    scales = random(M, dtype=torch.float32, device=device, requires_grad=True)
    dy = random(M, N, dtype=torch.bfloat16, device=device)
    inputs = [x, scales, *layer.parameters()]
    given = {
        name: torch.zeros(shape, dtype=torch.bfloat16, device=device)
        for name, shape in options.items()
    }
    plain = torch.autograd.grad(layer(x, SPLITS, scales=scales), inputs, dy)
    ours = torch.autograd.grad(layer(x, SPLITS, scales=scales, **given), inputs, dy)
    for mine, expected in zip(ours, plain, strict=True):
        assert equal(mine, expected)


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_a_leaf_add_up_over_one_dgrad_out(device, rank):
    layer = make(device)
    shape = (M, K) if rank == 2 else (2, M // 2, K)
    x = random(*shape, device=device, requires_grad=True)
    dys = [random(*shape[:-1], N, device=device) for _ in range(3)]
    expected = sum(torch.autograd.grad(layer(x, SPLITS), x, dy)[0] for dy in dys)
    buffer = torch.zeros(M, K, dtype=torch.float64, device=device)
    for dy in dys:
        layer(x, SPLITS, dgrad_out=buffer).backward(dy)
    torch.testing.assert_close(x.grad, expected)
    assert x.grad.data_ptr() != buffer.data_ptr()


@pytest.mark.parametrize("shape", [(0, 2), (5, 2)], ids=["empty", "transposed"])
def test_batches_of_any_strides_take_buffers(device, shape):
    layer, rows = make(device), shape[0] * shape[1]
    x = random(*shape, K, device=device).transpose(0, 1).requires_grad_()
    splits = SPLITS if rows else [0, 0, 0]
    out, dgrad = poisoned(rows, N, device=device), poisoned(rows, K, device=device)
    y = layer(x, splits, out=out, dgrad_out=dgrad)
    dy = random(*y.shape, device=device)
    expected = torch.autograd.grad(layer(x, splits), x, dy)[0]
    y.backward(dy)
    covered = sum(splits)
    assert equal(dgrad[:covered], expected.reshape(rows, K)[:covered])
    assert equal(y, layer(x, splits, out=out))


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_checkpointing_writes_into_the_buffers(device, reentrant):
    layer = make(device)
    x, dy = random(M, K, device=device, requires_grad=True), random(M, N, device=device)
    (expected,) = torch.autograd.grad(layer(x, SPLITS), x, dy)
    dgrad = torch.zeros(M, K, dtype=torch.float64, device=device)
    given = poisoned(M, N, device=device), dgrad
    y = checkpoint(lambda x: layer(x, SPLITS, None, *given), x, use_reentrant=reentrant)
    y.backward(dy)
    assert equal(dgrad, expected) and equal(x.grad, expected)
    with torch.no_grad():
        assert equal(layer(x, SPLITS, None, *given)[:COVERED], layer(x, SPLITS)[:COVERED])


def test_dgrad_out_may_lie_beside_inp(device):
    layer, both = make(device), random(M, 2 * K, device=device)
    x, buffer = both[:, :K], both[:, K:]
    dy = random(M, N, device=device)
    expected = torch.autograd.grad(reference(layer, x.requires_grad_()), [x, layer.weight2], dy)
    layer(x, SPLITS, dgrad_out=buffer).backward(dy)
    torch.testing.assert_close(buffer[:COVERED], expected[0][:COVERED])
    torch.testing.assert_close(layer.weight2.grad, expected[1])


@pytest.mark.parametrize("given", ["out", "dgrad_out", "delayed"])
def test_compiled_code_around_buffers_drops_no_gradient(device, given):
    layer = make(device, dtype=torch.float32, delay_wgrad_compute=given == "delayed")
    x = random(M, K, dtype=torch.float32, device=device, requires_grad=True)
    dy = random(M, N, dtype=torch.float32, device=device)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(2 * reference(layer, x), inputs, dy)
    options = {}
    if given != "delayed":
        width = N if given == "out" else K
        options[given] = torch.zeros(M, width, dtype=torch.float32, device=device)

    def scaled(x, splits):
        return 2 * layer(x, splits, **options)

    splits = torch.tensor(SPLITS, device=device)
    torch.compile(scaled, backend="aot_eager")(x, splits).backward(dy)
    layer.backward_dw()
    for each, gradient in zip(inputs, expected, strict=True):
        torch.testing.assert_close(each.grad, gradient)
    torch.compiler.reset()
    with pytest.raises(Exception, match="torch.compiler.disable|torch._dynamo.disable"):
        torch.compile(scaled, backend="aot_eager", fullgraph=True)(x, splits)


@pytest.mark.parametrize("buffer", ["out", "dgrad_out"])
def test_a_buffer_overwritten_too_early_is_an_error(device, buffer):
    layer, x = make(device), random(M, K, device=device, requires_grad=True)
    width = N if buffer == "out" else K
    options = {buffer: random(M, width, device=device)}
    if buffer == "out":
        early = layer(x, SPLITS, **options).square()
        layer(x, SPLITS, **options)
    else:
        early = x * options[buffer]
        layer(x, SPLITS, **options).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        early.sum().backward()


@pytest.mark.parametrize("transposed", [False, True])
def test_dgrad_out_may_lie_between_the_columns_of_inp(device, transposed):
    layer = make(device, FORMS[0])
    shape = (2 * M, K) if transposed else (M, 2 * K)
    buffer = random(*shape, device=device)
    columns = (buffer[0::2], buffer[1::2]) if transposed else (buffer[:, 0::2], buffer[:, 1::2])
    x, dgrad = columns[0].detach().requires_grad_(), columns[1]
    dy = random(M, N, device=device)
    (expected,) = torch.autograd.grad(layer(x, SPLITS), x, dy)
    layer(x, SPLITS, dgrad_out=dgrad).backward(dy)
    assert equal(dgrad[:COVERED], expected[:COVERED])

    shifted = torch.as_strided(buffer, dgrad.shape, dgrad.stride(), dgrad.storage_offset() - 1)
    with pytest.raises(ValueError, match="dgrad_out = a tensor that overlaps inp"):
        layer(x, SPLITS, dgrad_out=shifted)
