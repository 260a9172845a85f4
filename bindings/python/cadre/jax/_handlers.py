"""Loads cadre_jax.so and registers its handlers with XLA, at the first lowering."""

from __future__ import annotations

import ctypes
import functools
import threading

import jax

from .. import _library, _shims

OLDEST_JAX = (0, 10)

_TARGETS = (
    *("gmm", "tgmm", "bias_grad"),
    *("route", "moe_mlp", "moe_mlp_grad"),
    *("quantize", "dequantize", "amax", "scaled_gmm", "scaled_tgmm"),
)
_lock = threading.Lock()


def shim():
    """cadre_jax.so: header-only XLA FFI, so jaxlib's headers are all it needs."""
    if jax.__version_info__[:2] < OLDEST_JAX:
        oldest = ".".join(map(str, OLDEST_JAX))
        raise ImportError(
            f"cadre.jax: jax is {jax.__version__}, expected {oldest} or newer: "
            f"pip install 'jax>={oldest}'"
        )
    return _shims.Shim(
        name="jax",
        sources=("handlers.cc", "layer_handlers.cc", "runtime.cc", "scaled_handlers.cc"),
        headers=("batched_views.h", "handler_call.h", "runtime.h"),
        framework=f"jaxlib-{jax.lib.__version__}",
        flags=(f"-isystem{jax.ffi.include_dir()}",),
    )


@functools.lru_cache(maxsize=1)
def _load():
    with _shims.found(shim()) as path:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"cadre.jax: {path} can't be loaded: {error}") from error
    library.cadre_jax_use_context.argtypes = (ctypes.c_void_p,)
    library.cadre_jax_use_context.restype = None
    library.cadre_jax_check.restype = ctypes.c_int32
    library.cadre_jax_use_context(_library.context())
    for target in _TARGETS:
        for platform in ("cpu", "cuda"):
            handler = jax.ffi.pycapsule(getattr(library, f"cadre_jax_{target}_{platform}"))
            jax.ffi.register_ffi_target(
                f"cadre_{target}", handler, platform="CUDA" if platform == "cuda" else "cpu"
            )
    return library


def load():
    """cadre_jax.so, with its handlers known to XLA."""
    with _lock:
        return _load()


def register() -> None:
    """Makes the handlers known to XLA; a second call does nothing.

    Tracing a call of cadre does this by itself. Only a process that runs a program without tracing it needs it: one that
    was exported (jax.export) or compiled elsewhere.

    >>> cadre.jax.register()
    """
    load()


def check() -> None:
    """Waits for the GPU and raises ValueError if a call met bad group sizes or offsets there.

    On a CPU bad sizes raise in the call itself, so there is nothing to report.

    >>> cadre.jax.check()
    """
    _library.check(load().cadre_jax_check())
