"""jit with traced sizes, scan, checkpoint, export, and what the compiled program holds."""

import subprocess
import sys

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest
from jax import export

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


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_backward_moves_no_weights(transpose_rhs):
    rhs = jnp.swapaxes(RHS, 1, 2) if transpose_rhs else RHS
    loss = lambda a, b: (cj.gmm(a, b, SIZES, transpose_rhs=transpose_rhs) ** 2).sum()
    program = jax.jit(jax.grad(loss, (0, 1))).lower(LHS, rhs).compile().as_text().splitlines()
    calls = [line for line in program if "custom-call(" in line]
    assert sum("cadre_gmm" in line for line in calls) == 2
    assert sum("cadre_tgmm" in line for line in calls) == 1
    assert not [line for line in program if " transpose(" in line or " copy(" in line]
