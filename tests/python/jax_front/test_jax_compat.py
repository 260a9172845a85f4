"""megablox and ejKernel forms: signatures, f32 default, existing_out and its gradients."""

import inspect

import jax
import jax.numpy as jnp
import jax_oracle as oracle
import pytest
from cadre.jax import ejkernel, megablox

M, K, N = 12, 5, 3
SIZES = jnp.array([3, 0, 4, 2], jnp.int32)


def operands(dtype=jnp.float32):
    return oracle.normal(1, M, K, dtype=dtype), oracle.normal(2, 4, K, N, dtype=dtype)


def test_signatures_are_megablox_own():
    theirs = pytest.importorskip("jax.experimental.pallas.ops.tpu.megablox.gmm")
    for name in ("gmm", "tgmm"):
        ours = inspect.signature(getattr(megablox, name)).parameters
        expected = inspect.signature(inspect.unwrap(getattr(theirs, name))).parameters
        assert list(ours) == list(expected)
        assert [p.default for p in ours.values()] == [p.default for p in expected.values()]


REQUIRED = inspect.Parameter.empty
OPERANDS = {"lhs": REQUIRED, "rhs": REQUIRED, "group_sizes": REQUIRED}
# What may be given by position, in this order, with its default. ejKernel's is that of its second TPU kernel
# (grouped_matmulv2), where preferred_element_type has no default.
POSITIONAL = {
    megablox.gmm: {
        **OPERANDS,
        "preferred_element_type": jnp.float32,
        "tiling": (128, 128, 128),
        "group_offset": None,
        "existing_out": None,
        "transpose_rhs": False,
        "interpret": False,
    },
    megablox.tgmm: {
        **OPERANDS,
        "preferred_element_type": jnp.float32,
        "tiling": (128, 128, 128),
        "group_offset": None,
        "num_actual_groups": None,
        "existing_out": None,
        "interpret": False,
    },
    ejkernel.grouped_matmul: {
        **OPERANDS,
        "preferred_element_type": jnp.float32,
        "tiling": (128, 128, 128),
        "input_buffer_count": 2,
        "group_offset": None,
        "transpose_rhs": False,
        "interpret": False,
    },
    ejkernel.transposed_grouped_matmul: {
        **OPERANDS,
        "preferred_element_type": jnp.float32,
        "tiling": (128, 128, 128),
        "input_buffer_count": 2,
        "group_offset": None,
        "num_actual_groups": None,
        "interpret": False,
    },
}
# By keyword alone: what ejKernel's first kernel (grouped_matmul) has and its second one hasn't.
KEYWORD_ONLY = {
    megablox.gmm: {},
    megablox.tgmm: {},
    ejkernel.grouped_matmul: {"existing_out": None, "precision": None},
    ejkernel.transposed_grouped_matmul: {"existing_out": None},
}


@pytest.mark.parametrize("op", POSITIONAL, ids=lambda op: op.__name__)
def test_signatures_are_the_written_ones(op):
    parameters = inspect.signature(op).parameters.values()
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == list(POSITIONAL[op].items())
    others = [(p.name, p.default) for p in parameters if p.kind is not p.POSITIONAL_OR_KEYWORD]
    assert others == list(KEYWORD_ONLY[op].items())
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)


@pytest.mark.parametrize("precision, code", [(None, 0), ("highest", 0), ("TF32_TF32_F32", 1)])
def test_precision_of_ejkernel_reaches_the_product(precision, code):
    lhs, rhs = operands()
    product = lambda a, b: ejkernel.grouped_matmul(a, b, SIZES, precision=precision)
    (call,) = [e for e in jax.make_jaxpr(product)(lhs, rhs).eqns if e.primitive.name == "cadre_gmm"]
    assert call.params["precision"] == code


def test_results_are_f32_unless_asked_otherwise():
    lhs, rhs = operands(jnp.bfloat16)
    assert megablox.gmm(lhs, rhs, SIZES).dtype == jnp.float32
    assert megablox.tgmm(lhs.T, lhs, SIZES).dtype == jnp.float32
    assert ejkernel.grouped_matmul(lhs, rhs, SIZES, None).dtype == jnp.float32
    assert megablox.gmm(lhs, rhs, SIZES, jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_gmm_and_tgmm_values(transpose_rhs):
    lhs, rhs = operands()
    stored = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    oracle.close(
        megablox.gmm(lhs, stored, SIZES, transpose_rhs=transpose_rhs),
        oracle.gmm(lhs, rhs, SIZES),
        1e-5,
    )
    grad = oracle.normal(3, M, N, dtype=jnp.float32)
    oracle.close(megablox.tgmm(lhs.T, grad, SIZES), oracle.tgmm(lhs, grad, SIZES), 1e-5)


def test_positional_order_of_ejkernel():
    lhs, rhs = operands()
    out = ejkernel.grouped_matmul(
        lhs, rhs[1:3], SIZES, jnp.float32, (128, 128, 128), 2, jnp.array(1), False, False
    )
    oracle.close(out, oracle.gmm(lhs, rhs[1:3], SIZES, offset=1), 1e-5)
    grad = oracle.normal(3, M, N, dtype=jnp.float32)
    weights = ejkernel.transposed_grouped_matmul(
        lhs.T, grad, SIZES, jnp.float32, (128, 128, 128), 2, jnp.array(1), 2
    )
    oracle.close(weights, oracle.tgmm(lhs, grad, SIZES, 1, 2), 1e-5)


def test_fewer_weights_than_sizes_start_at_group_zero():
    lhs, rhs = operands()
    oracle.close(megablox.gmm(lhs, rhs[:2], SIZES), oracle.gmm(lhs, rhs[:2], SIZES, offset=0), 1e-5)
    assert megablox.tgmm(lhs.T, lhs, SIZES, num_actual_groups=2).shape == (2, K, K)


TILED = {
    "gmm": lambda lhs, rhs, **options: megablox.gmm(lhs, rhs, SIZES, **options),
    "grouped_matmul": lambda lhs, rhs, **options: ejkernel.grouped_matmul(
        lhs, rhs, SIZES, **options
    ),
    "tgmm": lambda lhs, rhs, **options: megablox.tgmm(lhs.T, lhs[:, :N], SIZES, **options),
    "transposed_grouped_matmul": lambda lhs, rhs, **options: ejkernel.transposed_grouped_matmul(
        lhs.T, lhs[:, :N], SIZES, **options
    ),
}


@pytest.mark.parametrize("op", TILED.values(), ids=TILED)
def test_a_tiling_that_gives_none_is_an_error(op):
    lhs, rhs = operands()
    seen = []
    op(lhs, rhs, tiling=lambda m, k, n: seen.append((m, k, n)) or (128, 128, 128))
    assert seen == [(M, K, N)]
    for tiling in (None, lambda m, k, n: None):
        with pytest.raises(ValueError, match="tiling"):
            op(lhs, rhs, tiling=tiling)


def chained(lhs, rhs, existing):
    """Two shards of two groups each, the second writing over what the first left."""
    first = megablox.gmm(
        lhs, rhs[:2], SIZES, jnp.float64, group_offset=jnp.array(0), existing_out=existing
    )
    return megablox.gmm(
        lhs, rhs[2:], SIZES, jnp.float64, group_offset=jnp.array(2), existing_out=first
    )


def expected_chain(lhs, rhs, existing):
    local = oracle.membership(M, SIZES).any(1)[:, None]
    return jnp.where(local, oracle.gmm(lhs, rhs, SIZES), existing)


def test_existing_out_is_kept_outside_the_local_rows():
    lhs, rhs = operands(jnp.float64)
    existing = oracle.normal(4, M, N)
    oracle.close(chained(lhs, rhs, existing), expected_chain(lhs, rhs, existing))


def test_cotangent_of_existing_out_is_zero_in_local_rows():
    lhs, rhs = operands(jnp.float64)
    existing = oracle.normal(4, M, N)
    loss = lambda f: lambda *a: jnp.sin(f(*a)).sum()
    gradients = jax.grad(loss(chained), (0, 1, 2))(lhs, rhs, existing)
    expected = oracle.on_host(jax.grad(loss(expected_chain), (0, 1, 2)))(lhs, rhs, existing)
    oracle.all_close(gradients, expected)
    assert (gradients[2][:9] == 0).all() and (gradients[2][9:] != 0).all()


def test_tgmm_adds_to_existing_out_and_passes_its_cotangent():
    lhs, grad = oracle.normal(1, M, K), oracle.normal(3, M, N)
    existing = oracle.normal(4, 4, K, N)
    ours = lambda a, b, e: jnp.sin(megablox.tgmm(a.T, b, SIZES, jnp.float64, existing_out=e)).sum()
    expected = lambda a, b, e: jnp.sin(oracle.tgmm(a, b, SIZES) + e).sum()
    args = (lhs, grad, existing)
    bars = jax.grad(ours, (0, 1, 2))(*args)
    oracle.all_close(bars, oracle.on_host(jax.grad(expected, (0, 1, 2)))(*args))


def test_sums_with_existing_out_are_rounded_once():
    lhs = oracle.normal(1, M, K, dtype=jnp.bfloat16)
    existing = oracle.normal(2, 4, K, K, dtype=jnp.bfloat16)
    out = megablox.tgmm(lhs.T, lhs, SIZES, jnp.bfloat16, existing_out=existing)
    product = megablox.tgmm(lhs.T, lhs, SIZES, jnp.float32)
    assert out.dtype == jnp.bfloat16
    assert (out == (product + existing.astype(jnp.float32)).astype(jnp.bfloat16)).all()


def test_existing_out_of_another_type_is_an_error():
    lhs, rhs = operands()
    with pytest.raises(
        ValueError, match="existing_out.dtype = bfloat16, expected preferred_element_type = float32"
    ):
        megablox.gmm(lhs, rhs, SIZES, existing_out=jnp.zeros((M, N), jnp.bfloat16))
