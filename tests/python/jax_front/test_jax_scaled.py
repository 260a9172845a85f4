"""Products of ScaledArrays: against the f64 product of the values they stand for, under every transformation; and bad input."""

import functools

import cadre
import cadre.jax as cj
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
import scaled_oracle
from cadre.jax import ScaledArray
from jax import export
from jax.sharding import PartitionSpec as P
from scaled_oracle import E4M3, E5M2, MODES

SIZES = [3, 0, 129, 1, 33, 128, 127]
G, M, K, N = len(SIZES), 425, 140, 75  # four rows are tail
TYPES = pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)], ids=str)


def scaled_rows(rng, mode, dtype=E4M3, shape=(M, K)):
    data, scales, values = scaled_oracle.rows(rng.standard_normal(shape), mode, dtype)
    return ScaledArray(jnp.asarray(data), jnp.asarray(scales), mode), values


def scaled_weights(rng, mode, dtype=E4M3, shape=(G, N, K)):
    data, scales, values = scaled_oracle.weights(rng.standard_normal(shape), mode, dtype)
    return ScaledArray(jnp.asarray(data), jnp.asarray(scales), mode), values


def scaled_columns(rng, mode, dtype, width):
    data, scales, values = scaled_oracle.columns(rng.standard_normal((M, width)), SIZES, mode, dtype)
    return ScaledArray(jnp.asarray(data), jnp.asarray(scales), mode, columns=True), values


def close(out, expected, magnitude, k):
    oracle.assert_close(np.asarray(out), expected, magnitude, k)


@pytest.fixture
def rng():
    return np.random.default_rng(9)


@pytest.mark.parametrize("mode", MODES)
@TYPES
def test_gmm_multiplies_the_values(rng, mode, types):
    (lhs, lhs_values), (rhs, rhs_values) = scaled_rows(rng, mode, types[0]), scaled_weights(rng, mode, types[1])
    bias = rng.standard_normal((G, N)).astype("f4")
    product = jax.jit(functools.partial(cj.gmm, transpose_rhs=True, preferred_element_type="float32"))
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True)
    close(product(lhs, rhs, jnp.array(SIZES)), expected, magnitude, K)
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True, bias=bias)
    close(product(lhs, rhs, jnp.array(SIZES), bias=bias), expected, magnitude, K + 1)
    bf16 = cj.gmm(lhs, rhs, SIZES, transpose_rhs=True, bias=bias, fast_accumulation=True)
    assert bf16.dtype == jnp.bfloat16
    close(bf16, expected, magnitude, K + 1)


@pytest.mark.parametrize("mode", MODES)
def test_weights_may_be_stored_either_way(rng, mode):
    lhs, rhs = scaled_rows(rng, mode)[0], scaled_weights(rng, mode)[0]
    scales = rhs.scales.transpose(0, 2, 1) if rhs.scales.ndim == 3 else rhs.scales
    turned = ScaledArray(rhs.data.transpose(0, 2, 1), scales, mode)
    expected = cj.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    np.testing.assert_array_equal(cj.gmm(lhs, turned, SIZES), expected)
    np.testing.assert_array_equal(cj.ragged_dot(lhs, turned, jnp.array(SIZES)), expected)


@pytest.mark.parametrize("mode", MODES)
@TYPES
def test_tgmm_multiplies_column_wise_copies(rng, mode, types):
    (lhs, lhs_values), (rhs, rhs_values) = (
        scaled_columns(rng, mode, dtype, width) for dtype, width in zip(types, (K, N))
    )
    expected, magnitude = oracle.tgmm(lhs_values, rhs_values, SIZES)
    product = jax.jit(functools.partial(cj.tgmm, preferred_element_type="float32"))
    out = product(lhs, rhs, jnp.array(SIZES))
    close(out, expected, magnitude, max(SIZES))
    added = product(lhs, rhs, jnp.array(SIZES), existing_out=out)
    close(added, 2 * expected, 2 * magnitude, max(SIZES) + 1)


def test_tgmm_takes_rows_of_one_scale(rng):
    (lhs, lhs_values), (rhs, rhs_values) = scaled_rows(rng, "tensor"), scaled_rows(rng, "tensor", E5M2, (M, N))
    expected, magnitude = oracle.tgmm(lhs_values, rhs_values, SIZES)
    close(cj.tgmm(lhs, rhs, SIZES, preferred_element_type="float32"), expected, magnitude, max(SIZES))


@pytest.mark.parametrize("mode", MODES)
def test_local_groups_and_existing_rows(rng, mode):
    lhs, lhs_values = scaled_rows(rng, mode)
    rhs, rhs_values = scaled_weights(rng, mode, shape=(3, N, K))
    first = 2
    kept = np.full((M, N), 7, np.float32)
    out = jax.jit(functools.partial(cj.gmm, transpose_rhs=True, preferred_element_type="float32"))(
        lhs, rhs, jnp.array(SIZES), group_offset=jnp.array(first), existing_out=kept
    )
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, SIZES, transpose_rhs=True, group_offset=first)
    begin, end = sum(SIZES[:first]), sum(SIZES[: first + 3])
    close(out[begin:end], expected[begin:end], magnitude[begin:end], K)
    assert (np.delete(out, np.s_[begin:end], axis=0) == 7).all()
    copies = [scaled_columns(rng, mode, E4M3, width) for width in (K, N)]
    dw = cj.tgmm(
        copies[0][0], copies[1][0], SIZES, group_offset=first, num_groups=3, preferred_element_type="float32"
    )
    close(dw, *oracle.tgmm(copies[0][1], copies[1][1], SIZES, num_groups=3, group_offset=first), max(SIZES))


@pytest.mark.parametrize("mode", MODES)
def test_vmap_shares_the_weights(rng, mode):
    x, weights = rng.standard_normal((2, M, K)).astype("f4"), scaled_weights(rng, mode)[0]
    sizes = np.array([SIZES, SIZES[::-1]])
    product = lambda x, s: cj.gmm(cj.quantize(x, mode), weights, s, transpose_rhs=True)
    out = jax.jit(jax.vmap(product))(x, jnp.array(sizes))
    for i in range(2):
        np.testing.assert_array_equal(out[i], product(x[i], sizes[i]))


@pytest.mark.parametrize("mode", MODES)
def test_export_with_symbolic_rows(rng, mode):
    m = export.symbolic_shape("m")[0]
    calls = [export.DisabledSafetyCheck.custom_call(f"cadre_{op}") for op in ("quantize", "scaled_gmm", "scaled_tgmm")]

    def both(x, w, sizes):
        rows, columns = cj.quantize(x, mode, sizes, columns=True)
        return cj.gmm(rows, w, sizes, transpose_rhs=True), cj.tgmm(columns, columns, sizes)

    weights, x, sizes = scaled_weights(rng, mode)[0], rng.standard_normal((M, K)).astype("f4"), jnp.array(SIZES)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (weights, sizes))
    program = export.export(jax.jit(both), disabled_checks=calls)(jax.ShapeDtypeStruct((m, K), "float32"), *shapes)
    loaded = export.deserialize(program.serialize())
    for ours, expected in zip(loaded.call(x, weights, sizes), both(x, weights, sizes), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.four_devices
def test_each_device_of_a_mesh_multiplies_its_own_experts(rng):
    mesh = jax.make_mesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    (lhs, lhs_values), (rhs, rhs_values) = scaled_rows(rng, "row"), scaled_weights(rng, "row", shape=(4, N, K))
    sizes = [100, 0, 129, 33]

    def local(lhs, rhs, sizes):
        offset = jax.lax.axis_index("expert") * 2
        out = cj.gmm(lhs, rhs, sizes, True, group_offset=offset, preferred_element_type="float32")
        return jax.lax.psum(out, "expert")

    program = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("expert"), P()), out_specs=P())
    expected, magnitude = oracle.gmm(lhs_values, rhs_values, sizes, transpose_rhs=True)
    close(jax.jit(program)(lhs, rhs, jnp.array(sizes)), expected, magnitude, K + 1)


def test_ragged_dot_general_finds_both_products(rng):
    lhs, rhs = scaled_rows(rng, "block_128")[0], scaled_weights(rng, "block_128")[0]
    transposed = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))
    out = cj.ragged_dot_general(lhs, rhs, jnp.array(SIZES), transposed)
    np.testing.assert_array_equal(out, cj.gmm(lhs, rhs, SIZES, transpose_rhs=True))
    inner = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    x, dy = scaled_rows(rng, "tensor")[0], scaled_rows(rng, "tensor", shape=(M, N))[0]
    out = cj.ragged_dot_general(x, dy, jnp.array(SIZES), inner, preferred_element_type="float32")
    np.testing.assert_array_equal(out, cj.tgmm(x, dy, SIZES, preferred_element_type="float32"))
    dense = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), (0,), ())
    with pytest.raises(NotImplementedError, match="ragged_dot_general: ragged_dot_dimension_numbers = .*, expected"):
        cj.ragged_dot_general(rhs, rhs, jnp.array(SIZES), dense)


def test_ragged_dot_activates_before_it_rounds(rng):
    lhs, rhs = scaled_rows(rng, "row")[0], scaled_weights(rng, "row")[0]
    turned = ScaledArray(rhs.data.transpose(0, 2, 1), rhs.scales, "row")
    out = cj.ragged_dot(lhs, turned, jnp.array(SIZES), activation=jax.nn.silu)
    plain = cj.gmm(lhs, rhs, SIZES, True, preferred_element_type="float32")
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out, jax.nn.silu(plain).astype(jnp.bfloat16))


def _with(array, **changes):
    given = {name: getattr(array, name) for name in ("data", "scales", "mode", "columns")} | changes
    return ScaledArray(given["data"], given["scales"], given["mode"], columns=given["columns"])


BAD_INPUT = {
    "no scales": (
        lambda a, b: (a.data, b),
        TypeError,
        "gmm: lhs is .*, expected a ScaledArray because the other operand is one",
    ),
    "scales of another shape": (
        lambda a, b: (_with(a, scales=a.scales[:, :1]), b),
        ValueError,
        r"gmm: lhs.scales.shape = \[425, 1\], expected \[425, 2\] because lhs.scales.mode = block_128",
    ),
    "scales of another type": (
        lambda a, b: (a, _with(b, scales=b.scales.astype("f8"))),
        TypeError,
        "gmm: rhs.scales.dtype = float64, expected float32 or float8_e8m0fnu",
    ),
    "mx scales in f32": (
        lambda a, b: (_with(a, mode="mx"), b),
        TypeError,
        "gmm: lhs.scales.dtype = f32, expected e8m0",
    ),
    "mixed modes": (
        lambda a, b: (a, _with(b, scales=b.scales[:, 0, 0], mode="tensor")),
        ValueError,
        "gmm: rhs.scales.mode = tensor, expected block_128 because lhs.scales.mode = block_128",
    ),
    "two gradients": (
        lambda a, b: (_with(a, data=a.data.astype(E5M2)), _with(b, data=b.data.astype(E5M2))),
        TypeError,
        "gmm: rhs.dtype = e5m2, expected e4m3 because lhs.dtype = e5m2",
    ),
    "data of f32": (
        lambda a, b: (_with(a, data=a.data.astype("f4")), b),
        TypeError,
        "gmm: lhs.data.dtype = float32, expected one of float8_e4m3fn, float8_e5m2",
    ),
    "a column-wise copy": (
        lambda a, b: (_with(a, columns=True), b),
        ValueError,
        "gmm: lhs.columns = True, expected False: gmm takes rows, a column-wise copy is for tgmm",
    ),
    "k": (lambda a, b: (_with(a, data=a.data[:, 1:]), b), ValueError, "gmm: rhs.k = 140, expected lhs.k = 139"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_faults_are_named_while_the_call_is_traced(rng, name):
    change, kind, message = BAD_INPUT[name]
    lhs, rhs = change(scaled_rows(rng, "block_128")[0], scaled_weights(rng, "block_128")[0])
    with pytest.raises(kind, match=message):
        jax.eval_shape(lambda: cj.gmm(lhs, rhs, SIZES, transpose_rhs=True))


def test_an_output_in_fp8_or_f64_is_refused(rng):
    lhs, rhs = scaled_rows(rng, "row")[0], scaled_weights(rng, "row")[0]
    for dtype, name in ((E4M3, "float8_e4m3fn"), (np.float64, "float64")):
        with pytest.raises(TypeError, match=f"gmm: preferred_element_type = {name}, expected one of float32, bfloat16, float16"):
            cj.gmm(lhs, rhs, SIZES, True, preferred_element_type=dtype)


def test_tgmm_asks_for_the_column_wise_copy(rng):
    lhs, rhs = scaled_rows(rng, "row")[0], scaled_rows(rng, "row", shape=(M, N))[0]
    with pytest.raises(ValueError, match="tgmm: lhs.columns = false, expected true, the column-wise copy"):
        cj.tgmm(lhs, rhs, SIZES)


def test_a_derivative_of_a_product_is_refused_by_name(rng):
    lhs, rhs = scaled_rows(rng, "row")[0], scaled_weights(rng, "row")[0]
    loss = lambda scales: cj.gmm(_with(lhs, scales=scales), rhs, SIZES, True).astype("f4").sum()
    with pytest.raises(NotImplementedError, match="gmm: a derivative through FP8 data is asked for"):
        jax.grad(loss)(lhs.scales)


def test_numpys_own_scaled_tensor_is_taken(rng):
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((M, K), (G, N, K)))
    lhs, rhs = cadre.quantize(x, "mx"), cadre.quantize(w, "mx")
    out = cj.gmm(lhs, rhs, SIZES, transpose_rhs=True)
    np.testing.assert_array_equal(out, cadre.gmm(lhs, rhs, SIZES, transpose_rhs=True))
