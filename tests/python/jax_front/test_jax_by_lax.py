"""Where XLA has no handler (a TPU) the ops are made of lax.ragged_dot_general: their values, by making them so on this device, and
their lowering for a TPU, which nothing here can run."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from cadre.jax import _lowering, _primitives
from jax import export
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.cpu

M, K, N, GROUPS = 40, 7, 5, 4
SIZES = [[9, 0, 11, 3], [0] * 4, [0, 40, 0, 0], [10] * 4, [1, 2, 3, 4]]
NAN = float("nan")


@pytest.fixture
def no_handlers(monkeypatch):
    """As on a platform that has none."""

    def forget():
        _primitives._jitted.cache_clear()
        jax.clear_caches()

    monkeypatch.setattr(_lowering, "has_handler", lambda arrays, result: False)
    forget()
    yield
    forget()


def operands(dtype="float64"):
    return oracle.normal(1, M, K, dtype=dtype), oracle.normal(2, GROUPS, K, N, dtype=dtype)


def test_without_handlers_no_program_calls_one(no_handlers):
    gradients = jax.jit(jax.grad(lambda *args: cj.gmm(*args).sum(), (0, 1)))
    text = gradients.lower(*operands(), jnp.array(SIZES[0])).as_text()
    assert "dot_general" in text and "@cadre_" not in text


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_values_and_gradients(no_handlers, transpose_rhs):
    lhs, rhs = operands()
    bias = oracle.normal(3, GROUPS, N)
    stored = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs

    def ours(lhs, rhs, bias, sizes):
        return cj.gmm(lhs, rhs, sizes, transpose_rhs, bias=bias)

    def expected(lhs, rhs, bias, sizes):
        lhs = jnp.where(oracle.membership(M, sizes).any(1)[:, None], lhs, 0)
        return oracle.gmm(lhs, rhs, sizes, transpose_rhs) + oracle.bias_rows(M, bias, sizes)

    def derivatives(product):
        def total(*args):
            out = product(*args)
            return jnp.sin(out).sum(), out

        return jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))

    ours, expected = derivatives(ours), oracle.on_host(derivatives(expected))
    for sizes in SIZES:
        sizes = jnp.array(sizes)
        # The tail is never read.
        poisoned = jnp.where(oracle.membership(M, sizes).any(1)[:, None], lhs, NAN)
        oracle.all_close(ours(poisoned, stored, bias, sizes), expected(lhs, stored, bias, sizes))


def test_second_derivatives(no_handlers):
    lhs, rhs = operands()
    sizes = jnp.array(SIZES[0])
    first = lambda f: jax.grad(lambda a, b: jnp.sin(f(a, b, sizes)).sum(), (0, 1))
    second = lambda f: jax.jit(
        jax.grad(lambda *a: sum(jnp.sin(x).sum() for x in first(f)(*a)), (0, 1))
    )
    oracle.all_close(second(cj.gmm)(lhs, rhs), oracle.on_host(second(oracle.gmm))(lhs, rhs))


@pytest.mark.parametrize("offset", [1])
def test_foreign_rows_are_zero_and_never_read(no_handlers, offset):
    lhs, rhs = operands()
    sizes = jnp.array(SIZES[0])
    inside = oracle.membership(M, sizes, offset, 2).any(1)[:, None]
    poisoned, bias = jnp.where(inside, lhs, NAN), oracle.normal(3, 2, N)
    dy = jnp.where(inside, oracle.normal(4, M, N), NAN)
    clean = jnp.where(inside, dy, 0)
    local = rhs[offset : offset + 2]
    shared = {"group_offset": jnp.array(offset)}
    oracle.close(
        cj.gmm(poisoned, local, sizes, bias=bias, **shared),
        jnp.where(inside, oracle.gmm(lhs, local, sizes, offset=offset), 0)
        + oracle.bias_rows(M, bias, sizes, offset),
    )
    oracle.close(
        cj.tgmm(poisoned, dy, sizes, num_groups=2, **shared),
        oracle.tgmm(jnp.where(inside, lhs, 0), clean, sizes, offset, 2),
    )
    ones = jnp.ones((M, 1))
    oracle.close(
        cj.bias_grad(dy, sizes, num_groups=2, **shared),
        oracle.tgmm(ones, clean, sizes, offset, 2)[:, 0],
    )
    existing = oracle.normal(5, M, N)
    kept = cj.gmm(poisoned, local, sizes, existing_out=existing, **shared)
    assert (jnp.where(inside, existing, kept) == existing).all()


@pytest.mark.parametrize(
    "sizes, rows", [([9, -1, 5, 0], 9), ([9, 0, 99, 1], 9), ([41, 0, 0, 0], 0)]
)
def test_rows_behind_a_bad_size_count_as_tail(no_handlers, sizes, rows):
    lhs, rhs = operands()
    out = cj.gmm(lhs, rhs, jnp.array(sizes))
    oracle.close(out, jnp.where(jnp.arange(M)[:, None] < rows, lhs @ rhs[0], 0))


@pytest.mark.parametrize("offset", [-1, 3])
def test_with_a_bad_offset_every_row_is_foreign(no_handlers, offset):
    lhs, rhs = operands()
    out = cj.gmm(lhs, rhs[:2], jnp.array(SIZES[0]), group_offset=offset)
    assert (out == 0).all()


@pytest.mark.parametrize(
    "left, right, out",
    [
        ("bfloat16", "bfloat16", None),
        ("float32", "bfloat16", None),
        ("float16", "bfloat16", "float16"),
        ("int8", "int8", None),
        ("int8", "bfloat16", "float32"),
        ("float64", "float32", "bfloat16"),
    ],
)
def test_types_are_widened_and_rounded_once(no_handlers, left, right, out):
    whole = lambda seed, *shape: jnp.asarray(np.random.default_rng(seed).integers(-9, 10, shape))
    lhs, rhs = whole(1, M, K).astype(left), whole(2, GROUPS, K, N).astype(right)
    sizes = jnp.array(SIZES[0])
    actual = cj.gmm(lhs, rhs, sizes, preferred_element_type=out)
    exact = oracle.gmm(lhs.astype(float), rhs.astype(float), sizes)
    assert actual.dtype == (out or {"int8": jnp.int32}.get(right, jnp.promote_types(left, right)))
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(exact.astype(actual.dtype)))


@pytest.mark.parametrize("axes", [(0, None, 0), (None, 0, None), (None, None, 0)])
def test_vmap_walks_the_entries(no_handlers, axes):
    lhs, rhs = oracle.normal(1, 5, M, K), oracle.normal(2, 5, GROUPS, K, N)
    all_args = lhs, rhs, jnp.array(SIZES)
    args = [x if axis == 0 else x[0] for x, axis in zip(all_args, axes)]

    def derivatives(product):
        def total(lhs, rhs, sizes):
            out = product(lhs, rhs, sizes)
            return jnp.sin(out).sum(), out

        return jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(*args)

    ours = derivatives(jax.vmap(cj.gmm, axes))
    oracle.all_close(ours, oracle.on_host(derivatives)(jax.vmap(oracle.gmm, axes)))


def test_two_vmaps(no_handlers):
    lhs, rhs = oracle.normal(1, 2, M, K), oracle.normal(2, 3, GROUPS, K, N)
    sizes = jnp.array(SIZES[0])
    out = jax.vmap(jax.vmap(cj.gmm, (None, 0, None)), (0, None, None))(lhs, rhs, sizes)
    for i, j in np.ndindex(2, 3):
        oracle.close(out[i, j], oracle.gmm(lhs[i], rhs[j], sizes))


@pytest.mark.parametrize(
    "m, k, n, groups", [(0, 3, 2, 2), (3, 0, 2, 2), (3, 3, 0, 2), (3, 3, 2, 0)]
)
def test_empty_operands(no_handlers, m, k, n, groups):
    sizes = jnp.zeros(groups, int)
    lhs, rhs = oracle.normal(1, m, k), oracle.normal(2, groups, k, n)
    assert (cj.gmm(lhs, rhs, sizes) == jnp.zeros((m, n))).all()
    assert (cj.tgmm(lhs, oracle.normal(3, m, n), sizes) == jnp.zeros((groups, k, n))).all()
    assert (cj.bias_grad(lhs, sizes) == jnp.zeros((groups, k))).all()


@pytest.mark.four_devices
def test_shard_map_with_check_vma(no_handlers):
    lhs, rhs = operands()
    sizes = jnp.array(SIZES[0])
    mesh = jax.make_mesh((4,), ("e",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(x, w, sizes):
        product = lambda x: cj.gmm(x, w, sizes, group_offset=jax.lax.axis_index("e"))
        return jax.lax.psum(product(x) + jax.vmap(product)(x[None])[0], "e") / 2

    sharded = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("e"), P()), out_specs=P())
    oracle.close(jax.jit(sharded)(lhs, rhs, sizes), oracle.gmm(lhs, rhs, sizes))
    loss = lambda f: lambda a, b: jnp.sin(f(a, b, sizes)).sum()
    oracle.all_close(
        jax.jit(jax.grad(loss(sharded), (0, 1)))(lhs, rhs),
        oracle.on_host(jax.grad(loss(oracle.gmm), (0, 1)))(lhs, rhs),
    )


# ---- the lowering for a TPU, with nothing forced ----------------------------------------------


def product(lhs, rhs, sizes, offset, bias):
    return cj.gmm(lhs, rhs, sizes, bias=bias, group_offset=offset)


def total(*args):
    return product(*args).astype(jnp.float32).sum()


ON_TPU = {
    "forward": product,
    "gradients": jax.grad(total, (0, 1, 4)),
    "vmap": jax.vmap(product, (0, None, 0, None, None)),
    "gradients of vmap": jax.grad(
        lambda *a: jax.vmap(total, (0, None, 0, None, None))(*a).sum(), (0, 1, 4)
    ),
    "vmap of gradients": jax.vmap(jax.grad(total, (0, 1, 4)), (0, None, 0, None, None)),
    "megablox": lambda lhs, rhs, sizes, offset, bias: cj.megablox.gmm(
        lhs, rhs, sizes, group_offset=offset, existing_out=jnp.zeros((M, N), jnp.float32)
    ),
    "ragged_dot": lambda lhs, rhs, sizes, offset, bias: cj.ragged_dot(
        lhs, rhs, sizes, group_offset=offset
    ),
}


@pytest.mark.parametrize(
    "name, symbolic", [*((name, False) for name in ON_TPU), ("forward", True), ("vmap", True)]
)
def test_exports_for_a_tpu_without_a_call_of_cadre(name, symbolic):
    m = export.symbolic_shape("m")[0] if symbolic else M
    batch = (3,) if "vmap" in name else ()
    shapes = [
        ((*batch, m, K), jnp.bfloat16),
        ((2, K, N), jnp.bfloat16),
        ((*batch, GROUPS), jnp.int32),
        ((), jnp.int32),
        ((2, N), jnp.float32),
    ]
    args = [jax.ShapeDtypeStruct(*x) for x in shapes]
    exported = export.export(jax.jit(ON_TPU[name]), platforms=["tpu"])(*args)
    text = exported.mlir_module()
    assert "chlo.ragged_dot" in text and "@cadre_" not in text
    assert export.deserialize(exported.serialize()).platforms == ("tpu",)


def test_one_export_for_two_platforms_has_both_forms():
    lhs, rhs = operands("float32")
    sizes = jnp.array(SIZES[0])
    calls = [export.DisabledSafetyCheck.custom_call("cadre_gmm")]
    exported = export.export(jax.jit(cj.gmm), platforms=["cpu", "tpu"], disabled_checks=calls)(
        lhs, rhs, sizes
    )
    text = exported.mlir_module()
    assert "chlo.ragged_dot" in text and "@cadre_gmm" in text
    out = exported.call(lhs, rhs, sizes)
    oracle.close(out, oracle.gmm(lhs, rhs, sizes), 1e-5)
