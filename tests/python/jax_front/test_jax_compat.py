"""megablox, ejKernel and tops forms: signatures, f32 default, existing_out and its gradients."""

import inspect
import typing

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
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
F32 = {"preferred_element_type": jnp.float32}
TILING = {"tiling": (128, 128, 128)}
TRANSPOSE = {"transpose_rhs": False, "interpret": False}
# What megablox takes, in its order, with its defaults.
MEGABLOX = {
    megablox.gmm: {
        **OPERANDS,
        **F32,
        **TILING,
        "group_offset": None,
        "existing_out": None,
        **TRANSPOSE,
    },
    megablox.tgmm: {
        **OPERANDS,
        **F32,
        **TILING,
        "group_offset": None,
        "num_actual_groups": None,
        "existing_out": None,
        "interpret": False,
    },
}
# ejKernel's two orders: that of its registered kernels (its Pallas functions of the first version, and the interfaces of both
# versions), and that of the Pallas functions of its second version.
EJKERNEL = {
    ejkernel.grouped_matmul: [
        {
            **OPERANDS,
            **F32,
            **TILING,
            "group_offset": None,
            "existing_out": None,
            **TRANSPOSE,
            "precision": jax.lax.Precision.DEFAULT,
        },
        {
            **OPERANDS,
            "preferred_element_type": REQUIRED,
            **TILING,
            "input_buffer_count": 2,
            "group_offset": None,
            **TRANSPOSE,
        },
    ],
    ejkernel.transposed_grouped_matmul: [
        {
            **OPERANDS,
            **F32,
            **TILING,
            "group_offset": None,
            "num_actual_groups": None,
            "existing_out": None,
            "interpret": False,
        },
        {
            **OPERANDS,
            "preferred_element_type": REQUIRED,
            **TILING,
            "input_buffer_count": 2,
            "group_offset": None,
            "num_actual_groups": None,
            "interpret": False,
        },
    ],
}


def positional(function):
    parameters = inspect.signature(function).parameters.values()
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return [(p.name, p.default) for p in parameters]


@pytest.mark.parametrize("op", MEGABLOX, ids=lambda op: op.__name__)
def test_signatures_are_megablox_written_ones(op):
    assert positional(op) == list(MEGABLOX[op].items())


@pytest.mark.parametrize("op", EJKERNEL, ids=lambda op: op.__name__)
def test_both_signatures_of_ejkernel_are_the_written_ones(op):
    overloads = typing.get_overloads(op)
    assert [positional(f) for f in overloads] == [list(x.items()) for x in EJKERNEL[op]]


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


EXISTING = oracle.normal(6, M, N, dtype=jnp.float32)


@pytest.mark.parametrize("offset", [None, jnp.array(1), jnp.array([1]), np.array(1)], ids=str)
def test_an_array_or_none_as_sixth_argument_of_ejkernel_is_the_offset(offset):
    lhs, rhs = operands()
    first = 0 if offset is None else 1
    local = oracle.membership(M, SIZES, first, 2).any(1)[:, None]
    expected = jnp.where(
        local, oracle.gmm(lhs, rhs[first : first + 2], SIZES, offset=first), EXISTING
    )
    front = lhs, rhs[first : first + 2], SIZES, jnp.float32, None, offset
    out = ejkernel.grouped_matmul(*front, EXISTING, False, False, jax.lax.Precision.DEFAULT)
    oracle.close(out, expected, 1e-5)
    traced = jax.jit(lambda e: ejkernel.grouped_matmul(*front, e))
    oracle.close(traced(EXISTING), expected, 1e-5)

    grad = oracle.normal(3, M, N, dtype=jnp.float32)
    added = oracle.normal(4, 2, K, N, dtype=jnp.float32)
    weights = ejkernel.transposed_grouped_matmul(
        lhs.T, grad, SIZES, jnp.float32, None, offset, 2, added, False
    )
    oracle.close(weights, oracle.tgmm(lhs, grad, SIZES, first, 2) + added, 1e-5)


def test_an_int_as_sixth_argument_of_ejkernel_counts_buffers():
    lhs, rhs = operands()
    stored, offset = jnp.swapaxes(rhs[1:3], 1, 2), jnp.array(1)
    out = ejkernel.grouped_matmul(
        lhs, stored, SIZES, jnp.float32, (128, 128, 128), 3, offset, True, False
    )
    oracle.close(out, oracle.gmm(lhs, rhs[1:3], SIZES, offset=1), 1e-5)
    grad = oracle.normal(3, M, N, dtype=jnp.float32)
    weights = ejkernel.transposed_grouped_matmul(
        lhs.T, grad, SIZES, jnp.float32, (128, 128, 128), 3, offset, 2, False
    )
    oracle.close(weights, oracle.tgmm(lhs, grad, SIZES, 1, 2), 1e-5)


def test_ejkernel_takes_every_name_of_either_order():
    lhs, rhs = operands()
    out = ejkernel.grouped_matmul(
        lhs, rhs[1:3], SIZES, input_buffer_count=2, group_offset=jnp.array(1), existing_out=EXISTING
    )
    local = oracle.membership(M, SIZES, 1, 2).any(1)[:, None]
    expected = jnp.where(local, oracle.gmm(lhs, rhs[1:3], SIZES, offset=1), EXISTING)
    oracle.close(out, expected, 1e-5)


@pytest.mark.parametrize(
    "others, options, message",
    [
        ((True,), {}, "the sixth argument is a bool, expected an int"),
        ((2.0,), {}, "the sixth argument is a float, expected an int"),
        ((np.int64(2),), {}, "the sixth argument is a int64, expected an int"),
        ((0,), {}, "input_buffer_count = 0, expected 1 or more"),
        ((2, None, False, False, None), {}, "10 positional arguments, expected at most 9"),
        ((None,) * 6, {}, "11 positional arguments, expected at most 10"),
        ((2, None), {"group_offset": None}, "group_offset is given twice"),
        ((), {"group_offsets": None}, "there is no argument group_offsets"),
    ],
)
def test_what_ejkernel_has_not_is_an_error(others, options, message):
    lhs, rhs = operands()
    with pytest.raises((TypeError, ValueError), match=f"^grouped_matmul: {message}"):
        ejkernel.grouped_matmul(lhs, rhs, SIZES, jnp.float32, (128, 128, 128), *others, **options)


def test_positional_order_of_tops():
    lhs, rhs = operands()
    stored = jnp.swapaxes(rhs, 1, 2)
    oracle.close(cj.gmm(lhs, stored, SIZES, True), oracle.gmm(lhs, rhs, SIZES), 1e-5)
    oracle.close(cj.gmm(lhs, rhs, SIZES, False), oracle.gmm(lhs, rhs, SIZES), 1e-5)
    grad = oracle.normal(3, M, N, dtype=jnp.float32)
    oracle.close(cj.tgmm(lhs, grad, SIZES), oracle.tgmm(lhs, grad, SIZES), 1e-5)


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
    # ejKernel takes None for its default.
    none = [None] if op in (TILED["gmm"], TILED["tgmm"]) else []
    for tiling in (*none, lambda m, k, n: None):
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
