"""The layer with cadre.jax.moe_mlp, and the same ops around lax.ragged_dot, both jitted."""

import importlib.util
import os
import time

import numpy

from .case import ALPHA, LIMIT, UP_OFFSET
from .contender import Contender

NAME = "JAX"
RIVAL = "lax.ragged_dot"
_PROBED = 64  # lax multiplies all rows with all experts on a CPU: a first look takes a part of the tokens


def _started():
    """The module, its backend started. That would take 75 % of a GPU's memory, and PyTorch is measured beside it."""
    import jax

    name = "XLA_PYTHON_CLIENT_PREALLOCATE"  # read when the backend starts, never again
    users_own = name in os.environ
    os.environ.setdefault(name, "false")
    try:
        jax.default_backend()
    finally:
        if not users_own:
            del os.environ[name]
    return jax


def available():
    """Why it can't be measured, or None."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed"
    try:
        import cadre.jax  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def version():
    import jax

    return jax.__version__


def default_dtype(device):
    return "bf16"


def copies():
    return 3  # JAX has its own, and is given the weights as [g, k, n]


def has_gpu():
    if importlib.util.find_spec("jax") is None:
        return False
    return _started().default_backend() == "gpu"


def gpu_name():
    return _started().devices("gpu")[0].device_kind


def gpu_free_bytes():
    stats = _started().devices("gpu")[0].memory_stats() or {}
    return stats.get("bytes_limit", 16 << 30) - stats.get("bytes_in_use", 0)


def release():
    """Nothing: JAX keeps what it took, and takes it from there the next time."""


def contenders(case, device):
    """(contenders, reasons of those that are left out)."""
    import jax.numpy as jnp

    import cadre.jax

    jax = _started()
    place = jax.devices("gpu" if device == "cuda" else "cpu")[0]

    def put(array):
        return None if array is None else jax.device_put(array, place)

    x, ids, weights, bias13, bias2 = map(put, (case.x, case.ids, case.weights, case.bias13, case.bias2))
    w13 = put(numpy.ascontiguousarray(case.w13.transpose(0, 2, 1)))
    w2 = put(numpy.ascontiguousarray(case.w2.transpose(0, 2, 1)))
    clamped = case.layer.clamped

    def mine(x, ids, weights, w13, w2, bias13, bias2):
        return cadre.jax.moe_mlp(
            x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, transposed=True,
            activation="clamped_swiglu" if clamped else "swiglu", alpha=ALPHA, limit=LIMIT, up_offset=UP_OFFSET,
        )  # fmt: skip

    def by_lax(x, ids, weights, w13, w2, bias13, bias2):
        flat = ids.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=case.experts).astype(jnp.int32)
        pre = jax.lax.ragged_dot(x[order // case.top_k], w13, sizes)
        pre = pre if bias13 is None else pre + bias13[flat[order]]
        gate, up = jnp.split(pre.astype(jnp.float32), 2, axis=-1)
        if clamped:
            gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
            inner = gate * jax.nn.sigmoid(ALPHA * gate) * (up + UP_OFFSET)
        else:
            inner = jax.nn.silu(gate) * up
        y = jax.lax.ragged_dot(inner.astype(x.dtype), w2, sizes)
        y = y if bias2 is None else y + bias2[flat[order]]
        y = y.astype(jnp.float32) * weights.reshape(-1)[order][:, None].astype(jnp.float32)
        out = jnp.zeros(x.shape, jnp.float32)
        return out.at[order // case.top_k].add(y).astype(x.dtype)

    def made(name, function):
        compiled = jax.jit(function)
        last = [None]

        def call():
            last[0] = compiled(x, ids, weights, w13, w2, bias13, bias2)
            return last[0]

        def probe():
            count = max(1, case.tokens // _PROBED)
            few = (x[:count], ids[:count], weights[:count], w13, w2, bias13, bias2)
            program = compiled.lower(*few).compile()
            start = time.perf_counter()
            jax.block_until_ready(program(*few))
            return (time.perf_counter() - start) * case.tokens / count

        return Contender(
            name,
            call,
            lambda: jax.block_until_ready(last[0]),
            lambda out: numpy.asarray(out.astype(jnp.float32)),
            compiles=True,
            probe=probe if name == RIVAL else None,
        )

    return [made("cadre", mine), made(RIVAL, by_lax)], {}
