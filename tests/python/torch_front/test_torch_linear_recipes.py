"""GroupedLinear with a recipe: three products in FP8, what is kept for them, and weights that are quantised when they change."""

import copy

import cadre.torch
import oracle
import pytest
import torch
from cadre.torch import GroupedLinear, dequantize, quantize
from torch.utils.checkpoint import checkpoint
from torch_oracle import as_numpy, assert_close, equal

SPLITS = [100, 0, 60]
M, K, N, G = 170, 140, 75, 3  # ten rows are tail
GRADIENTS = {mode: torch.float8_e4m3fn for mode in ("block_128", "row", "mx")} | {"tensor": torch.float8_e5m2}
every_recipe = pytest.mark.parametrize("recipe", GRADIENTS)
both_forms = pytest.mark.parametrize("single", [False, True], ids=["listed", "single"])


def make(recipe, device="cpu", single=True, dtype=torch.bfloat16, **options):
    options |= {"single_grouped_weight": single, "single_grouped_bias": single}
    layer = GroupedLinear(G, K, N, device=device, dtype=dtype, recipe=recipe, **options)
    with torch.no_grad():
        for each in layer.biases():
            each.normal_()
    return layer


def rows(device, width=K, dtype=torch.bfloat16, **options):
    return torch.randn(M, width, device=device).to(dtype).requires_grad_(options.get("grad", False))


def stack(tensors):
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors))


@every_recipe
@both_forms
def test_results_are_products_of_the_dequantised_operands(device, recipe, single):
    layer, x, dy = make(recipe, device, single), rows(device, grad=True), rows(device, N)
    y = layer(x, SPLITS)
    y.backward(dy)

    def parts(tensor, dtype, name):
        row, column = quantize(tensor.detach(), recipe, SPLITS, dtype=dtype, columns=True)
        wide = {"out_dtype": torch.float32}
        return as_numpy(dequantize(row, SPLITS, **wide)), as_numpy(dequantize(column, SPLITS, num_rows=M, **wide))

    x_rows, x_columns = parts(x, torch.float8_e4m3fn, "x")
    dy_rows, dy_columns = parts(dy, GRADIENTS[recipe], "dy")
    weight = stack(layer.weights()).detach()
    if not single and recipe == "tensor":
        made = [quantize(each[None], recipe, columns=True) for each in weight]
    else:
        made = [quantize(weight, recipe, columns=True)]
    w_rows, w_columns = (
        as_numpy(torch.cat([dequantize(each[i], out_dtype=torch.float32) for each in made])) for i in range(2)
    )
    bias = as_numpy(stack(layer.biases()))
    expected, magnitude = oracle.gmm(x_rows, w_rows, SPLITS, transpose_rhs=True, bias=bias)
    assert_close(y, expected, magnitude, K + 1)
    assert_close(x.grad, *oracle.gmm(dy_rows, w_columns, SPLITS, transpose_rhs=True), N)
    dw = stack([each.grad for each in layer.weights()])
    assert_close(dw, *oracle.tgmm(dy_columns, x_columns, SPLITS), max(SPLITS))
    assert not y[sum(SPLITS) :].any() and not x.grad[sum(SPLITS) :].any()


#: Relative errors of y, dx and dw that quantisation to 3 bits of mantissa may cause (docs/numerics.md): an e4m3 value is off
#: by at most 2^-4, and by 0.027 in the mean square; two such operands by sqrt(2) times that. e5m2 twice as much.
BAND = {torch.float8_e4m3fn: 0.045, torch.float8_e5m2: 0.07}


@every_recipe
def test_a_layer_is_as_near_to_bf16_as_its_types_allow(device, recipe):
    layer = make(recipe, device)
    plain = make(None, device)
    plain.load_state_dict(layer.state_dict())
    x, dy, results = rows(device), rows(device, N), []
    for each in (layer, plain):
        given = x.clone().requires_grad_()
        y = each(given, SPLITS)
        y.backward(dy)
        results.append((y.detach(), given.grad, each.weight.grad))
    bands = BAND[torch.float8_e4m3fn], *[BAND[GRADIENTS[recipe]]] * 2
    for ours, theirs, band in zip(*results, bands, strict=True):
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        assert 0.005 < error < band
    assert equal(layer.bias.grad, plain.bias.grad)


@every_recipe
@both_forms
def test_backward_keeps_fp8_alone(recipe, single):
    layer, x = make(recipe, single=single), rows("cpu", grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        y = layer(x, torch.tensor(SPLITS))
    wide = [each for each in kept if each.element_size() > 1 and each.numel() >= M * 2 and each.dtype != torch.float32]
    assert not wide, [(each.shape, each.dtype) for each in wide]
    assert sum(each.dtype == torch.float8_e4m3fn for each in kept) == (2 if single else 1 + G)
    y.sum().backward()


@every_recipe
def test_delayed_gradients_and_main_grad_have_the_bits_of_immediate_ones(device, recipe):
    x, dy = rows(device), rows(device, N)
    layers = [make(recipe, device)]
    for options in ({"delay_wgrad_compute": True}, {"fuse_wgrad_accumulation": True}):
        layers.append(make(recipe, device, **options))
        layers[-1].load_state_dict(layers[0].state_dict())
    plain, delayed, fused = layers
    fused.weight.main_grad = torch.full((G, N, K), 2.0, device=device)
    for each in layers:
        each(x, SPLITS).backward(dy)
    assert delayed.weight.grad is None and delayed.pending_wgrads == 1
    delayed.backward_dw()
    assert equal(delayed.weight.grad, plain.weight.grad)
    assert fused.weight.grad is None
    torch.testing.assert_close(fused.weight.main_grad - 2, plain.weight.grad.float(), rtol=2**-7, atol=1e-5)
    fused(x, SPLITS, is_first_microbatch=True).backward(dy)
    assert equal(fused.weight.main_grad.bfloat16(), plain.weight.grad)


@every_recipe
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(device, recipe, reentrant):
    layer, x, dy = make(recipe, device), rows(device, grad=True), rows(device, N)
    layer(x, SPLITS).backward(dy)
    expected = x.grad.clone(), layer.weight.grad.clone()
    x.grad = layer.weight.grad = None
    checkpoint(layer, x, SPLITS, use_reentrant=reentrant).backward(dy)
    assert equal(x.grad, expected[0])
    assert equal(layer.weight.grad, expected[1])


def test_buffers_of_the_caller_are_written():
    layer, x, dy = make("row"), rows("cpu", grad=True), rows("cpu", N)
    y = layer(x, SPLITS)
    (dx,) = torch.autograd.grad(y, x, dy)
    out, dgrad_out = torch.zeros_like(y), torch.zeros_like(x)
    again = layer(x, SPLITS, out=out, dgrad_out=dgrad_out)
    torch.autograd.grad(again, x, dy)
    assert equal(out, y.detach())
    assert equal(dgrad_out, dx)


# Weights that stay quantised: they must never be those of other values.


def change_in_place(layer):
    with torch.no_grad():
        layer.weight.mul_(-1)


def step_of_an_optimizer(layer):
    layer.weight.grad = torch.randn_like(layer.weight)
    torch.optim.SGD([layer.weight], lr=1.0).step()


def other_state(layer):
    layer.load_state_dict(make(None).state_dict())


def other_parameter(layer):
    layer.weight = torch.nn.Parameter(torch.randn_like(layer.weight))


def other_data(layer):
    layer.weight.data = torch.randn_like(layer.weight)


def through_data_and_refreshed(layer):
    layer.weight.data.mul_(-1)
    layer.refresh()


CHANGES = [change_in_place, step_of_an_optimizer, other_state, other_parameter, other_data, through_data_and_refreshed]


def kept(layer):
    return layer._kept_weights._of["weight"][1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_first_microbatch", [None, False])
def test_weights_that_changed_are_quantised_again(change, is_first_microbatch):
    layer, x = make("block_128"), rows("cpu")
    layer(x, SPLITS, is_first_microbatch)
    before = kept(layer)
    layer(x, SPLITS, is_first_microbatch)
    assert kept(layer) is before, "weights that stayed are quantised once"
    change(layer)
    fresh = make("block_128")
    fresh.load_state_dict(layer.state_dict())
    assert equal(layer(x, SPLITS, is_first_microbatch), fresh(x, SPLITS))


def test_the_first_microbatch_quantises_whatever_the_counters_say():
    layer, x = make("block_128"), rows("cpu")
    layer(x, SPLITS)
    layer.weight.data.mul_(-1)  # no counter shows it
    fresh = make("block_128")
    fresh.load_state_dict(layer.state_dict())
    assert equal(layer(x, SPLITS, is_first_microbatch=True), fresh(x, SPLITS))


def test_trained_weights_of_a_process_group_are_quantised_in_every_pass(monkeypatch):
    """FSDP2 gathers into a parameter and hides it from the version counter."""
    layer, x = make("block_128"), rows("cpu")
    layer(x, SPLITS)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with torch.autograd._unsafe_preserve_version_counter(layer.weight), torch.no_grad():
        layer.weight.mul_(-1)
    fresh = make("block_128")
    fresh.load_state_dict(layer.state_dict())
    assert equal(layer(x, SPLITS), fresh(x, SPLITS))
    before = kept(layer)
    layer(x, SPLITS, is_first_microbatch=False)
    assert kept(layer) is before, "the caller says that they stayed"


def test_a_captured_graph_leaves_no_weights_behind(monkeypatch):
    """Nothing runs while a graph is captured, so what it quantised then holds no values before its first replay."""
    layer, x = make("block_128"), rows("cpu")
    layer(x, SPLITS)
    before = kept(layer)
    monkeypatch.setattr(cadre.torch._recipes, "_is_capturing", lambda weight: True)
    layer(x, SPLITS)
    made = layer.quantised_weights(False, columns=True)
    assert made is not before and kept(layer) is before
    monkeypatch.undo()
    layer(x, SPLITS)
    assert kept(layer) is before


def test_a_copy_of_a_layer_quantises_its_own_weights():
    layer, x = make("block_128"), rows("cpu")
    layer(x, SPLITS)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.mul_(-1)
        other.bias.zero_()
        layer.bias.zero_()
    assert equal(other(x, SPLITS), -layer(x, SPLITS))


# Weights that a checkpoint has in FP8.


def checkpoint_of_hugging_face(recipe, single):
    """weight e4m3 [out, in] and weight_scale_inv f32 [ceil(out/128), ceil(in/128)] of each expert, or stacked; and the values."""
    made = quantize(torch.randn(G, N, K), recipe)
    state = {"weight": made.data, "weight_scale_inv": made.scales}
    if not single:
        each = made.scales[:, None] if recipe == "tensor" else made.scales
        state = {f"weight{i}": data for i, data in enumerate(made.data)}
        state |= {f"weight{i}_scale_inv": scales for i, scales in enumerate(each)}
    return state, made


@every_recipe
@both_forms
def test_an_fp8_checkpoint_is_taken_as_it_is(recipe, single):
    state, made = checkpoint_of_hugging_face(recipe, single)
    layer = make(recipe, single=single, dtype=torch.float8_e4m3fn, bias=False)
    layer.load_state_dict({name: each.reshape(layer.state_dict()[name].shape) for name, each in state.items()})
    x = rows("cpu")
    with torch.no_grad():
        y = layer(x, SPLITS)
    assert y.dtype == torch.bfloat16
    x_rows = as_numpy(dequantize(quantize(x, recipe, SPLITS), SPLITS, out_dtype=torch.float32))
    weights = as_numpy(dequantize(made, out_dtype=torch.float32))
    assert_close(y, *oracle.gmm(x_rows, weights, SPLITS, transpose_rhs=True), K)


@pytest.mark.parametrize("recipe", ["block_128", "tensor"])
def test_the_input_of_an_fp8_checkpoint_has_a_gradient(recipe):
    state, made = checkpoint_of_hugging_face(recipe, True)
    layer = make(recipe, dtype=torch.float8_e4m3fn, bias=False)
    layer.load_state_dict({name: each.reshape(layer.state_dict()[name].shape) for name, each in state.items()})
    x, dy = rows("cpu", grad=True), rows("cpu", N)
    layer(x, SPLITS).backward(dy)
    dy_rows = dequantize(quantize(dy, recipe, SPLITS, dtype=GRADIENTS[recipe]), SPLITS, out_dtype=torch.float32)
    weights = as_numpy(dequantize(made, out_dtype=torch.float32))
    assert_close(x.grad, *oracle.gmm(as_numpy(dy_rows), weights, SPLITS), N)


def of_rows_alone(recipe):
    layer = make(recipe, dtype=torch.float8_e4m3fn, bias=False)
    return layer(rows("cpu", grad=True), SPLITS)


BAD_INPUT = {
    "another recipe": (
        lambda: make("block"),
        ValueError,
        "GroupedLinear: recipe = 'block', expected 'block_128', 'row', 'tensor', 'mx' or None",
    ),
    "FP8 weights without recipe": (
        lambda: make(None, dtype=torch.float8_e4m3fn),
        ValueError,
        "GroupedLinear: recipe = None, expected 'block_128', 'row', 'tensor' or 'mx', because the weights are FP8",
    ),
    "f64": (
        lambda: make("row")(rows("cpu").double(), SPLITS),
        TypeError,
        "GroupedLinear: inp.dtype = torch.float64, expected",
    ),
    "splits": (lambda: make("row")(rows("cpu"), [100, 0, 100]), ValueError, "GroupedLinear: .*m_splits"),
    "no column-wise data": (
        lambda: of_rows_alone("row"),
        ValueError,
        "GroupedLinear: weight.columns = None, expected column-wise data for the input's gradient",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    call, kind, message = BAD_INPUT[name]
    with pytest.raises(kind, match=message):
        call()
