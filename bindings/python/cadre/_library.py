"""Finds libcadre, loads it, declares its functions, and holds the process's Context.

Search order: the file that CADRE_LIBRARY names, then lib/libcadre.so inside the package. CADRE_LIBRARY is read once, at
the first import.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from . import _errors, _structs

_LIBRARY_NAME = "libcadre.so"


def package_directories():
    """The package's folders: one, or in an editable install two (the sources and what CMake has built)."""
    import cadre

    return [Path(entry) for entry in cadre.__path__]


def package_file(*parts):
    """The first of the package's folders that has this file, or None."""
    for directory in package_directories():
        path = directory.joinpath(*parts)
        if path.is_file():
            return path
    return None


def _find():
    named = os.environ.get("CADRE_LIBRARY")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ImportError(
                f"cadre: CADRE_LIBRARY = {named!r} is not a file; unset it to use the package's own lib/{_LIBRARY_NAME}"
            )
        return path.resolve()
    path = package_file("lib", _LIBRARY_NAME)
    if path is None:
        folders = ", ".join(str(directory / "lib") for directory in package_directories())
        raise ImportError(
            f"cadre: no {_LIBRARY_NAME}: CADRE_LIBRARY is not set, and there is none in {folders}. "
            "Install the package (pip install .), or set CADRE_LIBRARY to a built libcadre.so"
        )
    return path


def _declare(library):
    def declare(name, result, *arguments):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments

    declare("cadre_status_message", c_char_p)
    declare("cadre_version", c_char_p)
    declare("cadre_backends", c_char_p)
    declare("cadre_dtype_size", c_size_t, c_int32)
    declare("cadre_dtype_name", c_char_p, c_int32)
    declare("cadre_default_output_dtype", c_int32, c_int32, c_int32)
    declare("cadre_grouped_from_tensor", _structs.GroupedTensor, POINTER(_structs.Tensor))
    declare("cadre_grouped_vectors", _structs.GroupedTensor, POINTER(_structs.Tensor))
    declare(
        "cadre_grouped_list",
        _structs.GroupedTensor,
        POINTER(c_void_p),
        c_int64,
        POINTER(_structs.Tensor),
        _structs.Device,
    )
    declare("cadre_context_create", c_int32, POINTER(_structs.ContextOptions), POINTER(c_void_p))
    declare("cadre_context_destroy", None, c_void_p)
    declare("cadre_check", c_int32, c_void_p, _structs.Device, c_void_p)
    for struct, (_, init) in _structs.C_NAMES.items():
        if init:
            declare(init, None, POINTER(struct), c_size_t)
    for name, struct in (
        ("cadre_gmm", _structs.GmmArgs),
        ("cadre_tgmm", _structs.TgmmArgs),
        ("cadre_grouped_gemm", _structs.GroupedGemmArgs),
        ("cadre_bias_grad", _structs.BiasGradArgs),
    ):
        declare(name, c_int32, c_void_p, POINTER(struct))
        declare(f"{name}_explain", c_int32, c_void_p, POINTER(struct), POINTER(c_char_p))
    for name, struct in (
        ("cadre_quantize", _structs.QuantizeArgs),
        ("cadre_dequantize", _structs.DequantizeArgs),
        ("cadre_amax", _structs.AmaxArgs),
    ):
        declare(name, c_int32, c_void_p, POINTER(struct))
    declare("cadre_pack_weights", c_int32, c_void_p, POINTER(_structs.PackWeightsArgs), POINTER(c_void_p))
    declare("cadre_packed_weights_destroy", None, c_void_p)
    declare("cadre_packed_weights_size_bytes", c_size_t, c_void_p)
    declare("cadre_packed_weights_kernel", c_char_p, c_void_p)


def _load(path):
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"cadre: {path} can't be loaded: {error}") from error
    try:
        _declare(library)
    except AttributeError as error:
        raise ImportError(
            f"cadre: {path} is no libcadre, or one of another version: {error}"
        ) from error
    return library


path = _find()
library = _load(path)
version: str = library.cadre_version().decode()

_context = None
_context_lock = threading.Lock()


def backends() -> tuple[str, ...]:
    """The library's backends, in the order they are tried.

    >>> "cpu" in cadre.backends()
    True
    """
    return tuple(library.cadre_backends().decode().split(", "))


def check(code):
    """Raises what a failed call of this thread had to say."""
    if code != _structs.OK:
        raise _errors.exception_for(code, library.cadre_status_message().decode())


def context():
    """The process's Context, made at the first call: every front shares it, and every thread may use it."""
    global _context
    if _context is None:
        with _context_lock:
            if _context is None:
                handle = c_void_p()
                check(library.cadre_context_create(None, byref(handle)))
                _context = handle
    return _context


def new(struct):
    """A struct with `struct_size` and the library's own defaults."""
    result = struct()
    getattr(library, _structs.C_NAMES[struct][1])(byref(result), ctypes.sizeof(struct))
    return result
