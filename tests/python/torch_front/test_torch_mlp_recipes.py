"""The experts of a layer with a recipe: as near to bf16 as FP8 allows, with one result whatever form the weights have."""

import functools

import cadre.torch
import pytest
import torch
import torch.nn.functional as F
from cadre.torch import GroupedMLP, dequantize, moe_mlp, quantize
from test_torch_language_model import Model, text
from test_torch_linear_recipes import GRADIENTS, every_recipe
from torch.utils.checkpoint import checkpoint
from torch_oracle import equal

TOKENS, H, I, E, TOP_K = 40, 140, 75, 5, 2


def routed(device="cpu", dropped=True):
    ids = torch.stack([torch.randperm(E)[:TOP_K] for _ in range(TOKENS)])
    if dropped:
        ids[3, 1], ids[7] = -1, E  # ids that no expert has
    return ids.to(device)


def inputs(device="cpu", *, gated=True, dtype=torch.bfloat16):
    """x, the router's weights, w13, w2, bias13 and bias2."""
    columns = 2 * I if gated else I
    shapes = (TOKENS, H), (TOKENS, TOP_K), (E, columns, H), (E, H, I), (E, columns), (E, H)
    factors = 1, 1, H**-0.5, I**-0.5, 1, 1
    made = [torch.randn(shape, device=device) * factor for shape, factor in zip(shapes, factors, strict=True)]
    return [made[0].to(dtype), made[1].abs(), *(each.to(dtype) for each in made[2:])]


def call(recipe, ids, given, **options):
    x, weights, w13, w2, *biases = given
    bias13, bias2 = biases or (None, None)
    return moe_mlp(x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, recipe=recipe, **options)


def results(recipe, ids, given, dout, **options):
    """The result and all gradients."""
    leaves = [each.detach().clone().requires_grad_() for each in given]
    out = call(recipe, ids, leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def error(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


#: Relative errors against bf16 (docs/numerics.md): each operand adds 0.027 of e4m3 or 0.053 of e5m2 in the mean square, and a
#: gradient passes up to five of them: both products' operands, and the pre-activation as it was kept. A third more for
#: chance, since the smallest gradient here has 80 values.
BAND = {torch.float8_e4m3fn: 0.085, torch.float8_e5m2: 0.16}
LAYERS = [(recipe, "swiglu", False, on_input) for recipe in GRADIENTS for on_input in (False, True)]
LAYERS += [("block_128", "clamped_swiglu", False, False), ("row", "relu2", False, False), ("mx", "none", False, True)]
LAYERS += [("block_128", "clamped_swiglu", True, False), ("row", "swiglu", True, True)]


@pytest.mark.parametrize("recipe, activation, interleaved, on_input", LAYERS)
def test_a_layer_is_as_near_to_bf16_as_its_types_allow(device, recipe, activation, interleaved, on_input):
    ids, given = routed(device), inputs(device, gated="glu" in activation)
    dout = torch.randn(TOKENS, H, device=device, dtype=torch.bfloat16)
    options = {"activation": activation, "interleaved": interleaved, "weights_on_input": on_input}
    ours, theirs = (results(each, ids, given, dout, **options) for each in (recipe, None))
    names = "out", "dx", "dweights", "dw13", "dw2", "dbias13"
    for name, mine, expected in zip(names, ours[:-1], theirs[:-1], strict=True):
        band = BAND[torch.float8_e4m3fn if name == "out" else GRADIENTS[recipe]]
        assert 0.005 < error(mine, expected) < band, name
    torch.testing.assert_close(ours[-1], theirs[-1])  # dbias2 is a sum of dout


@every_recipe
def test_forward_is_the_composition_of_its_steps(recipe):
    """In f64, but for the roundings to bf16 and FP8 themselves: where a sum is next to a tie, a code may be its neighbour."""
    ids, (x, weights, w13, w2, *_) = routed(), inputs()
    out = call(recipe, ids, (x, weights, w13, w2))
    routing = cadre.torch.route(ids, E)
    sizes, source, slots = routing
    rows = dequantize(quantize(x, recipe, sizes, source_row=source), sizes, out_dtype=torch.float32).double()
    w13, w2 = (dequantize(quantize(each, recipe), out_dtype=torch.float32).double() for each in (w13, w2))
    expert = torch.repeat_interleave(torch.arange(E), sizes)
    covered = len(expert)
    of_rows = torch.zeros(len(source))
    of_rows[slots[slots >= 0].long()] = weights[slots >= 0]
    preact = torch.zeros(len(source), 2 * I, dtype=torch.bfloat16)
    preact[:covered] = torch.einsum("mk,mnk->mn", rows[:covered], w13[expert]).bfloat16()
    activated = quantize(preact, recipe, sizes, activation="swiglu", row_scale=of_rows)
    activated = dequantize(activated, sizes, out_dtype=torch.float32).double()
    y = torch.einsum("mk,mnk->mn", activated[:covered], w2[expert]).bfloat16().double()
    expected = torch.zeros(TOKENS, H, dtype=torch.float64).index_add(0, source[:covered].long(), y)
    assert error(out, expected) < 0.006


@every_recipe
def test_every_form_of_the_weights_gives_the_same_bits(recipe):
    ids, given = routed(), inputs()[:4]
    x, weights, w13, w2 = given
    dout = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    expected = results(recipe, ids, given, dout)
    turned = [x, weights, w13.mT.contiguous(), w2.mT.contiguous()]
    ours = results(recipe, ids, turned, dout, transposed=True)
    for mine, theirs in zip(ours[:3], expected[:3], strict=True):
        assert equal(mine, theirs)
    for mine, theirs in zip(ours[3:], expected[3:], strict=True):
        # The operands of this product change places, and a sum is multiplied by the left one's scale first.
        torch.testing.assert_close(mine.mT, theirs, rtol=2**-7, atol=0)
    leaves = [[each.detach().clone().requires_grad_() for each in stack] for stack in (w13, w2)]
    out = moe_mlp(x, ids, weights, *leaves, recipe=recipe)
    assert equal(out.detach(), expected[0])
    made = torch.autograd.grad(out, [*leaves[0], *leaves[1]], dout)
    assert equal(torch.stack(made[:E]), expected[3])
    assert equal(torch.stack(made[E:]), expected[4])
    both = [quantize(each, recipe, columns=True) for each in (w13, w2)]
    leaf = x.clone().requires_grad_()
    out = moe_mlp(leaf, ids, weights, *both, recipe=recipe)
    assert equal(out.detach(), expected[0])
    assert equal(torch.autograd.grad(out, leaf, dout)[0], expected[1])
    with torch.no_grad():
        assert equal(moe_mlp(x, ids, weights, *(pair[0] for pair in both), recipe=recipe), expected[0])


@pytest.mark.parametrize("offset", [2, torch.tensor(2)], ids=["int", "tensor"])
def test_the_experts_of_two_shards_add_up(offset):
    ids, given = routed(), inputs()
    dout = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    x, weights, *parameters = given
    whole = results("block_128", ids, given, dout)
    parts = [
        results("block_128", ids, [x, weights, *(each[part] for each in parameters)], dout, num_experts=E, group_offset=at)
        for part, at in ((slice(0, 2), 0), (slice(2, E), offset))
    ]
    for i in range(3):
        total = parts[0][i].float() + parts[1][i].float()
        torch.testing.assert_close(total, whole[i].float(), rtol=2**-6, atol=2**-6 * whole[i].float().abs().max().item())
    for i in range(3, 7):
        assert equal(torch.cat([parts[0][i], parts[1][i]]), whole[i])


def module(recipe, **options):
    made = GroupedMLP(E, H, I, dtype=torch.bfloat16, bias=True, recipe=recipe, **options)
    with torch.no_grad():
        for each in made.biases():
            each.normal_()
    return made


@every_recipe
def test_the_module_has_the_bits_of_the_function_now_later_and_in_main_grad(recipe):
    plain, ids, (x, weights, *_) = module(recipe), routed(), inputs()
    dout = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    expected = results(recipe, ids, [x, weights, *plain.weights(), *plain.biases()], dout)
    for options in ({}, {"delay_wgrad_compute": True}, {"fuse_wgrad_accumulation": True}):
        layer, leaf = module(recipe, **options), x.clone().requires_grad_()
        layer.load_state_dict(plain.state_dict())
        for weight in layer.weights() if "fuse_wgrad_accumulation" in options else []:
            weight.main_grad = torch.full(weight.shape, 7.0)
        out = layer(leaf, ids, weights, is_first_microbatch=True)
        out.backward(dout)
        if "delay_wgrad_compute" in options:
            assert layer.w13.grad is None and layer.pending_wgrads == 1
            layer.backward_dw()
        assert equal(out.detach(), expected[0])
        assert equal(leaf.grad, expected[1])
        for weight, gradient in zip(layer.weights(), expected[3:5], strict=True):
            if "fuse_wgrad_accumulation" in options:
                assert weight.grad is None
                assert equal(weight.main_grad.bfloat16(), gradient)
            else:
                assert equal(weight.grad, gradient)
        for bias, gradient in zip(layer.biases(), expected[5:], strict=True):
            assert equal(bias.grad, gradient)


@every_recipe
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(device, recipe, reentrant):
    layer, ids, (x, weights, *_) = module(recipe).to(device), routed(device), inputs(device)
    dout = torch.randn(TOKENS, H, dtype=torch.bfloat16, device=device)
    made = []
    for call_of in (lambda *given: layer(*given), lambda *given: checkpoint(layer, *given, use_reentrant=reentrant)):
        leaves = [each.detach().clone().requires_grad_() for each in (x, weights)]
        layer.zero_grad()
        out = call_of(leaves[0], ids, leaves[1])
        out.backward(dout)
        made.append([out.detach(), *(each.grad for each in (*leaves, *layer.parameters()))])
    for plain, again in zip(*made, strict=True):
        assert equal(plain, again)


@every_recipe
def test_delayed_gradients_go_to_main_grad(recipe):
    plain, ids, (x, weights, *_) = module(recipe), routed(), inputs()
    dout = torch.randn(TOKENS, H, dtype=torch.bfloat16)
    layer = module(recipe, delay_wgrad_compute=True, fuse_wgrad_accumulation=True)
    layer.load_state_dict(plain.state_dict())
    for weight in layer.weights():
        weight.main_grad = torch.full(weight.shape, 7.0)
    plain(x, ids, weights).backward(dout)
    layer(x, ids, weights, is_first_microbatch=True).backward(dout)
    assert layer.pending_wgrads == 1 and all((weight.main_grad == 7).all() for weight in layer.weights())
    layer.backward_dw()
    for weight, other in zip(layer.weights(), plain.weights(), strict=True):
        assert weight.grad is None and equal(weight.main_grad.bfloat16(), other.grad)


def test_backward_keeps_rows_in_fp8_alone():
    ids, given = routed(), inputs()[:4]
    leaves = [each.detach().requires_grad_() for each in given]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        call("block_128", ids, leaves)
    rows = (each for each in kept if each.dim() == 2 and each.element_size() <= 2)
    sizes = {(tuple(each.shape), each.dtype) for each in rows if each.numel() > TOKENS * TOP_K}
    capacity = (TOKENS * TOP_K + E * 31) // 32 * 32
    fp8 = torch.float8_e4m3fn
    assert sizes == {((TOKENS, H), torch.bfloat16), ((TOKENS * TOP_K, 2 * I), fp8), ((I, capacity), fp8)}


@every_recipe
def test_an_fp8_checkpoint_is_taken_as_it_is(recipe):
    made = {name: quantize(each, recipe) for name, each in zip(("w13", "w2"), inputs()[2:4], strict=True)}
    layer = GroupedMLP(E, H, I, dtype=torch.float8_e4m3fn, recipe=recipe)
    state = {name: each.data for name, each in made.items()}
    for name, each in made.items():
        name = f"{name}_scale_inv"
        state[name] = each.scales.reshape(layer.state_dict()[name].shape)
    layer.load_state_dict(state)
    ids, (x, weights, *_) = routed(), inputs()
    with torch.no_grad():
        assert equal(layer(x, ids, weights), moe_mlp(x, ids, weights, *made.values(), recipe=recipe))


def test_changed_weights_are_quantised_again():
    layer, ids, (x, weights, *_) = module("block_128"), routed(), inputs()
    layer(x, ids, weights)
    with torch.no_grad():
        layer.w2.mul_(-1)
        layer.bias2.mul_(-1)
    fresh = module("block_128")
    fresh.load_state_dict(layer.state_dict())
    assert equal(layer(x, ids, weights), fresh(x, ids, weights))


BAND_OF_LOSS = 0.05  # nats, at every step; the loss falls from 3.4 to 0.3


def experts(recipe):
    def run(x, logits, w13, w2):
        weights, ids = cadre.torch.select_experts(logits, TOP_K)
        x16, *matrices = (each.bfloat16() for each in (x, w13, w2))
        return x + moe_mlp(x16, ids, weights, *matrices, recipe=recipe).float(), ids

    return run


@functools.cache
def losses_of(recipe):
    """40 steps from one start, on one thread: the model is too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    letters, model = text(torch.Generator().manual_seed(3)), Model(experts(recipe), torch.float32)
    try:
        return [model.step(letters)[0] for _ in range(40)]
    finally:
        torch.set_num_threads(threads)


@every_recipe
def test_training_a_language_model_follows_bf16(recipe):
    bf16, fp8 = losses_of(None), losses_of(recipe)
    for step, (loss, ours) in enumerate(zip(bf16, fp8, strict=True)):
        assert abs(ours - loss) < BAND_OF_LOSS, f"step {step}: {ours}, in bf16 {loss}"
    assert fp8[-1] < fp8[0] / 2


BAD_INPUT = {
    "a recipe": (lambda given: call("fp8", routed(), given), "moe_mlp: recipe = 'fp8', expected 'block_128'"),
    "a function": (
        lambda given: call("row", routed(), given, activation=F.gelu),
        "moe_mlp: activation = a function, expected a name, because a recipe is given",
    ),
    "FP8 without a recipe": (
        lambda given: call(None, routed(), [*given[:2], quantize(given[2], "row"), given[3]]),
        "moe_mlp: recipe = None, expected the mode of the scales",
    ),
    "no column-wise data": (
        lambda given: call(
            "row", routed(), [given[0].requires_grad_(), given[1], *(quantize(each, "row") for each in given[2:4])]
        ),
        "moe_mlp: w2.columns = None, expected column-wise data for the input's gradient",
    ),
    "another mode": (
        lambda given: call("row", routed(), [*given[:2], *(quantize(each, "block_128") for each in given[2:4])]),
        "moe_mlp: w13.mode = 'block_128', expected 'row', the recipe",
    ),
    "FP8 the other way round": (
        lambda given: call("row", routed(), [*given[:2], *(quantize(each, "row") for each in given[2:4])], transposed=True),
        "moe_mlp: transposed = True, expected False, because the weights are quantised",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    bad, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=message):
        bad(inputs())
