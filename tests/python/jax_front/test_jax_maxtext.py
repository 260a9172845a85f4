"""cadre.jax.maxtext: MaxText's gmm by its signature (0.2.5), and where install() puts it; with MaxText (requirements/maxtext.txt,
Python 3.12) against its own gmm, and inside its training."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cadre
import cadre.jax.maxtext as maxtext
import jax
import jax.numpy as jnp
import numpy as np
import pytest

#: The parameters of maxtext.kernels.megablox.ops.gmm, in their order.
PARAMETERS = (
    "lhs rhs group_sizes preferred_element_type tiling group_offset existing_out transpose_rhs interpret "
    "lhs_quantize_dtype rhs_quantize_dtype use_qwix_quantization use_tokamax_backend weight_gather_axes lhs_vma_axes "
    "rhs_vma_axes qwix_rule use_manual_quantization use_gmm_v2 use_gmm_v2_heuristic_tiling partial_sum"
).split()
#: What MaxText's layers pass beside the operands, without quantisation.
PASSED = {
    "tiling": (512, 1024, 1024) * 3, "lhs_quantize_dtype": None, "rhs_quantize_dtype": None,
    "use_qwix_quantization": False, "use_tokamax_backend": False, "weight_gather_axes": [("fsdp", 1)],
    "lhs_vma_axes": (), "rhs_vma_axes": (), "use_gmm_v2": False, "use_gmm_v2_heuristic_tiling": False, "interpret": True,
}  # fmt: skip
EXAMPLE = Path(__file__).resolve().parents[3] / "examples/15_maxtext.py"
has_maxtext = importlib.util.find_spec("maxtext") is not None
needs_maxtext = pytest.mark.skipif(
    not has_maxtext, reason="MaxText is not installed; to run this: scripts/test_framework_version.sh jax 0.11.2"
)


def operands(rng, dtype=np.float32):
    lhs, rhs = rng.standard_normal((11, 7)), rng.standard_normal((4, 7, 5))
    return jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype), jnp.array([3, 0, 6, 1])


def product(lhs, rhs, sizes):
    ids = np.repeat(np.arange(4), np.asarray(sizes))
    rows = jnp.einsum("mk,mkn->mn", lhs[: len(ids)], rhs[ids], precision="highest")
    return jnp.zeros((lhs.shape[0], rhs.shape[2]), rows.dtype).at[: len(ids)].set(rows)


def test_the_signature_is_that_of_maxtext():
    assert list(inspect.signature(maxtext.gmm).parameters) == PARAMETERS


def test_what_maxtext_calls_is_computed_with_gradients(rng):
    lhs, rhs, sizes = operands(rng)
    partial = jnp.asarray(rng.standard_normal((11, 5)), jnp.float32)
    dout = jnp.asarray(rng.standard_normal((11, 5)), jnp.float32)

    def ours(lhs, rhs, partial):
        return maxtext.gmm(lhs=lhs, rhs=rhs, group_sizes=sizes, partial_sum=partial, group_offset=None, **PASSED)

    out, pull = jax.vjp(jax.jit(ours), lhs, rhs, partial)
    expected, push = jax.vjp(lambda lhs, rhs, partial: product(lhs, rhs, sizes) + partial, lhs, rhs, partial)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(pull(dout), push(dout), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_result_has_the_type_that_is_asked_for(rng):
    lhs, rhs, sizes = operands(rng, jnp.bfloat16)
    out = maxtext.gmm(lhs, rhs, sizes, jnp.bfloat16, **PASSED)
    assert out.dtype == jnp.bfloat16
    wide = product(lhs.astype(jnp.float32), rhs.astype(jnp.float32), sizes)
    np.testing.assert_allclose(out.astype(jnp.float32), wide, rtol=2**-8, atol=2**-8)
    turned = maxtext.gmm(lhs, rhs.swapaxes(1, 2), sizes, jnp.bfloat16, transpose_rhs=True)
    assert (turned == out).all()


@pytest.mark.parametrize(
    "name, value",
    [("lhs_quantize_dtype", jnp.int8), ("rhs_quantize_dtype", jnp.int8), ("use_qwix_quantization", True),
     ("qwix_rule", "rule"), ("use_manual_quantization", True)],
)  # fmt: skip
def test_quantisation_is_refused_by_name(rng, name, value):
    with pytest.raises(ValueError, match=rf"maxtext.gmm: {name} = .*, expected none"):
        maxtext.gmm(*operands(rng), **{**PASSED, name: value})


def test_install_puts_it_where_maxtext_s_layers_look(monkeypatch):
    folder, kernels, megablox = (ModuleType(name) for name in ("maxtext", "maxtext.kernels", "maxtext.kernels.megablox"))
    megablox.gmm = theirs = object()
    for module in (folder, kernels, megablox):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert maxtext.install() is theirs and megablox.gmm is maxtext.gmm


@pytest.mark.skipif(has_maxtext, reason="MaxText is installed")
def test_without_maxtext_the_error_and_the_example_say_what_to_install():
    with pytest.raises(ImportError, match="cadre.jax.maxtext: MaxText is not installed: pip install maxtext"):
        maxtext.install()
    done = subprocess.run([sys.executable, str(EXAMPLE)], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "needs MaxText" in done.stderr, done.stderr


def run_apart(*arguments, folder):
    """In a process of its own: MaxText changes the environment and JAX's settings."""
    package = str(Path(cadre.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], check=False, capture_output=True, text=True, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


#: MaxText's kernel in Pallas' interpreter, beside ours, with the operands that it takes: multiples of 128.
BESIDE = """
import inspect, jax, jax.numpy as jnp, maxtext.kernels.megablox as theirs, cadre.jax.maxtext as ours
assert list(inspect.signature(theirs.gmm).parameters) == list(inspect.signature(ours.gmm).parameters)
keys = jax.random.split(jax.random.key(1), 3)
lhs, rhs, dout = (jax.random.normal(key, shape) for key, shape in zip(keys, ((256, 128), (4, 128, 256), (256, 256))))
sizes = jnp.array([100, 0, 56, 100], jnp.int32)
for turned in (False, True):
    weights = rhs.swapaxes(1, 2) if turned else rhs
    def results(module):
        product = lambda a, b: module.gmm(a, b, sizes, jnp.float32, transpose_rhs=turned, interpret=True)
        out, pull = jax.vjp(product, lhs, weights)
        return out, *pull(dout)
    for found, expected in zip(results(ours), results(theirs)):
        assert found.shape == expected.shape and jnp.allclose(found, expected, rtol=1e-5, atol=1e-4)
original = ours.install()
assert original.__module__ == "maxtext.kernels.megablox.ops" and theirs.gmm is ours.gmm
print("same")
"""


@needs_maxtext
@pytest.mark.cpu
def test_results_and_gradients_are_those_of_maxtext(tmp_path):
    assert "same" in run_apart("-c", BESIDE, folder=tmp_path)


@needs_maxtext
@pytest.mark.cpu
def test_maxtext_trains_to_the_losses_of_its_own_products(tmp_path):
    """The example with megablox=True, and MaxText alone with megablox=False: jax.lax.ragged_dot. Four steps of a small model."""
    config = Path(importlib.util.find_spec("maxtext").submodule_search_locations[0]) / "configs/base.yml"
    sizes = {
        "base_emb_dim": 64, "base_mlp_dim": 48, "base_moe_mlp_dim": 48, "base_num_decoder_layers": 2, "head_dim": 16,
        "base_num_query_heads": 4, "base_num_kv_heads": 4, "vocab_size": 128, "max_target_length": 32, "num_experts": 4,
        "num_experts_per_tok": 2, "per_device_batch_size": 2, "steps": 4, "decoder_block": "mixtral",
    }  # fmt: skip
    options = {
        **sizes, "run_name": "test", "base_output_directory": tmp_path, "hardware": "cpu", "dataset_type": "synthetic",
        "enable_checkpointing": False, "sparse_matmul": True, "attention": "dot_product", "skip_jax_distributed_system": True,
    }  # fmt: skip
    words = [config, *(f"{name}={value}" for name, value in options.items())]
    ours = run_apart(EXAMPLE, *words, "megablox=True", folder=tmp_path)
    theirs = run_apart("-m", "maxtext.trainers.pre_train.train", *words, "megablox=False", folder=tmp_path)
    losses, expected = (
        [float(each) for each in re.findall(r"completed step: .* lm_loss: ([\d.]+)", text)] for text in (ours, theirs)
    )
    assert len(losses) == 4 and losses == pytest.approx(expected, abs=2e-3) and losses[-1] < losses[0]
