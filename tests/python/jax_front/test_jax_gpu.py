"""On a CUDA device: values, gradients, replays of command buffers with other sizes, and reports of bad sizes; the layer, FP8
codes and products of them against the CPU's."""

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.gpu

M, K, N = 300, 136, 72
SIZES = [[64, 0, 65, 1, 127, 43], [0] * 6, [300, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 299], [50] * 6]


def operands(dtype):
    return oracle.normal(1, M, K, dtype=dtype), oracle.normal(2, 6, K, N, dtype=dtype)


def wide(*arrays):
    return [x.astype(jnp.float64) for x in arrays]


@pytest.mark.parametrize(
    "dtype, tolerance", [("bfloat16", 2.0**-7), ("float16", 2.0**-9), ("float32", 1e-5)]
)
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_values_and_gradients_for_changing_sizes(dtype, tolerance, transpose_rhs):
    lhs, rhs = operands(dtype)
    stored = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    product = jax.jit(lambda a, b, s: cj.gmm(a, b, s, transpose_rhs=transpose_rhs))
    gradient = jax.jit(
        jax.grad(lambda a, b, s: (product(a, b, s).astype(jnp.float32) ** 2).sum() / 2, (0, 1))
    )
    for sizes in SIZES:  # one program, so its command buffer is replayed with other sizes
        sizes = jnp.array(sizes, jnp.int32)
        expected = oracle.gmm(*wide(lhs, rhs), sizes)
        out = product(lhs, stored, sizes)
        oracle.close(out, expected, tolerance)
        lhs_bar, rhs_bar = gradient(lhs, stored, sizes)
        dout = out.astype(jnp.float64)
        oracle.close(lhs_bar, oracle.gmm(dout, wide(rhs)[0], sizes, transpose_rhs=True), tolerance)
        weights = oracle.tgmm(*wide(lhs), dout, sizes)
        oracle.close(rhs_bar, jnp.swapaxes(weights, 1, 2) if transpose_rhs else weights, tolerance)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 2.0**-6), ("float32", 1e-5)])
def test_a_chain_in_one_command_buffer_replays_with_other_sizes(dtype, tolerance):
    """Six layers, forward and backward, are enough launches in a row for XLA to record; it replays them from then on."""
    lhs = oracle.normal(1, M, N, dtype=dtype)
    weights = oracle.normal(2, 6, 6, N, N, dtype=dtype) / N**0.5

    def chain(product):
        def last(a, ws, sizes):
            for w in ws:
                a = product(a, w, sizes)
            return a.astype(jnp.float32).sum(), a

        return jax.value_and_grad(last, (0, 1), has_aux=True)

    recorded = jax.jit(chain(cj.gmm))
    for sizes in [*SIZES, *SIZES]:
        sizes = jnp.array(sizes, jnp.int32)
        (_, out), gradients = recorded(lhs, weights, sizes)
        (_, expected), wanted = oracle.on_host(chain(oracle.gmm))(*wide(lhs, weights), sizes)
        oracle.close(out, expected, tolerance)
        oracle.all_close(gradients, wanted, tolerance)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_sizes_of_every_integer_type(dtype):
    lhs, rhs = operands("bfloat16")
    dy = oracle.normal(3, M, N, dtype="bfloat16")
    for sizes in (SIZES[0], SIZES[1], SIZES[4]):
        held = jnp.array(sizes, dtype)
        oracle.close(jax.jit(cj.gmm)(lhs, rhs, held), oracle.gmm(*wide(lhs, rhs), sizes), 2.0**-7)
        weights = jax.jit(cj.tgmm)(lhs, dy, held)
        oracle.close(weights, oracle.tgmm(*wide(lhs, dy), jnp.array(sizes)), 2.0**-7)
        total = jax.jit(cj.bias_grad)(dy, held)
        expected = oracle.tgmm(jnp.ones((M, 1)), *wide(dy), jnp.array(sizes))[:, 0]
        oracle.close(total, expected, 2.0**-7)
    cj.check()


def test_types_of_lax_are_multiplied_on_the_gpu():
    lhs = jnp.arange(M * K, dtype=jnp.int32).reshape(M, K) % 7
    rhs = jnp.arange(6 * K * N, dtype=jnp.int32).reshape(6, K, N) % 5
    sizes = jnp.array(SIZES[0])
    out = jax.jit(cj.ragged_dot)(lhs, rhs, sizes)
    assert out.dtype == jnp.int32 and {x.platform for x in out.devices()} == {"gpu"}
    np.testing.assert_array_equal(out, oracle.gmm(*wide(lhs, rhs), sizes))
    part = jax.jit(lambda o: cj.ragged_dot(lhs, rhs[2:4], sizes, group_offset=o))(jnp.array(2))
    np.testing.assert_array_equal(part, oracle.gmm(*wide(lhs, rhs[2:4]), sizes, offset=2))


def test_group_offset_stays_on_the_device():
    lhs, rhs = operands("bfloat16")
    product = jax.jit(lambda o: cj.gmm(lhs, rhs[:2], jnp.array(SIZES[0]), group_offset=o))
    for offset in range(5):
        oracle.close(
            product(jnp.array(offset)),
            oracle.gmm(*wide(lhs, rhs[:2]), SIZES[0], offset=offset),
            2.0**-7,
        )


@pytest.mark.parametrize(
    "precision, least, most",
    [("TF32_TF32_F32", 1e-5, 2e-3), ("highest", 0, 1e-6), ("high", 0, 1e-6), (None, 0, 1e-6)],
)
def test_f32_is_multiplied_in_tf32_where_asked_for_and_only_there(precision, least, most):
    lhs, rhs = operands("float32")
    sizes = jnp.array(SIZES[0], jnp.int32)
    total = lambda a, b: (cj.ragged_dot(a, b, sizes, precision) ** 2).sum() / 2
    expected = lambda a, b: (oracle.gmm(a, b, sizes) ** 2).sum() / 2
    actual = cj.ragged_dot(lhs, rhs, sizes, precision), *jax.grad(total, (0, 1))(lhs, rhs)
    exact = oracle.on_host(jax.grad(expected, (0, 1)))(*wide(lhs, rhs))
    for one, wanted in zip(actual, (oracle.gmm(*wide(lhs, rhs), sizes), *exact), strict=True):
        oracle.close(one, wanted, most)
        deviation = np.abs(np.asarray(one, np.float64) - np.asarray(wanted)).max()
        assert deviation >= least * np.abs(wanted).max()


def test_results_and_gradients_lie_on_the_gpu():
    lhs, rhs = operands("bfloat16")
    sizes = jnp.array(SIZES[0])
    out, pullback = jax.vjp(jax.jit(cj.gmm), lhs, rhs, sizes)
    (gpu,) = jax.devices()
    assert gpu.platform == "gpu"
    for array in (lhs, rhs, sizes, out, *pullback(out)[:2], cj.bias_grad(out, sizes)):
        assert array.devices() == {gpu}


def test_shard_map_over_one_gpu():
    lhs, rhs = operands("bfloat16")
    mesh = jax.make_mesh((1,), ("e",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(x, w, sizes):
        offset = jax.lax.axis_index("e") * w.shape[0]
        return jax.lax.psum(cj.gmm(x, w, sizes, group_offset=offset), "e")

    specs = (P(), P("e"), P())
    sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=True)
    loss = lambda f: lambda a, b, s: (f(a, b, s).astype(jnp.float32) ** 2).sum()
    gradient = lambda f: jax.jit(jax.grad(loss(f), (0, 1)))
    for sizes in SIZES:
        sizes = jnp.array(sizes, jnp.int32)
        assert (jax.jit(sharded)(lhs, rhs, sizes) == cj.gmm(lhs, rhs, sizes)).all()
        both = gradient(sharded)(lhs, rhs, sizes), gradient(cj.gmm)(lhs, rhs, sizes)
        jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("room", [None, 100, 999])
def test_the_ragged_exchange_over_one_gpu_is_the_layer_of_one_device(dtype, room):
    """One device that sends to itself: XLA's ragged_all_to_all, which no CPU has. Several GPUs were not at hand."""
    tokens, top_k, experts, h, i = 96, 2, 6, 64, 40
    shapes = (tokens, h), (experts, 2 * i, h), (experts, h, i), (tokens, h)
    x, w13, w2, dout = (oracle.normal(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes, 1))
    weights = jax.nn.softmax(oracle.normal(5, tokens, top_k, dtype="float32")).astype(dtype)
    ids = jax.random.randint(jax.random.key(6), (tokens, top_k), -1, experts + 1)
    exists = ((ids >= 0) & (ids < experts)).ravel()
    lost = 0 if room is None else max(int(exists.sum()) - room, 0)
    assert bool(lost) == (room == 100)
    kept = jnp.where(jnp.cumsum(exists).reshape(ids.shape) <= (room or ids.size), ids, -1)
    mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(*arguments):
        out, dropped = cj.expert_parallel.moe_mlp(
            *arguments, axis_name="expert", exchange="ragged", capacity=room, return_dropped=True
        )
        return out, dropped[None]

    specs = (P("expert"),) * 5
    sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P("expert"), P("expert")), check_vma=True)
    spread = jax.jit(lambda x, weights, w13, w2: sharded(x, ids, weights, w13, w2))
    alone = jax.jit(lambda x, weights, w13, w2: cj.moe_mlp(x, kept, weights, w13, w2))
    out, pullback, dropped = jax.vjp(spread, x, weights, w13, w2, has_aux=True)
    expected, expected_pullback = jax.vjp(alone, x, weights, w13, w2)
    assert dropped.tolist() == [lost]
    tolerance = 2.0**-6 if dtype == "bfloat16" else 1e-5
    oracle.close(out, *wide(expected), tolerance)
    oracle.all_close(list(pullback(dout)), wide(*expected_pullback(dout)), tolerance)


def test_vmap_runs_each_entry():
    lhs, rhs = operands("bfloat16")
    sizes = jnp.array(SIZES)
    out = jax.jit(jax.vmap(cj.gmm, (None, None, 0)))(lhs, rhs, sizes)
    for entry, expected in zip(out, SIZES, strict=True):
        oracle.close(entry, oracle.gmm(*wide(lhs, rhs), expected), 2.0**-7)


@pytest.mark.parametrize("sizes", [[64, -1, 65, 1, 127, 43], [64, 0, 65, 1, 127, 44]])
def test_bad_sizes_are_reported_by_check_and_count_as_tail(sizes):
    lhs, rhs = operands("bfloat16")
    out = np.asarray(jax.jit(cj.gmm)(lhs, rhs, jnp.array(sizes)).astype(jnp.float32))
    oracle.close(out[:64], oracle.gmm(*wide(lhs, rhs), SIZES[0])[:64], 2.0**-7)
    assert (out[257:] == 0).all()
    with pytest.raises(ValueError, match="group size"):
        cj.check()
    cj.check()  # reported once


@pytest.mark.parametrize("offset", [-1, 5, 2**31 - 1])
def test_with_a_bad_group_offset_every_row_is_foreign(offset):
    lhs, rhs = operands("bfloat16")
    sizes, existing = jnp.array(SIZES[0]), oracle.normal(3, M, N, dtype=jnp.bfloat16)
    calls = {
        "gmm": lambda o: cj.gmm(lhs, rhs[:2], sizes, group_offset=o),
        "kept": lambda o: cj.gmm(lhs, rhs[:2], sizes, group_offset=o, existing_out=existing),
        "tgmm": lambda o: cj.tgmm(lhs, existing, sizes, group_offset=o, num_groups=2),
        "bias_grad": lambda o: cj.bias_grad(existing, sizes, group_offset=o, num_groups=2),
    }
    for name, call in calls.items():
        out = jax.jit(call)(jnp.array(offset, jnp.int32))
        assert (out == (existing if name == "kept" else 0)).all(), name
        with pytest.raises(ValueError, match="group_offset|group offset"):
            cj.check()


@pytest.mark.parametrize("sizes", [[64, -1, 65, 1, 127, 43], [64, 0, 65, 1, 127, 44]])
def test_existing_out_is_kept_behind_bad_sizes(sizes):
    lhs, rhs = operands("bfloat16")
    existing = oracle.normal(3, M, N, dtype=jnp.bfloat16)
    out = jax.jit(lambda s, e: cj.gmm(lhs, rhs, s, existing_out=e))(jnp.array(sizes), existing)
    bad = 64 if sizes[1] < 0 else 257
    oracle.close(out[:bad], oracle.gmm(*wide(lhs, rhs), SIZES[0])[:bad], 2.0**-7)
    assert (out[bad:] == existing[bad:]).all()
    with pytest.raises(ValueError, match="group size"):
        cj.check()


def test_cadre_check_makes_the_call_itself_raise(monkeypatch):
    monkeypatch.setenv("CADRE_CHECK", "1")
    lhs, rhs = operands("bfloat16")
    with pytest.raises(jax.errors.JaxRuntimeError, match="gmm: check: on cuda:0 a group size was"):
        jax.block_until_ready(cj.gmm(lhs, rhs, jnp.array([64, -1, 65, 1, 127, 43])))
    cj.check()  # reported already


def by_the_cpu(function, *arguments):
    """The same call on the host. Its arguments come from NumPy: none lies on the GPU."""
    results = oracle.on_host(function)(*jax.tree.map(np.asarray, arguments))
    platforms = {device.platform for leaf in jax.tree.leaves(results) for device in leaf.devices()}
    assert platforms == {"cpu"}
    return results


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 2.0**-6), ("float32", 1e-5)])
def test_a_layer_and_its_gradients_are_the_cpus_for_changing_experts(dtype, tolerance):
    tokens, top_k, hidden, inner, experts = 96, 2, 72, 40, 6
    x = oracle.normal(1, tokens, hidden, dtype=dtype)
    w13 = oracle.normal(2, experts, 2 * inner, hidden, dtype=dtype) / hidden**0.5
    w2 = oracle.normal(3, experts, hidden, inner, dtype=dtype) / inner**0.5
    random = np.random.default_rng(4)
    weights = jnp.asarray(random.uniform(size=(tokens, top_k)), jnp.float32)
    dout = jnp.asarray(random.standard_normal((tokens, hidden)), jnp.float32)
    traced = []

    def total(x, weights, w13, w2, dout, ids):
        traced.append(x.dtype)
        out = cj.moe_mlp(x, ids, weights, w13, w2)
        return (out * dout).sum(), out

    step = jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)
    recorded = jax.jit(step)
    chosen = [random.integers(-1, experts + 1, (tokens, top_k)) for _ in range(2)]
    chosen += [np.full((tokens, top_k), 3), np.full((tokens, top_k), -1)]  # all to one, nobody anywhere
    found = []
    for ids in [*chosen, *chosen]:
        found.append(recorded(x, weights, w13, w2, dout, jnp.asarray(ids, jnp.int32)))
    assert len(traced) == 1, "other experts were compiled again"
    for ids, ((_, out), gradients) in zip([*chosen, *chosen], found, strict=True):
        exact = by_the_cpu(step, *wide(x, weights, w13, w2, dout), ids.astype(np.int32))
        (_, expected), wanted = exact
        oracle.close(out, expected, tolerance)
        oracle.all_close(gradients, wanted, tolerance)
    cj.check()


FP8_MODES = ("tensor", "row", "block_128", "mx")
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def used(copy, sizes):
    """What a column-wise copy holds of groups, codes and scales: the rest of its memory is nobody's."""
    columns = sum(-(-size // 32) * 32 for size in sizes)
    block = {"block_128": 128, "mx": 32}.get(copy.mode)
    lines = {"tensor": 1, "row": len(sizes)}.get(copy.mode)
    lines = sum(-(-size // block) for size in sizes) if lines is None else lines
    return np.asarray(copy.data)[:, :columns], np.asarray(copy.scales)[:lines]


def same_bits(got, expected):
    got, expected = (np.ascontiguousarray(np.asarray(each)) for each in (got, expected))
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("mode", FP8_MODES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_codes_scales_and_values_have_the_cpus_bits(mode, dtype, source):
    x = oracle.normal(1, M, K, dtype=source)
    weights = oracle.normal(2, 3, K, N, dtype=source)

    def quantised(x, weights, sizes):
        rows, columns = cj.quantize(x, mode, sizes, dtype=dtype, columns=True)
        both = cj.quantize(weights, mode, dtype=dtype, columns=True)
        values = (
            cj.dequantize(rows, sizes, out_dtype="float32"),
            cj.dequantize(columns, sizes, num_rows=M, out_dtype="float32"),
            *(cj.dequantize(each, out_dtype="float32") for each in both),
        )
        return columns, (rows, both, values, cj.amax(weights, mode))

    made = jax.jit(quantised)
    for sizes in SIZES:
        columns, others = made(x, weights, jnp.array(sizes))
        expected_columns, expected = by_the_cpu(made, x, weights, np.array(sizes))
        assert jax.tree.structure(others) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(others), jax.tree.leaves(expected), strict=True):
            assert {device.platform for device in ours.devices()} == {"gpu"}
            same_bits(ours, theirs)
        for ours, theirs in zip(used(columns, sizes), used(expected_columns, sizes), strict=True):
            same_bits(ours, theirs)
    cj.check()


#: Of the sum of its terms' absolute values: 33 errors of 2^-13, which Hopper's tensor cores make (docs/numerics.md), and one
#: more for all roundings in f32, the CPU's among them.
FP8_SUM = 34 * 2.0**-13


@pytest.mark.parametrize("mode", FP8_MODES)
@pytest.mark.parametrize("k, n", [(256, 144), (K + 1, N + 1)], ids=["even", "odd"])
def test_products_of_scaled_arrays_are_the_cpus(mode, k, n):
    """Even sizes are for the tensor cores, odd ones for the kernel that takes everything."""
    x, dy = (oracle.normal(i, M, width, dtype="float32") for i, width in ((1, k), (2, n)))
    weights = oracle.normal(3, 6, n, k, dtype="float32")
    f32 = {"preferred_element_type": "float32"}

    def products(x, dy, weights, sizes):
        rows, columns = cj.quantize(x, mode, sizes, columns=True)
        w = cj.quantize(weights, mode)
        scales = w.scales.transpose(0, 2, 1) if w.scales.ndim == 3 else w.scales
        turned = cj.ScaledArray(w.data.transpose(0, 2, 1), scales, mode)
        grad = cj.quantize(dy, mode, sizes, dtype=E5M2, rows=False, columns=True)
        out = cj.gmm(rows, w, sizes, transpose_rhs=True, **f32)
        return out, cj.ragged_dot(rows, turned, sizes, **f32), cj.tgmm(columns, grad, sizes, **f32)

    recorded = jax.jit(products)
    for sizes in SIZES:
        ours = recorded(x, dy, weights, jnp.array(sizes))
        theirs = by_the_cpu(recorded, x, dy, weights, np.array(sizes))
        # Of what was quantised: the values' own sums are larger by 2^-3 of e5m2 and 2^-4 of e4m3 at most.
        sums = oracle.gmm(*wide(abs(x), abs(weights)), sizes, transpose_rhs=True)
        magnitudes = sums, sums, oracle.tgmm(*wide(abs(x), abs(dy)), jnp.array(sizes))
        for got, expected, magnitude in zip(ours, theirs, magnitudes, strict=True):
            assert {device.platform for device in got.devices()} == {"gpu"}
            got, expected = (np.asarray(each, np.float64) for each in (got, expected))
            assert (np.abs(got - expected) <= 1.25 * FP8_SUM * np.asarray(magnitude)).all()
            assert np.abs(expected).max() > 0 or not any(sizes)
    cj.check()
