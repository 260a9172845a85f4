"""quantize, dequantize and amax of the JAX front: the bits of the NumPy front, which are compared with ml_dtypes, under every
transformation; and bad input."""

import functools

import cadre
import cadre.jax as cj
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from cadre.jax import ScaledArray
from jax import export
from jax.sharding import PartitionSpec as P

E4M3, E5M2, E8M0 = jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu
MODES = ("tensor", "row", "block_128", "mx")
SIZES = [128, 0, 1, 127, 129]
ROWS, K = 400, 160  # 15 rows are tail
CALLS = [export.DisabledSafetyCheck.custom_call(f"cadre_{op}") for op in ("quantize", "dequantize", "amax")]


def _random(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same_bits(got, expected):
    """Of arrays or of ScaledArrays, NumPy's or JAX's."""
    pairs = [(got, expected)]
    if isinstance(expected, cadre.ScaledTensor):
        assert isinstance(got, ScaledArray)
        assert (got.mode, got.columns) == (expected.mode, expected.columns)
        pairs = [(got.data, expected.data), (got.scales, expected.scales)]
    for ours, theirs in pairs:
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16, np.float16], ids=["f32", "bf16", "f16"])
def test_rows_and_columns_have_numpys_bits(mode, dtype, source):
    x = _random(ROWS, K, dtype=source)
    made = jax.jit(lambda x, sizes: cj.quantize(x, mode, sizes, dtype=dtype, columns=True))(x, jnp.array(SIZES))
    for ours, theirs in zip(made, cadre.quantize(x, mode, SIZES, dtype=dtype, columns=True), strict=True):
        same_bits(ours, theirs)
        rows = {"num_rows": ROWS} if ours.columns else {}
        back = jax.jit(functools.partial(cj.dequantize, out_dtype="float32", **rows))(ours, jnp.array(SIZES))
        same_bits(back, cadre.dequantize(theirs, SIZES, out_dtype="f4", **rows))
    same_bits(cj.amax(x, mode, SIZES), cadre.amax(x, mode, SIZES))


@pytest.mark.parametrize("mode", MODES)
def test_weights_have_numpys_bits(mode):
    w = _random(3, 130, 200)
    for ours, theirs in zip(cj.quantize(w, mode, columns=True), cadre.quantize(w, mode, columns=True), strict=True):
        same_bits(ours, theirs)
        same_bits(cj.dequantize(ours), cadre.dequantize(theirs))
    same_bits(cj.amax(w, mode), cadre.amax(w, mode))


@pytest.mark.parametrize(
    "options",
    [{"power_of_two": True}, {"amax_floor": 100.0}, {"scale_dtype": ml_dtypes.float8_e8m0fnu}, {"rows": False, "columns": True}],
    ids=lambda options: "-".join(options),
)
def test_options_have_numpys_bits(options):
    x = _random(70, K)
    x[3] = 0
    x[5, 7], x[6, 8] = np.inf, np.nan
    same_bits(cj.quantize(x, "block_128", **options), cadre.quantize(x, "block_128", **options))


def test_other_sizes_never_compile_again():
    x = _random(300, 64)
    quantise = jax.jit(lambda x, sizes: cj.quantize(x, "block_128", sizes, rows=False, columns=True))
    for sizes in ([100, 100, 100], [0, 0, 300], [1, 0, 2]):
        same_bits(quantise(x, jnp.array(sizes)), cadre.quantize(x, "block_128", sizes, rows=False, columns=True))
    assert quantise._cache_size() == 1


@pytest.mark.parametrize("mode", MODES)
def test_vmap_of_rows_and_of_sizes(mode):
    x, sizes = _random(2, 90, 40), np.array([[30, 60], [0, 33]])
    both = jax.vmap(lambda x, s: cj.quantize(x, mode, s, columns=True))(x, jnp.array(sizes))
    for i in range(2):
        for ours, theirs in zip(both, cadre.quantize(x[i], mode, sizes[i], columns=True), strict=True):
            same_bits(ScaledArray(ours.data[i], ours.scales[i], mode, columns=ours.columns), theirs)
    shared = jax.vmap(lambda s: cj.quantize(x[0], mode, s, rows=False, columns=True))(jnp.array(sizes))
    theirs = cadre.quantize(x[0], mode, sizes[1], rows=False, columns=True)
    same_bits(ScaledArray(shared.data[1], shared.scales[1], mode, columns=True), theirs)


def test_a_scaled_array_goes_through_jit_scan_and_tree_map():
    x = _random(4, 6, 32)
    stacked = jax.vmap(lambda x: cj.quantize(x, "row"))(x)
    _, back = jax.lax.scan(lambda carry, q: (carry, cj.dequantize(q, out_dtype="float32")), 0, stacked)
    np.testing.assert_array_equal(back, np.stack([cadre.dequantize(cadre.quantize(e, "row"), out_dtype="f4") for e in x]))
    leaves, structure = jax.tree.flatten(cj.quantize(x[0], "tensor", rows=False, columns=True))
    again = jax.tree.unflatten(structure, leaves)
    assert again.columns and again.mode == "tensor" and repr(again) == "ScaledArray(shape=(32, 32), mode='tensor', columns=True)"
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(again)]
    assert paths == [".data", ".scales"]


@pytest.mark.parametrize("mode", MODES)
def test_export_with_symbolic_rows(mode):
    m = export.symbolic_shape("m")[0]
    shapes = jax.ShapeDtypeStruct((m, 40), "float32"), jax.ShapeDtypeStruct((2,), "int32")
    both = jax.jit(lambda x, s: cj.quantize(x, mode, s, columns=True))
    stored = export.export(both, disabled_checks=CALLS)(*shapes).serialize()
    loaded, x, sizes = export.deserialize(stored), _random(70, 40), np.array([3, 66], np.int32)
    rows, columns = loaded.call(x, sizes)
    theirs, copy = cadre.quantize(x, mode, sizes, columns=True)
    same_bits(rows, theirs)
    used = copy.data.shape[1]
    np.testing.assert_array_equal(np.asarray(columns.data).view("u1")[:, :used], copy.data.view("u1"))


@pytest.mark.four_devices
def test_each_device_of_a_mesh_quantises_its_own_rows():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = _random(4 * 32, 64)
    quantise = jax.shard_map(lambda x: cj.quantize(x, "row"), mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    same_bits(jax.jit(quantise)(x), cadre.quantize(x, "row"))


def test_a_derivative_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="quantize: a derivative through FP8 data is asked for"):
        jax.grad(lambda x: cj.dequantize(cj.quantize(x, "row"), out_dtype="float32").sum())(jnp.ones((4, 8)).astype("f4"))


def test_other_platforms_are_refused_by_name():
    call = jax.jit(lambda x: cj.quantize(x, "row"))
    with pytest.raises(NotImplementedError, match="quantize: the platform is tpu, expected cpu or cuda"):
        export.export(call, platforms=["tpu"], disabled_checks=CALLS)(jax.ShapeDtypeStruct((4, 8), "float32"))


X = np.ones((8, 5), np.float32)
BAD = {
    "f64": (lambda: cj.quantize(X.astype(float), "row"), TypeError, "quantize: x.dtype = float64, expected one of float32"),
    "rank": (lambda: cj.quantize(X[0], "row"), ValueError, r"quantize: x.shape = \(5,\), expected \[m, k\] or \[g, n, k\]"),
    "mode": (lambda: cj.quantize(X, "block"), ValueError, "quantize: mode = 'block', expected 'tensor' or 'row'"),
    "dtype": (lambda: cj.quantize(X, "row", dtype="f4"), TypeError, "quantize: dtype = float32, expected float8_e4m3fn or"),
    "nothing": (lambda: cj.quantize(X, "row", rows=False), ValueError, "quantize: rows = False, expected True, or columns = True"),
    "flag": (lambda: cj.quantize(X, "row", power_of_two=1), TypeError, "quantize: power_of_two is an int, expected a bool"),
    "scales of a mode": (
        lambda: cj.quantize(X, "row", scale_dtype=E8M0),
        TypeError,
        "quantize: rows.scales.dtype = e8m0, expected f32",
    ),
    "sizes of weights": (lambda: cj.quantize(X[None], "row", [8]), ValueError, "quantize: group_sizes = given, expected none"),
    "floor": (lambda: cj.quantize(X, "row", amax_floor=-1), ValueError, "quantize: amax_floor = -1, expected 0"),
    "no ScaledArray": (lambda: cj.dequantize(X), TypeError, "dequantize: x is a ndarray, expected a ScaledArray"),
    "copy without its rows": (
        lambda: cj.dequantize(cj.quantize(X, "row", rows=False, columns=True)),
        ValueError,
        "dequantize: num_rows = None, expected the number of rows",
    ),
    "scales of another shape": (
        lambda: cj.dequantize(ScaledArray(jnp.ones((8, 5), E4M3), jnp.ones(7, "f4"), "row")),
        ValueError,
        r"dequantize: x.scales.shape = \[7\], expected \[8\] because x.scales.mode = row",
    ),
    "result": (lambda: cj.dequantize(cj.quantize(X, "row"), out_dtype=int), TypeError, "dequantize: out_dtype = int64, expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_while_it_is_traced(case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        jax.eval_shape(call)


@pytest.mark.cpu
def test_bad_sizes_are_named_when_a_cpu_runs_them():
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="sum of group_sizes"):
        jax.block_until_ready(cj.quantize(X, "row", [3, 9]))
