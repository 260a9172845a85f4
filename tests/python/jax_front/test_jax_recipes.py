"""gmm, grouped_linear and ragged_dot with a recipe: the bits of their steps and of the torch front, under every transformation."""

import functools
import re

import cadre
import cadre.jax as cj
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export
from jax.sharding import PartitionSpec as P

BF16 = ml_dtypes.bfloat16
SIZES = [100, 0, 60]
M, K, N, G = 170, 140, 75, 3  # ten rows are tail
GRADIENTS = dict.fromkeys(("block_128", "row", "mx"), ml_dtypes.float8_e4m3fn) | {"tensor": ml_dtypes.float8_e5m2}
every_recipe = pytest.mark.parametrize("recipe", GRADIENTS)
either_layout = pytest.mark.parametrize("transposed", [True, False], ids=["gnk", "gkn"])


def given(dtype=BF16, transposed=True, groups=G):
    """x, weights, bias and dy."""
    rng = np.random.default_rng(7)
    weights = (groups, N, K) if transposed else (groups, K, N)
    x, w, dy = (rng.standard_normal(shape).astype(dtype) for shape in ((M, K), weights, (M, N)))
    return x, w, rng.standard_normal((groups, N)).astype("f4"), dy


def results(call, x, w, bias, dy, sizes=SIZES, **options):
    """(y, dx, dw, dbias) of one jitted program."""

    @jax.jit
    def program(x, w, bias, dy, sizes):
        y, gradients = jax.vjp(lambda x, w, bias: call(x, w, sizes, bias=bias, **options), x, w, bias)
        return y, *gradients(dy.astype(y.dtype))

    return program(x, w, bias, dy, jnp.array(sizes))


def same(ours, expected):
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@every_recipe
@either_layout
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16], ids=["bf16", "f32", "f16"])
def test_results_are_those_of_numpys_steps(recipe, transposed, dtype):
    x, w, bias, dy = given(dtype, transposed)
    ours = results(cj.gmm, x, w, bias, dy, transpose_rhs=transposed, recipe=recipe)
    x_rows, x_copy = cadre.quantize(x, recipe, SIZES, columns=True)
    dy_rows, dy_copy = cadre.quantize(dy, recipe, SIZES, columns=True, dtype=GRADIENTS[recipe])
    along_k, along_n = cadre.quantize(w, recipe, columns=True)[:: 1 if transposed else -1]
    y = cadre.gmm(x_rows, along_k, SIZES, transpose_rhs=True, bias=bias, out_dtype=dtype)
    dx = cadre.gmm(dy_rows, along_n, SIZES, transpose_rhs=True, out_dtype=dtype)
    copies = (dy_copy, x_copy) if transposed else (x_copy, dy_copy)
    dw = cadre.tgmm(*copies, SIZES, out_dtype=dtype)
    same(ours, (y, dx, dw, cj.bias_grad(dy, SIZES, preferred_element_type="float32")))
    assert not ours[0][sum(SIZES) :].any() and not ours[1][sum(SIZES) :].any()


@every_recipe
def test_results_are_those_of_torchs_layer(recipe):
    torch = pytest.importorskip("torch")
    from cadre.torch import GroupedLinear

    x, w, bias, dy = given()
    bias = bias.astype(BF16)
    layer = GroupedLinear(
        G, K, N, dtype=torch.bfloat16, recipe=recipe, single_grouped_weight=True, single_grouped_bias=True
    )
    tensors = [torch.from_numpy(each.view("i2").copy()).view(torch.bfloat16) for each in (x, w, bias, dy)]
    with torch.no_grad():
        layer.weight.copy_(tensors[1])
        layer.bias.copy_(tensors[2])
    leaf = tensors[0].requires_grad_()
    y = layer(leaf, SIZES)
    y.backward(tensors[3])
    theirs = (
        each.detach().view(torch.int16).numpy().view(BF16)
        for each in (y, leaf.grad, layer.weight.grad, layer.bias.grad)
    )
    same(results(cj.gmm, x, w, bias, dy, transpose_rhs=True, recipe=recipe), theirs)


@every_recipe
def test_other_names_of_the_product(recipe):
    x, w, bias, dy = given(transposed=False)
    expected = results(cj.gmm, x, w, bias, dy, recipe=recipe)
    same(results(cj.grouped_linear, x, w, bias, dy, transpose_weight=False, recipe=recipe), expected)

    def with_bias_behind(product):
        y, gradients = jax.vjp(lambda x, w: product(x, w, jnp.array(SIZES)), x, w)
        return y, *gradients(jnp.asarray(dy))

    plain = with_bias_behind(functools.partial(cj.gmm, recipe=recipe))
    ragged = functools.partial(cj.ragged_dot, recipe=recipe)
    same(with_bias_behind(ragged), plain)
    numbers = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))
    turned = lambda x, w, sizes: ragged(x, w.mT, sizes, ragged_dot_dimension_numbers=numbers)
    y, dx, _ = with_bias_behind(turned)  # the operands of dw change places, and with them the order of its scales
    same((y, dx), plain[:2])


def test_ragged_dot_activates_before_it_rounds():
    x, w, _, dy = given(transposed=False)
    sizes = jnp.array(SIZES)
    fused = lambda x, w: cj.ragged_dot(x, w, sizes, activation=jax.nn.silu, recipe="row")
    wide = lambda x, w: jax.nn.silu(cj.gmm(x, w, sizes, recipe="row", preferred_element_type="float32")).astype(BF16)
    for product in (fused, wide):
        assert product(x, w).dtype == BF16
    (ours, backward), (expected, theirs) = (jax.vjp(each, x, w) for each in (fused, wide))
    same((ours, *backward(jnp.asarray(dy))), (expected, *theirs(jnp.asarray(dy))))


@every_recipe
def test_backward_keeps_fp8_alone_and_only_what_it_needs(recipe):
    x, w, bias, _ = given()
    product = lambda x, w, bias: cj.gmm(x, w, jnp.array(SIZES), True, bias=bias, recipe=recipe)

    def kept(wanted):
        """The shapes of the FP8 data; the rest are scales, sizes and the offset."""
        given = [x, w, bias]
        some = lambda *each: product(*(each[wanted.index(i)] if i in wanted else given[i] for i in range(3)))
        leaves = jax.tree.leaves(jax.vjp(some, *(given[i] for i in wanted))[1])
        assert {leaf.dtype.name for leaf in leaves} <= {"float8_e4m3fn", "float8_e8m0fnu", "float32", "int32", "int64"}
        data = [leaf.shape for leaf in leaves if leaf.dtype == ml_dtypes.float8_e4m3fn]
        assert len(leaves) == 2 + 2 * len(data)
        return data

    copy, weights = (K, 256), (G, K, N)
    assert kept([0, 1, 2]) == [weights, copy] and kept([0]) == [weights] and kept([1]) == [copy] and kept([2]) == []


def quantised(function, *operands):
    """How often the program quantises, and how often it makes a copy along the other dim."""
    text = jax.jit(function).lower(*operands).as_text()
    return text.count("@cadre_quantize("), len(re.findall(r"\bcolumns = true", text))


def test_only_the_copies_that_are_multiplied_are_made():
    x, w, _, dy = given()
    product = lambda x, w: cj.gmm(x, w, jnp.array(SIZES), True, recipe="row")
    assert quantised(product, x, w) == (2, 0)
    assert quantised(lambda x, w, dy: jax.vjp(product, x, w)[1](dy), x, w, dy) == (3, 3)
    # Of one gradient alone, without y: the weights and dy, or the copies of x and dy.
    assert quantised(lambda x, w, dy: jax.vjp(lambda x: product(x, w), x)[1](dy), x, w, dy) == (2, 1)
    assert quantised(lambda x, w, dy: jax.vjp(lambda w: product(x, w), w)[1](dy), x, w, dy) == (2, 2)


@every_recipe
@either_layout
def test_vmap_shares_the_weights(recipe, transposed):
    x, w, _, dy = given(np.float32, transposed)
    xs, sizes = jnp.stack([x, x[::-1] * 3]), jnp.array([SIZES, SIZES[::-1]])
    one = lambda x, w, sizes: cj.gmm(x, w, sizes, transposed, recipe=recipe)
    loss = lambda x, w, sizes: (one(x, w, sizes) * dy).sum()
    each = [(one(x, w, s), *jax.grad(loss, (0, 1))(x, w, s)) for x, s in zip(xs, sizes)]
    ys, dxs, dws = (jnp.stack(parts) for parts in zip(*each))
    product = jax.jit(jax.vmap(one, (0, None, 0)))
    same([product(xs, w, sizes)], [ys])
    same(jax.vmap(jax.grad(loss, (0, 1)), (0, None, 0))(xs, w, sizes), [dxs, dws])
    of_all = lambda xs, w: jax.vmap(loss, (0, None, 0))(xs, w, sizes).sum()
    same(jax.jit(jax.grad(of_all, (0, 1)))(xs, w), [dxs, dws.sum(0)])
    same([jax.jacrev(lambda w: one(x, w, SIZES)[:2, 0])(w)[1]], [jax.grad(lambda w: one(x, w, SIZES)[1, 0])(w)])


@every_recipe
def test_local_groups_and_existing_rows(recipe):
    x, w, bias, dy = given(groups=5)
    sizes, first = [20, 30, 0, 64, 40], 1
    whole = results(cj.gmm, x, w, bias, dy, sizes, transpose_rhs=True, recipe=recipe)
    here = slice(first, first + 3)
    options = {"transpose_rhs": True, "recipe": recipe, "group_offset": jnp.array(first)}
    y, dx, dw, dbias = results(cj.gmm, x, w[here], bias[here], dy, sizes, **options)
    same((dw, dbias), (whole[2][here], whole[3][here]))
    local = np.arange(M)[sizes[0] : sum(sizes[:4])]
    same((y[local], dx[local]), (whole[0][local], whole[1][local]))
    foreign = np.setdiff1d(np.arange(M), local)
    assert not y[foreign].any() and not dx[foreign].any()

    def kept(x, existing):
        return cj.gmm(x, w[here], jnp.array(sizes), existing_out=existing, **options)

    out, gradients = jax.vjp(kept, jnp.asarray(x), jnp.full((M, N), 7, BF16))
    assert (out[foreign] == 7).all()
    of_x, of_existing = gradients(jnp.asarray(dy))
    assert not of_x[foreign].any() and not of_existing[local].any()
    same([of_existing[foreign]], [dy[foreign]])


def test_other_sizes_never_compile_again():
    x, w, bias, dy = given()

    @jax.jit
    def step(x, w, sizes):
        y, gradients = jax.vjp(lambda x, w: cj.gmm(x, w, sizes, True, recipe="block_128"), x, w)
        return y, *gradients(jnp.asarray(dy))

    for sizes in (SIZES, [0, 0, 170], [1, 2, 3]):
        expected = results(cj.gmm, x, w, bias * 0, dy, sizes, transpose_rhs=True, recipe="block_128")
        same(step(x, w, jnp.array(sizes)), expected[:3])
    assert step._cache_size() == 1


@every_recipe
def test_tail_rows_are_not_read(recipe):
    x, w, bias, dy = given()
    expected = results(cj.gmm, x, w, bias, dy, transpose_rhs=True, recipe=recipe)
    x[sum(SIZES) :], dy[sum(SIZES) :] = np.nan, np.inf
    same(results(cj.gmm, x, w, bias, dy, transpose_rhs=True, recipe=recipe), expected)


@pytest.mark.parametrize("shape", [(0, K, N), (M, 0, N), (M, K, 0)], ids=["m", "k", "n"])
@either_layout
def test_empty_operands(shape, transposed):
    m, k, n = shape
    x, w = jnp.ones((m, k)), jnp.ones((G, n, k) if transposed else (G, k, n))
    sizes = jnp.array(SIZES if m else [0] * G)
    for recipe in GRADIENTS:
        x, w = x.astype("f4"), w.astype("f4")
        y, gradients = jax.vjp(lambda x, w: cj.gmm(x, w, sizes, transposed, recipe=recipe), x, w)
        assert y.shape == (m, n) and not y.any()
        for gradient, of in zip(gradients(y), (x, w), strict=True):
            assert gradient.shape == of.shape and not gradient.any()


@every_recipe
def test_checkpoint_and_scan(recipe):
    x, w, _, _ = given(np.float32)
    w = w[:, : N - N % 5]
    x, sizes = x[:, :K], jnp.array(SIZES)
    two = jnp.stack([w[:, :70], w[:, 5:75]])

    def layer(x, w):  # exact between the products: a tanh that differs in its last bit moves codes of the next one
        y = cj.gmm(x, w, sizes, True, recipe=recipe)
        return jnp.concatenate([jnp.maximum(y, y / 8)] * 2, axis=1), None

    loops = {
        "unrolled": lambda x, two: layer(layer(x, two[0])[0], two[1])[0],
        "scan": lambda x, two: jax.lax.scan(layer, x, two)[0],
        "checkpoint": lambda x, two: jax.lax.scan(jax.checkpoint(layer), x, two)[0],
    }
    made = {
        name: jax.jit(jax.value_and_grad(lambda x, two: loop(x, two).sum(), (0, 1)))(x, two)
        for name, loop in loops.items()
    }
    for name in ("scan", "checkpoint"):
        for mine, theirs in zip(jax.tree.leaves(made[name]), jax.tree.leaves(made["unrolled"]), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@every_recipe
def test_export_of_gradients_with_symbolic_rows(recipe):
    x, w, _, dy = given()
    m = export.symbolic_shape("m")[0]
    calls = ("quantize", "scaled_gmm", "scaled_tgmm")
    calls = [export.DisabledSafetyCheck.custom_call(f"cadre_{op}") for op in calls]

    def gradients(x, w, dy, sizes):
        return jax.vjp(lambda x, w: cj.gmm(x, w, sizes, True, recipe=recipe), x, w)[1](dy)

    shapes = [jax.ShapeDtypeStruct(shape, BF16) for shape in ((m, K), (G, N, K), (m, N))]
    program = export.export(jax.jit(gradients), disabled_checks=calls)(*shapes, jax.ShapeDtypeStruct((G,), "int32"))
    sizes = jnp.array(SIZES, jnp.int32)
    same(export.deserialize(program.serialize()).call(x, w, dy, sizes), gradients(x, w, dy, sizes))


@pytest.mark.four_devices
@every_recipe
def test_each_device_of_a_mesh_multiplies_its_own_experts(recipe):
    mesh = jax.make_mesh((4,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    sizes = jnp.array([20, 30, 0, 64, 10, 3, 33, 0])
    x, w, _, dy = given(np.float32, groups=8)

    def local(x, w):
        offset = jax.lax.axis_index("expert") * 2
        return jax.lax.psum(cj.gmm(x, w, sizes, True, group_offset=offset, recipe=recipe), "expert")

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("expert")), out_specs=P(), check_vma=True)
    whole = lambda x, w: cj.gmm(x, w, sizes, True, recipe=recipe)
    for each in (sharded, whole):
        y, gradients = jax.vjp(jax.jit(each), x, w)
        made = y, *gradients(jnp.asarray(dy))
        expected = made if each is sharded else expected
    same(made, expected)


@pytest.mark.four_devices
def test_rows_of_a_mesh_add_to_one_weight_gradient():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x, w, _, dy = given(np.float32)
    local = lambda x, w, sizes: cj.gmm(x, w, sizes[0], True, recipe="row")
    specs = {"in_specs": (P("data"), P(), P("data")), "out_specs": P("data")}
    sharded = jax.shard_map(local, mesh=mesh, check_vma=True, **specs)
    sizes = jnp.array([[60, 5, 20], [0, 40, 44]])
    dx, dw = jax.jit(jax.grad(lambda x, w: (sharded(x, w, sizes) * dy).sum(), (0, 1)))(x, w)
    parts = [
        jax.grad(lambda x, w: (local(x, w, sizes[i : i + 1]) * dy[rows]).sum(), (0, 1))(x[rows], w)
        for i, rows in enumerate((slice(0, 85), slice(85, 170)))
    ]
    same((dx, dw), (jnp.concatenate([part[0] for part in parts]), parts[0][1] + parts[1][1]))


@pytest.mark.four_devices
def test_gradients_are_sharded_as_operands_of_an_explicit_mesh_are():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, w, bias, dy = (each[:168] if len(each) == M else each for each in given(np.float32, groups=4))
    sizes = [100, 0, 60, 4]
    expected = results(cj.gmm, x, w, bias, dy, sizes, transpose_rhs=True, recipe="row")[1:3]
    with jax.set_mesh(mesh):
        split = [jax.device_put(each, jax.NamedSharding(mesh, P("x"))) for each in (x, w)]
        loss = lambda x, w: (cj.gmm(x, w, sizes, True, recipe="row") * dy).sum()
        dx, dw = jax.jit(jax.grad(loss, (0, 1)))(*split)
        assert [jax.typeof(each) for each in (dx, dw)] == [jax.typeof(each) for each in split]
    same((dx, dw), expected)


def test_what_has_no_derivative_is_refused_by_name():
    x, w, _, _ = given(np.float32)
    product = lambda x: cj.gmm(x, w, SIZES, True, recipe="row")
    message = "gmm: forward mode is asked for with recipe = 'row', expected reverse mode: jax.grad or jax.vjp"
    tangent = lambda x: jax.jvp(product, (x,), (x,))
    for program in (tangent, jax.jit(tangent), jax.jacfwd(product), lambda x: jax.linearize(product, x)[1](x)):
        with pytest.raises(NotImplementedError, match=message):
            program(x)
    gradient = jax.grad(lambda x: product(x).sum())
    for again in (jax.grad(lambda x: gradient(x).sum()), jax.grad(lambda x: jax.jit(gradient)(x).sum())):
        with pytest.raises(NotImplementedError, match="a derivative through FP8 data is asked for, expected none: gmm, grouped"):
            again(x)


X, W, ROWS = np.ones((4, 8), "f4"), np.ones((2, 8, 6), "f4"), [1, 3]


class QArray:
    qvalue, scale, zero_point, shape, ndim = X.astype("i1"), X[:, :1], None, X.shape, 2


BAD = {
    "recipe": (
        lambda op: op(X, W, ROWS, recipe="block"),
        ValueError,
        "recipe = 'block', expected 'block_128', 'row', 'tensor', 'mx' or None",
    ),
    "no name": (lambda op: op(X, W, ROWS, recipe=1), ValueError, "recipe = 1, expected 'block_128'"),
    "f64": (
        lambda op: op(X, W.astype("f8"), ROWS, recipe="row"),
        TypeError,
        "rhs.dtype = float64, expected one of float32, bfloat16, float16",
    ),
    "int8": (lambda op: op(X.astype("i1"), W, ROWS, recipe="row"), TypeError, "lhs.dtype = int8, expected one of"),
    "k": (lambda op: op(X[:, 1:], W, ROWS, recipe="row"), ValueError, "rhs.k = 8, expected lhs.k = 7"),
    "rank": (lambda op: op(X, W[0], ROWS, recipe="row"), ValueError, r"rhs.shape = \(8, 6\), expected \[g, k, n\]"),
    "experts": (lambda op: op(X, W, [1, 1, 1], recipe="row"), ValueError, r"group_sizes.shape\[0\] = 3, expected exactly"),
    "FP8": (
        lambda op: op(cj.quantize(X, "row"), W, ROWS, recipe="row"),
        TypeError,
        "lhs is a ScaledArray, expected an array of float32, bfloat16, float16, because recipe = 'row' quantises it",
    ),
    "QArray": (lambda op: op(QArray(), W, ROWS, recipe="mx"), TypeError, "lhs is a QArray, expected an array of float32"),
    "result": (
        lambda op: op(X, W, ROWS, recipe="row", preferred_element_type="float64"),
        TypeError,
        "preferred_element_type = float64, expected one of float32, bfloat16, float16",
    ),
}


@pytest.mark.parametrize("op", [cj.gmm, cj.ragged_dot], ids=["gmm", "ragged_dot"])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_while_it_is_traced(case, op):
    call, kind, message = BAD[case]
    if op is cj.ragged_dot and case == "rank":
        kind = TypeError  # lax's
    with pytest.raises(kind, match=f"{op.__name__}: {message}"):
        jax.eval_shape(lambda: call(op))


def test_other_dimension_numbers_are_refused():
    inner = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    expected = "ragged_dot_general: ragged_dot_dimension_numbers = .*, expected those of gmm because recipe = 'row'"
    with pytest.raises(NotImplementedError, match=expected):
        cj.ragged_dot_general(X, X, ROWS, inner, recipe="row")


def test_other_platforms_are_refused_by_name():
    call = jax.jit(lambda x, w: cj.gmm(x, w, jnp.array(ROWS), recipe="row"))
    with pytest.raises(NotImplementedError, match="quantize: the platform is tpu, expected cpu or cuda"):
        export.export(call, platforms=["tpu"])(X, W)
