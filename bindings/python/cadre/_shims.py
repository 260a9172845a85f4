"""Finds a framework's shim, or builds it once for the framework that is installed.

A wheel built where the framework could be seen holds lib/<shim>.so. Otherwise the sources, which the package holds too,
are compiled at first use (some seconds) into the user's cache. Decisions 0007 and 0015 (docs/decisions) have the why.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _library

_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now",
)
_ABI_HEADERS = ("c_api.h", "export.h")
_EXPORTS = "shim_exports.map"


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


@contextlib.contextmanager
def found(shim):
    """The shim's file, to be loaded inside the `with`: of the package, or compiled now or earlier.

    Without a cache to write to it is compiled into a temporary folder, which is gone after the `with`. ImportError says
    what is missing.
    """
    packaged = _library.package_file("lib", shim.file_name)
    if packaged:
        yield packaged
        return
    with contextlib.ExitStack() as stack:
        yield _built(shim, stack)


def _built(shim, stack):
    sources = _Sources.of(shim)
    compiler = _compiler()
    cache = _private_folder(_cache_folder())
    if cache:
        key = cache / _cache_key(shim, sources)
        # A compiler of another version builds anew. Without any, whatever was built before serves.
        folders = [key / compiler.identity] if compiler else sorted(key.glob("*"))
        for folder in folders:
            if _is_trusted(folder / shim.file_name):
                return folder / shim.file_name
    if not compiler:
        raise ImportError(
            f"{shim.front}: {shim.file_name} must be compiled once for {shim.framework}, and there is no C++ compiler "
            "(c++, g++ or clang++ on PATH, or CXX). Install one, or install a wheel that was built where the framework "
            "is: pip install --no-build-isolation ."
        )
    folder = cache and _private_folder(folders[0])
    if not folder:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="cadre-"))
        return _build(shim, compiler, sources, Path(temporary))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_trusted(folder / shim.file_name):
            return folder / shim.file_name
        for left_by_a_killed_build in folder.glob(".building-*"):
            shutil.rmtree(left_by_a_killed_build, ignore_errors=True)
        return _build(shim, compiler, sources, folder)


def _cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "cadre"


def _private_folder(folder):
    """The folder, made if need be, with nobody but its owner let in (0700); None if it can't be used or isn't ours.

    What lies there is loaded into the process, so nobody else may be able to put a file there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return None
        if stat.S_IMODE(info.st_mode) != 0o700:
            folder.chmod(0o700)
        return folder if os.access(folder, os.W_OK | os.X_OK) else None
    except OSError:
        return None


def _is_trusted(file):
    """True for a file that is ours and that nobody else can write."""
    try:
        info = file.lstat()
    except OSError:
        return False
    others_write = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not others_write


@dataclasses.dataclass(frozen=True)
class _Sources:
    """Where a shim's sources lie: in the package, or in the repository it is used from."""

    folder: Path
    include: Path  # holds cadre/c_api.h
    exports: Path  # the linker's list of what is exported

    @staticmethod
    def of(shim):
        source = _library.package_file(shim.name, "csrc", shim.sources[0])
        header = _library.package_file("include", "cadre", _ABI_HEADERS[0])
        if source and header:
            return _Sources(source.parent, header.parents[1], source.parent / _EXPORTS)
        repository = _library.package_directories()[0].parents[2]
        bindings, include = repository / "bindings", repository / "include"
        source = bindings / shim.name / shim.sources[0]
        if source.is_file() and (include / "cadre" / _ABI_HEADERS[0]).is_file():
            return _Sources(source.parent, include, bindings / _EXPORTS)
        raise ImportError(
            f"{shim.front}: neither lib/{shim.file_name} nor its sources are in the package: "
            "install it again (pip install .)"
        )


@dataclasses.dataclass(frozen=True)
class _Compiler:
    command: tuple[str, ...]
    version: str  # its first line, empty if it doesn't run

    @property
    def identity(self):
        return hashlib.sha256("\0".join((*self.command, self.version)).encode()).hexdigest()[:16]


def _compiler():
    """What CXX names, else the first of c++, g++ and clang++; None if there is none."""
    command = shlex.split(os.environ.get("CXX", "")) or [
        shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    ]
    if not command[0]:
        return None
    try:
        version = subprocess.run(
            [*command, "--version"], check=False, capture_output=True, text=True
        )
    except OSError:
        return _Compiler(tuple(command), "")
    return _Compiler(tuple(command), version.stdout.partition("\n")[0])


def _cache_key(shim, sources):
    digest = hashlib.sha256()
    ours = [sources.folder / name for name in (*shim.sources, *shim.headers)]
    ours += [sources.include / "cadre" / name for name in _ABI_HEADERS]
    for path in (*ours, sources.exports):
        digest.update(path.read_bytes())
    rest = (*_FLAGS, *shim.flags, *shim.libraries, _library.version, platform.machine())
    digest.update(" ".join(rest).encode())
    return f"{shim.framework}-{digest.hexdigest()[:16]}"


def build_command(shim, compiler, sources, output):
    """The one command that makes a shim. libcadre is found by its soname, already loaded."""
    return [
        *compiler.command,
        *_FLAGS,
        f"-Wl,--version-script={sources.exports}",
        f"-I{sources.include}",
        *shim.flags,
        *(str(sources.folder / name) for name in shim.sources),
        str(_library.path),
        *shim.libraries,
        "-o",
        str(output),
    ]


def _build(shim, compiler, sources, folder):
    """Compiles into `folder` and returns the file. It appears there in one step: nobody loads half a file."""
    print(
        f"{shim.front}: compiling {shim.file_name} for {shim.framework}, once (about ten seconds) ...",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
        unfinished = Path(scratch) / shim.file_name
        command = build_command(shim, compiler, sources, unfinished)
        # The compiler's own temporary files, too, go where they are removed if it is killed.
        environment = {**os.environ, "TMPDIR": scratch}
        try:
            result = subprocess.run(
                command, check=False, capture_output=True, text=True, env=environment
            )
        except OSError as error:
            raise ImportError(
                f"{shim.front}: the compiler {command[0]!r} can't be run: {error}"
            ) from error
        if result.returncode:
            raise ImportError(
                f"{shim.front}: {shim.file_name} could not be compiled: {shlex.join(command)}\n{result.stderr[-4000:]}"
            )
        unfinished.chmod(0o700)
        return unfinished.replace(folder / shim.file_name)
