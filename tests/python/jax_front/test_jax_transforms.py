"""jit with traced sizes, scan, checkpoint, export, and what the compiled program holds."""

import math
import re
import subprocess
import sys
from pathlib import Path

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from cadre.jax import _workspace, megablox
from jax import export
from jax.sharding import PartitionSpec

SIZES = jnp.array([4, 0, 5])
LHS, RHS = oracle.normal(1, 10, 5), oracle.normal(2, 3, 5, 4)
CUSTOM_CALLS = [
    export.DisabledSafetyCheck.custom_call(f"cadre_{op}") for op in ("gmm", "tgmm", "bias_grad")
]


def test_sizes_are_traced_and_never_recompiled():
    traces = []

    @jax.jit
    def product(lhs, rhs, sizes):
        traces.append(1)
        return cj.gmm(lhs, rhs, sizes)

    for sizes in ([4, 0, 5], [0, 0, 0], [10, 0, 0], [1, 1, 1]):
        oracle.close(product(LHS, RHS, jnp.array(sizes)), oracle.gmm(LHS, RHS, sizes))
    assert len(traces) == 1


def test_scan_and_checkpoint():
    weights = oracle.normal(3, 6, 3, 5, 5)

    def layer(f):
        return jax.checkpoint(lambda x, w: (jnp.tanh(f(x, w, SIZES)), None))

    loss = lambda f: lambda x, ws: (jax.lax.scan(layer(f), x, ws)[0] ** 2).sum()
    gradients = jax.jit(jax.grad(loss(cj.gmm), (0, 1)))(LHS, weights)
    oracle.all_close(gradients, oracle.on_host(jax.grad(loss(oracle.gmm), (0, 1)))(LHS, weights))


def test_export_with_a_symbolic_number_of_rows():
    (m,) = export.symbolic_shape("m")
    forward = export.export(jax.jit(cj.gmm), disabled_checks=CUSTOM_CALLS)(
        jax.ShapeDtypeStruct((m, 5), jnp.float64),
        jax.ShapeDtypeStruct((3, 5, 4), jnp.float64),
        jax.ShapeDtypeStruct((3,), jnp.int32),
    )
    restored = export.deserialize(forward.serialize())
    for rows in (10, 17):
        lhs = oracle.normal(rows, rows, 5)
        oracle.close(restored.call(lhs, RHS, SIZES.astype(jnp.int32)), oracle.gmm(lhs, RHS, SIZES))


def test_export_of_the_gradient_with_a_symbolic_number_of_rows():
    (m,) = export.symbolic_shape("m")
    bias = oracle.normal(4, 3, 4)

    def loss(product):
        return lambda a, b, c, s: jnp.sin(product(a, b, c, s)).sum()

    ours = loss(lambda a, b, c, s: cj.gmm(a, b, s, bias=c))
    backward = export.export(jax.jit(jax.grad(ours, (0, 1, 2))), disabled_checks=CUSTOM_CALLS)(
        jax.ShapeDtypeStruct((m, 5), jnp.float64),
        jax.ShapeDtypeStruct((3, 5, 4), jnp.float64),
        jax.ShapeDtypeStruct((3, 4), jnp.float64),
        jax.ShapeDtypeStruct((3,), jnp.int32),
    )
    restored = export.deserialize(backward.serialize())
    expected = loss(lambda a, b, c, s: oracle.gmm(a, b, s) + oracle.bias_rows(a.shape[0], c, s))
    for rows in (10, 17):
        lhs = oracle.normal(rows, rows, 5)
        gradients = restored.call(lhs, RHS, bias, SIZES.astype(jnp.int32))
        wanted = oracle.on_host(jax.grad(expected, (0, 1, 2)))(lhs, RHS, bias, SIZES)
        oracle.all_close(gradients, wanted)


def test_the_package_installs_what_export_needs():
    project = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    (extra,) = re.findall(r"^jax = \[(.*?)\]", project, re.MULTILINE)
    assert "flatbuffers" in extra


def test_an_exported_program_runs_in_a_process_that_traces_nothing(tmp_path):
    exported = export.export(jax.jit(cj.gmm), disabled_checks=CUSTOM_CALLS)(LHS, RHS, SIZES)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "operands", LHS, RHS, SIZES)
    program = """
import sys, jax, numpy, cadre.jax
from jax import export
jax.config.update("jax_enable_x64", True)
cadre.jax.register()
folder = sys.argv[1]
exported = export.deserialize(open(f"{folder}/program", "rb").read())
numpy.save(f"{folder}/out", exported.call(*numpy.load(f"{folder}/operands.npz").values()))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    oracle.close(np.load(tmp_path / "out.npy"), oracle.gmm(LHS, RHS, SIZES))


@pytest.mark.parametrize("offset", [0, 1])
def test_export_with_every_dim_symbolic_and_an_offset(offset):
    m, k, n, g, h = export.symbolic_shape("m, k, n, g, h")
    shapes = ((m, k), (g, k, n), (m, n))
    lhs, rhs, dout = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((h,), jnp.int32)

    def both(a, b, c, s):
        tiling = lambda *dims: dims
        out = megablox.gmm(a, b, s, jnp.float64, tiling, offset)
        return out, cj.tgmm(a, c, s, group_offset=offset, num_groups=b.shape[0])

    exported = export.export(jax.jit(both), disabled_checks=CUSTOM_CALLS)(lhs, rhs, dout, sizes)
    for rows, held in ((10, 2), (17, 1)):
        a, b, c = oracle.normal(1, rows, 5), oracle.normal(2, held, 5, 4), oracle.normal(3, rows, 4)
        out, weights = exported.call(a, b, c, SIZES.astype(jnp.int32))
        oracle.close(out, oracle.gmm(a, b, SIZES, offset=offset))
        oracle.close(weights, oracle.tgmm(a, c, SIZES, offset, held))


@pytest.mark.parametrize(
    "shapes", ["a, b, c", "a, b, 16384", "a, 8192, 8192", "64, a, 1048576"], ids=str
)
def test_the_arrays_that_a_workspace_is_asked_for_never_overlap(shapes):
    shape = export.symbolic_shape(shapes)
    avals = [jax.core.ShapedArray(dims, np.dtype(np.float64)) for dims in (shape, shape[1:])]
    few, many = _workspace.symbolic_extents(avals, 0)
    assert few == 64 <= many <= 1 << 20
    for extent in (few, many):
        views = _workspace._Views(0, extent, on_host=False)
        placed = [views.tensor(aval) for aval in avals]
        first, second = (view.data for view in placed)
        assert first + 8 * math.prod(placed[0].shape[:3]) <= second < 1 << 63


@pytest.mark.cpu
def test_an_exported_program_refuses_more_weights_than_sizes():
    g, h = export.symbolic_shape("g, h")
    exported = export.export(
        jax.jit(lambda a, b, s: cj.gmm(a, b, s, group_offset=0)), disabled_checks=CUSTOM_CALLS
    )(
        jax.ShapeDtypeStruct((10, 5), jnp.float64),
        jax.ShapeDtypeStruct((g, 5, 4), jnp.float64),
        jax.ShapeDtypeStruct((h,), jnp.int32),
    )
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="group"):
        jax.block_until_ready(exported.call(LHS, RHS, jnp.array([4, 5], jnp.int32)))


def in_shard_map(lhs, rhs):
    mesh = jax.make_mesh((4,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    body = lambda a, b: jax.lax.psum((cj.gmm(a, b, SIZES) ** 2).sum(), "t")
    specs = {"in_specs": (PartitionSpec("t"), PartitionSpec()), "out_specs": PartitionSpec()}
    return jax.shard_map(body, mesh=mesh, check_vma=True, **specs)(lhs, rhs)


# name -> loss of (lhs, rhs), and whether its weights are [g, n, k].
NOTHING_MOVES = {
    "gmm": (lambda a, b: (cj.gmm(a, b, SIZES) ** 2).sum(), False),
    "gmm, transposed": (lambda a, b: (cj.gmm(a, b, SIZES, transpose_rhs=True) ** 2).sum(), True),
    "ragged_dot": (lambda a, b: (cj.ragged_dot(a, b, SIZES) ** 2).sum(), False),
    "grouped_linear": (lambda a, b: (cj.grouped_linear(a, b, SIZES) ** 2).sum(), True),
    "in shard_map": (in_shard_map, False),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.four_devices if "shard_map" in name else ())
        for name in NOTHING_MOVES
    ],
)
def test_backward_moves_no_weights(name):
    loss, transposed = NOTHING_MOVES[name]
    rhs = jnp.swapaxes(RHS, 1, 2) if transposed else RHS
    lhs = jnp.concatenate([LHS] * 4) if "shard_map" in name else LHS
    program = jax.jit(jax.grad(loss, (0, 1))).lower(lhs, rhs).compile().as_text().splitlines()
    calls = [line for line in program if "custom-call(" in line]
    assert sum("cadre_gmm" in line for line in calls) == 2
    assert sum("cadre_tgmm" in line for line in calls) == 1
    assert not [line for line in program if " transpose(" in line or " copy(" in line]
