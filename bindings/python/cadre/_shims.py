"""Finds a framework's shim, or builds it once for the framework that is installed.

A wheel built where the framework could be seen holds lib/<shim>.so. Otherwise the sources, which the package holds too,
are compiled at first use (some seconds) into the user's cache. docs/decisions has the why.
"""

import dataclasses
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import _library

_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_ABI_HEADERS = ("c_api.h", "export.h")


@dataclasses.dataclass(frozen=True)
class Shim:
    """What a shim is made of. `name` is the front's: "jax" means cadre.jax, cadre_jax.so and bindings/jax."""

    name: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    framework: str  # its name and version: a shim is built anew for each
    flags: tuple[str, ...]  # of the compiler: the framework's include folders and definitions
    libraries: tuple[str, ...] = ()  # of the linker

    @property
    def front(self):
        return f"cadre.{self.name}"

    @property
    def file_name(self):
        return f"cadre_{self.name}.so"


def find(shim):
    """The shim's file: of the package, or compiled now or earlier. ImportError says what is missing."""
    return _library.package_file("lib", shim.file_name) or _built(shim)


def _built(shim):
    sources, include = _source_folders(shim)
    folder = _cache_folder() / _cache_key(shim, sources, include)
    output = folder / shim.file_name
    if output.is_file():
        return output
    compiler = _compiler(shim)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError:
        # No cache to write to: a build of this process's own.
        output = Path(tempfile.mkdtemp(prefix="cadre-")) / shim.file_name
        _build(shim, compiler, sources, include, output)
        return output
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.is_file():
            _build(shim, compiler, sources, include, output)
    return output


def _source_folders(shim):
    """(the sources' folder, the folder that holds cadre/c_api.h): the package's, or the repository's it is used from."""
    source = _library.package_file(shim.name, "csrc", shim.sources[0])
    header = _library.package_file("include", "cadre", _ABI_HEADERS[0])
    if source and header:
        return source.parent, header.parents[1]
    repository = _library.package_directories()[0].parents[2]
    source = repository / "bindings" / shim.name / shim.sources[0]
    header = repository / "include/cadre" / _ABI_HEADERS[0]
    if source.is_file() and header.is_file():
        return source.parent, header.parents[1]
    raise ImportError(
        f"{shim.front}: neither lib/{shim.file_name} nor its sources are in the package: "
        "install it again (pip install .)"
    )


def _compiler(shim):
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return [path]
    raise ImportError(
        f"{shim.front}: {shim.file_name} must be compiled once for {shim.framework}, and there is no C++ compiler "
        "(c++, g++ or clang++ on PATH, or CXX). Install one, or install a wheel that was built where the framework "
        "is: pip install --no-build-isolation ."
    )


def _cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "cadre"


def _cache_key(shim, sources, include):
    digest = hashlib.sha256()
    ours = [sources / name for name in (*shim.sources, *shim.headers)]
    for path in [*ours, *(include / "cadre" / name for name in _ABI_HEADERS)]:
        digest.update(path.read_bytes())
    digest.update(" ".join((*_FLAGS, *shim.flags, *shim.libraries, _library.version)).encode())
    return f"{shim.framework}-{digest.hexdigest()[:16]}"


def build_command(shim, compiler, sources, include, output):
    """The one command that makes a shim. libcadre is found by its soname, already loaded."""
    return [
        *compiler,
        *_FLAGS,
        f"-I{include}",
        *shim.flags,
        *(str(sources / name) for name in shim.sources),
        str(_library.path),
        *shim.libraries,
        "-o",
        str(output),
    ]


def _build(shim, compiler, sources, include, output):
    unfinished = output.with_name(f".{os.getpid()}.{output.name}")
    command = build_command(shim, compiler, sources, include, unfinished)
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise ImportError(
            f"{shim.front}: the compiler {command[0]!r} can't be run: {error}"
        ) from error
    if result.returncode:
        unfinished.unlink(missing_ok=True)
        raise ImportError(
            f"{shim.front}: {shim.file_name} could not be compiled: {shlex.join(command)}\n{result.stderr[-4000:]}"
        )
    # In one step, so that another process never loads half a file.
    unfinished.replace(output)
