"""Nothing to multiply, nothing to map over, odd types of sizes, and JAX in its rarer moods."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LHS, RHS, BIAS = oracle.normal(1, 12, 5), oracle.normal(2, 4, 5, 3), oracle.normal(3, 4, 3)
SIZES = jnp.array([4, 0, 5, 2])


def loss(product):
    return lambda a, b, c: jnp.sin(product(a, b, c)).sum()


OURS = loss(lambda a, b, c: cj.gmm(a, b, SIZES, bias=c))
EXPECTED = loss(lambda a, b, c: oracle.gmm(a, b, SIZES) + oracle.bias_rows(12, c, SIZES))


def gradient(function):
    return jax.grad(function, (0, 1, 2))(LHS, RHS, BIAS)


def expected_gradient():
    return oracle.on_host(gradient)(EXPECTED)


EMPTY = {"m": (0, 5, 3, 4), "k": (7, 0, 3, 4), "n": (7, 5, 0, 4), "groups": (7, 5, 3, 0)}
EMPTY |= {"everything": (0, 0, 0, 0)}


@pytest.mark.parametrize("batch", [None, 0, 1])
@pytest.mark.parametrize("name", EMPTY)
def test_empty_dims_and_their_gradients(name, batch):
    m, k, n, g = EMPTY[name]
    sizes = jnp.zeros(g, jnp.int32).at[:1].set(m)
    lead = () if batch is None else (batch,)
    args = oracle.normal(1, *lead, m, k), oracle.normal(2, g, k, n), oracle.normal(3, g, n)

    def whole(product, weights, sums):
        def function(a, b, c):
            out = product(a, b, c), weights(a, a), sums(a)
            return sum(jnp.sin(x).sum() for x in out), out

        mapped = function if batch is None else jax.vmap(function, (0, None, None))

        def total(*operands):
            sums, out = mapped(*operands)
            return sums.sum(), out

        return jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))

    ours = whole(
        lambda a, b, c: cj.gmm(a, b, sizes, bias=c),
        lambda a, b: cj.tgmm(a, b, sizes),
        lambda a: cj.bias_grad(a, sizes),
    )
    expected = whole(
        lambda a, b, c: oracle.gmm(a, b, sizes) + oracle.bias_rows(m, c, sizes),
        lambda a, b: oracle.tgmm(a, b, sizes),
        lambda a: oracle.tgmm(jnp.ones((m, 1)), a, sizes)[:, 0],
    )
    oracle.all_close(ours(*args), oracle.on_host(expected)(*args))


def test_no_sizes_at_all_may_be_an_empty_list():
    assert (cj.gmm(LHS, RHS[:0], []) == 0).all() and cj.tgmm(LHS, LHS, []).shape == (0, 5, 5)


INTEGERS = ("int4", "uint8", "int16", "uint32", "int64", "uint64")


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_sizes_and_offsets_of_any_integer_type_with_and_without_x64(dtype, x64):
    with jax.enable_x64(x64):
        lhs, rhs = LHS.astype(jnp.float32), RHS.astype(jnp.float32)
        expected = oracle.gmm(lhs, rhs, SIZES)
        for sizes in (jnp.asarray(SIZES).astype(dtype), np.asarray(SIZES).astype(jnp.dtype(dtype))):
            oracle.close(jax.jit(cj.ragged_dot)(lhs, rhs, sizes), expected, 1e-5)
            local = cj.gmm(lhs, rhs[2:], sizes, group_offset=jnp.array(2).astype(dtype))
            oracle.close(local, oracle.gmm(lhs, rhs[2:], SIZES, offset=2), 1e-5)


TYPES = ("float64", "float32", "bfloat16", "float16", "int8")


@settings(max_examples=oracle.examples(25), deadline=None)
@given(
    st.sampled_from(TYPES),
    st.sampled_from(TYPES),
    st.sampled_from((None, "float64", "float32", "bfloat16", "float16", "int32")),
    st.booleans(),
)
def test_what_is_traced_is_what_runs(lhs_type, rhs_type, preferred, with_bias):
    """Any pair of types is refused while it is traced, or gives a value and gradients of the operands' types."""
    lhs, rhs = (3 * LHS).astype(lhs_type), (3 * RHS).astype(rhs_type)
    bias = BIAS.astype(jnp.float32) if with_bias else None
    product = lambda a, b: cj.gmm(a, b, SIZES, bias=bias, preferred_element_type=preferred)
    both_int8 = lhs_type == rhs_type == "int8"
    if preferred == "int32" and not both_int8:
        with pytest.raises(TypeError, match="preferred_element_type = int32"):
            jax.eval_shape(product, lhs, rhs)
        return
    if with_bias and both_int8 and preferred in (None, "int32"):
        with pytest.raises(TypeError, match="bias is given"):
            jax.eval_shape(product, lhs, rhs)
        return
    out, traced = product(lhs, rhs), jax.eval_shape(product, lhs, rhs)
    assert (out.dtype, out.shape) == (traced.dtype, traced.shape)
    wide = [x.astype(jnp.float64) for x in (lhs, rhs)]
    expected = oracle.gmm(*wide, SIZES)
    if with_bias:
        expected = expected + oracle.bias_rows(12, BIAS.astype(jnp.float32), SIZES)
    rounding = float(jnp.finfo(out.dtype).eps) if out.dtype != jnp.int32 else 0
    oracle.close(out, expected, rounding + 16 * 2.0**-24)
    floats = [i for i, x in enumerate((lhs, rhs)) if x.dtype != jnp.int8]
    if floats and out.dtype != jnp.int32:
        total = lambda a, b: product(a, b).astype(jnp.float32).sum()
        for i, bar in zip(floats, jax.grad(total, floats)(lhs, rhs), strict=True):
            assert bar.dtype == (lhs, rhs)[i].dtype and np.isfinite(bar.astype(jnp.float32)).all()


def test_without_jit():
    with jax.disable_jit():
        oracle.close(cj.gmm(LHS, RHS, SIZES, bias=BIAS), _plain())
        oracle.all_close(gradient(OURS), expected_gradient())
    with jax.ensure_compile_time_eval():
        oracle.close(cj.gmm(LHS, RHS, SIZES, bias=BIAS), _plain())


CONTRACTING = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
WITHOUT_OFFSET = {
    "gmm": lambda lhs, rhs, sizes: cj.gmm(lhs, rhs, sizes),
    "tgmm": lambda lhs, rhs, sizes: cj.tgmm(lhs, lhs, sizes),
    "bias_grad": lambda lhs, rhs, sizes: cj.bias_grad(lhs, sizes),
    "ragged_dot": lambda lhs, rhs, sizes: cj.ragged_dot(lhs, rhs, sizes),
    "contracting": lambda lhs, rhs, sizes: cj.ragged_dot_general(lhs, lhs, sizes, CONTRACTING),
}


@pytest.mark.parametrize("op", WITHOUT_OFFSET)
def test_a_call_without_jit_copies_nothing_to_the_device(op):
    """As with lax: what a call adds to its arguments is made where they are."""
    device = jax.devices()[-1]
    arguments = [jax.device_put(x, device) for x in (LHS, RHS, SIZES)]
    with jax.transfer_guard("disallow"):
        out = WITHOUT_OFFSET[op](*arguments)
    assert out.devices() == {device}
    oracle.close(out, WITHOUT_OFFSET[op](LHS, RHS, SIZES))


def _plain():
    return oracle.gmm(LHS, RHS, SIZES) + oracle.bias_rows(12, BIAS, SIZES)


@pytest.mark.parametrize("name", ["rows", "contracting", "batch", "kept", "gradient"])
def test_with_every_check_of_jax_on(name):
    """No implicit promotion of types or ranks, no leaked tracer, no transfer inside a compiled program."""
    lhs, rhs = LHS.astype(jnp.bfloat16), RHS.astype(jnp.float32)
    numbers = {
        "contracting": lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], []),
        "batch": lax.RaggedDotDimensionNumbers((([1], [1]), ([0], [0])), [0], []),
    }
    sizes, kept = SIZES.astype(jnp.uint32), jnp.zeros((12, 3), jnp.float32)
    total = lambda a, b, s: cj.gmm(a, b, s).sum()
    # Everything is an argument: a constant of a program is fetched from a GPU while it is compiled.
    general = lambda a, b, s: cj.ragged_dot_general(a, b, s, numbers[name])
    call, *args = {
        "rows": (lambda a, b, s: cj.ragged_dot(a, b, s), lhs, rhs, sizes),
        "contracting": (general, lhs, LHS, sizes),
        "batch": (general, lhs, LHS, sizes),
        "kept": (
            lambda a, b, s, e: cj.gmm(a, b, s, group_offset=0, existing_out=e),
            *(lhs, rhs, sizes, kept),
        ),
        "gradient": (jax.grad(total, (0, 1)), lhs, rhs, sizes),
    }[name]
    expected = jax.jit(call)(*args)
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.checking_leaks(),
        jax.transfer_guard("disallow"),
    ):
        out = jax.jit(call)(*args)
    jax.tree.map(np.testing.assert_array_equal, out, expected)


POLICIES = {
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("product"),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_checkpoint_policies(policy):
    named = lambda a, b, c: checkpoint_name(cj.gmm(a, b, SIZES, bias=c), "product")
    saved = jax.checkpoint(loss(named), policy=POLICIES[policy])
    oracle.all_close(gradient(saved), expected_gradient())
    jaxpr = str(jax.make_jaxpr(jax.grad(saved, (0, 1, 2)))(LHS, RHS, BIAS))
    # Forward and lhs's gradient, and forward once more where its result isn't kept. lax.ragged_dot is no dot to
    # JAX's own policies either.
    assert jaxpr.count("cadre_gmm[") == (3 if policy in ("nothing", "dots") else 2)


def test_linearize_and_linear_transpose():
    product = lambda f: lambda a, b: f(a, b, SIZES)
    tangent = lambda f: jax.linearize(product(f), LHS, RHS)[1](LHS * 2, RHS * 3)
    oracle.close(tangent(cj.ragged_dot), oracle.on_host(tangent)(oracle.gmm))
    out = oracle.normal(4, 12, 3)
    (lhs_bar,) = jax.linear_transpose(lambda a: cj.ragged_dot(a, RHS, SIZES), LHS)(out)
    (rhs_bar,) = jax.linear_transpose(lambda b: cj.ragged_dot(LHS, b, SIZES), RHS)(out)
    oracle.close(lhs_bar, oracle.gmm(out, jnp.swapaxes(RHS, 1, 2), SIZES))
    oracle.close(rhs_bar, oracle.tgmm(LHS, out, SIZES))


def test_inside_a_custom_vjp():
    @jax.custom_vjp
    def product(a, b, c):
        return cj.gmm(a, b, SIZES, bias=c)

    def backward(saved, bar):
        return jax.vjp(lambda a, b, c: cj.gmm(a, b, SIZES, bias=c), *saved)[1](bar)

    product.defvjp(lambda *args: (product(*args), args), backward)
    oracle.all_close(jax.jit(gradient, static_argnums=0)(loss(product)), expected_gradient())


def test_double_gradient_of_ragged_dot():
    """lax has none: its ragged_dot_general doesn't differentiate where the ragged dim is contracting."""
    squares = lambda f: lambda a, b: sum((x**2).sum() for x in jax.grad(f, (0, 1))(a, b))
    ours = lambda a, b: jnp.sin(cj.ragged_dot(a, b, SIZES)).sum()
    expected = lambda a, b: jnp.sin(oracle.gmm(a, b, SIZES)).sum()
    second = lambda f: jax.jit(jax.grad(squares(f), (0, 1)))(LHS, RHS)
    oracle.all_close(second(ours), oracle.on_host(second)(expected))


def test_static_arguments_and_donated_buffers():
    names = ("transpose_rhs", "preferred_element_type", "precision")
    product = jax.jit(cj.gmm, static_argnames=names, donate_argnames="existing_out")
    kept = oracle.normal(5, 12, 3)
    out = product(
        LHS,
        jnp.swapaxes(RHS, 1, 2),
        SIZES,
        transpose_rhs=True,
        preferred_element_type=jnp.float64,
        precision=lax.Precision.HIGHEST,
        existing_out=kept + 0,
    )
    oracle.close(out[:11], oracle.gmm(LHS, RHS, SIZES)[:11])
    oracle.close(out[11:], kept[11:])


@pytest.mark.four_devices
def test_pmap():
    lhs = jnp.stack([LHS * i for i in range(4)])
    out = jax.pmap(cj.gmm, in_axes=(0, None, None))(lhs, RHS, SIZES)
    oracle.close(out, jax.vmap(lambda x: oracle.gmm(x, RHS, SIZES))(lhs))
    summed = jax.pmap(lambda x: lax.psum(cj.tgmm(x, LHS, SIZES), "i"), axis_name="i")(lhs)
    oracle.close(summed[3], 6 * oracle.tgmm(LHS, LHS, SIZES))


@pytest.mark.four_devices
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("lhs_spec", [P(), P("x")], ids=str)
@pytest.mark.parametrize("rhs_spec", [P(), P("x")], ids=str)
def test_operands_on_a_mesh_without_shard_map(kind, lhs_spec, rhs_spec):
    """They are gathered, and the gradients come back sharded as the operands are."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(getattr(jax.sharding.AxisType, kind),))
    with jax.set_mesh(mesh):
        lhs = jax.device_put(LHS, NamedSharding(mesh, lhs_spec))
        rhs = jax.device_put(RHS, NamedSharding(mesh, rhs_spec))
        total = lambda a, b: jnp.sin(cj.ragged_dot(a, b, SIZES)).sum()
        mapped = lambda a, b: jax.vmap(lambda s: total(a * s, b))(jnp.arange(2.0)).sum()
        for function in (total, mapped):
            bars = jax.jit(jax.grad(function, (0, 1)))(lhs, rhs)
            assert [jax.typeof(x) for x in bars] == [jax.typeof(x) for x in (lhs, rhs)]
        oracle.close(jax.jit(cj.ragged_dot)(lhs, rhs, SIZES), oracle.gmm(LHS, RHS, SIZES))
        bars = jax.jit(jax.grad(total, (0, 1)))(lhs, rhs)
    expected = lambda a, b: jnp.sin(oracle.gmm(a, b, SIZES)).sum()
    oracle.all_close(bars, oracle.on_host(jax.grad(expected, (0, 1)))(LHS, RHS))


@pytest.mark.four_devices
@pytest.mark.parametrize("spec", [P(), P("x"), P("x", None)], ids=str)
def test_out_sharding_is_the_results(spec):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        typed = lambda op: jax.eval_shape(lambda: op(LHS, RHS, SIZES, out_sharding=spec))
        assert typed(cj.ragged_dot) == typed(lax.ragged_dot)
        out = jax.jit(lambda: cj.ragged_dot(LHS, RHS, SIZES, out_sharding=spec))()
    oracle.close(out, oracle.gmm(LHS, RHS, SIZES))
