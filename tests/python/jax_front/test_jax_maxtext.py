"""cadre.jax.maxtext: MaxText's gmm by its signature (e591f30cb), and where install() puts it. Not run against the real package,
which needs Python 3.12."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cadre.jax.maxtext as maxtext
import jax
import jax.numpy as jnp
import numpy as np
import pytest

#: The parameters of maxtext.kernels.megablox.ops.gmm, in their order.
PARAMETERS = (
    "lhs rhs group_sizes preferred_element_type tiling group_offset existing_out transpose_rhs interpret "
    "lhs_quantize_dtype rhs_quantize_dtype use_qwix_quantization use_tokamax_backend weight_gather_axes lhs_vma_axes "
    "rhs_vma_axes qwix_rule use_manual_quantization use_gmm_v2 partial_sum"
).split()
#: What MaxText's layers pass beside the operands, without quantisation.
PASSED = {
    "tiling": (512, 1024, 1024) * 3, "lhs_quantize_dtype": None, "rhs_quantize_dtype": None,
    "use_qwix_quantization": False, "use_tokamax_backend": False, "weight_gather_axes": [("fsdp", 1)],
    "lhs_vma_axes": (), "rhs_vma_axes": (), "use_gmm_v2": False, "interpret": True,
}  # fmt: skip


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


def test_without_maxtext_the_error_and_the_example_say_what_to_install():
    with pytest.raises(ImportError, match="cadre.jax.maxtext: MaxText is not installed: pip install maxtext"):
        maxtext.install()
    example = Path(__file__).resolve().parents[3] / "examples/15_maxtext.py"
    done = subprocess.run([sys.executable, str(example)], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "needs MaxText" in done.stderr, done.stderr
