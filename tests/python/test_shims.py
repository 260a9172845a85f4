"""The cache of shims compiled at first use: who may write it, what it is keyed by, and what is left behind."""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest
from cadre import _shims

SOURCE = 'extern "C" int cadre_tiny_answer() { return 42; }\n'


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A shim of one line, with a cache and a temporary folder of its own."""
    for name in ("bindings", "cache", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "bindings/tiny.cc").write_text(SOURCE)
    (tmp_path / "bindings/exports.map").write_text("{ global: cadre_*; local: *; };\n")
    include = Path(_shims._Sources.of(torch_like()).include)
    sources = _shims._Sources(tmp_path / "bindings", include, tmp_path / "bindings/exports.map")
    monkeypatch.setattr(_shims._Sources, "of", staticmethod(lambda shim: sources))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    shim = _shims.Shim("tiny", ("tiny.cc",), (), "framework-1.0", ())
    return types.SimpleNamespace(
        shim=shim,
        sources=tmp_path / "bindings",
        cache=tmp_path / "cache/cadre",
        temporary=tmp_path / "temporary",
    )


def torch_like():
    return _shims.Shim("torch", ("cadre_torch.cc",), (), "torch", ())


def built(tiny):
    with _shims.found(tiny.shim) as path:
        assert path.is_file()
        return path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def compiler_of_version(folder, name, version):
    """A compiler that differs from the system's in what it says of its version."""
    path = folder / name
    real = shutil.which("c++")
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def test_the_cache_is_private_and_used_again(tiny, capfd):
    umask = os.umask(0)
    try:
        first = built(tiny)
    finally:
        os.umask(umask)
    folders = [tiny.cache, *(path for path in tiny.cache.rglob("*") if path.is_dir())]
    assert {mode(path) for path in (tiny.cache, first.parent)} == {0o700}, folders
    assert not mode(first) & 0o077
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("cadre.tiny: compiling cadre_tiny.so for framework-1.0")
    assert built(tiny) == first
    assert capfd.readouterr().err == ""


def test_a_cache_that_others_could_write_is_closed_and_its_file_built_again(tiny, capfd):
    first = built(tiny)
    tiny.cache.chmod(0o777)
    first.chmod(0o777)
    capfd.readouterr()
    assert built(tiny) == first
    assert mode(tiny.cache) == 0o700
    assert not mode(first) & 0o077
    assert "compiling" in capfd.readouterr().err


@pytest.mark.parametrize("place", ["another owner's", "a file", "a link"])
def test_a_cache_that_is_not_ours_is_left_alone_and_nothing_stays_in_the_temporary_folder(
    tiny, monkeypatch, place
):
    if place == "another owner's":
        tiny.cache.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: tiny.cache.stat().st_uid + 1)
    elif place == "a file":
        tiny.cache.write_text("")
    else:
        (tiny.temporary.parent / "elsewhere").mkdir()
        tiny.cache.symlink_to(tiny.temporary.parent / "elsewhere")
    with _shims.found(tiny.shim) as path:
        assert path.is_file() and tiny.temporary in path.parents
        assert mode(path.parent) == 0o700
    assert not list(tiny.temporary.iterdir())
    assert place == "a file" or not list(tiny.cache.iterdir())


def test_nothing_is_left_behind_when_the_compiler_fails(tiny):
    (tiny.sources / "tiny.cc").write_text("no C++\n")
    with pytest.raises(ImportError, match="cadre.tiny: cadre_tiny.so could not be compiled: .*"):
        built(tiny)
    assert not list(tiny.temporary.iterdir())
    assert [path.name for path in tiny.cache.rglob("*") if path.is_file()] == ["lock"]


def test_what_a_killed_build_left_is_removed(tiny):
    first = built(tiny)
    (first.parent / ".building-killed").mkdir()
    first.unlink()
    assert built(tiny) == first
    assert sorted(path.name for path in first.parent.iterdir()) == ["cadre_tiny.so", "lock"]


def test_another_compiler_builds_anew_and_without_one_an_older_build_serves(tiny, monkeypatch):
    monkeypatch.setenv("CXX", compiler_of_version(tiny.sources, "cxx", "cxx 1.0"))
    first = built(tiny)
    compiler_of_version(tiny.sources, "cxx", "cxx 2.0")
    second = built(tiny)
    assert second != first
    assert built(tiny) == second
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert built(tiny) in (first, second)
    shutil.rmtree(tiny.cache)
    with pytest.raises(ImportError, match="there is no C\\+\\+ compiler"):
        built(tiny)


def test_a_blank_cxx_is_none(tiny, monkeypatch):
    monkeypatch.setenv("CXX", " ")
    assert built(tiny).is_file()


def test_another_source_or_framework_builds_anew(tiny):
    first = built(tiny)
    (tiny.sources / "tiny.cc").write_text(SOURCE + "// changed\n")
    assert built(tiny) != first
    (tiny.sources / "tiny.cc").write_text(SOURCE)
    assert built(tiny) == first
    tiny.shim = _shims.Shim("tiny", ("tiny.cc",), (), "framework-1.1", ())
    assert built(tiny) != first


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_shims_export_their_own_functions_alone(framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    module, description = {
        "torch": ("cadre.torch._shim", "description"),
        "jax": ("cadre.jax._handlers", "shim"),
    }[framework]
    code = (
        f"import {module} as m, cadre._shims as s\nwith s.found(m.{description}()) as p: print(p)"
    )
    # Both frameworks change the environment when they are imported.
    path = output_of(sys.executable, "-c", code).strip()
    printed = output_of("nm", "--dynamic", "--defined-only", "--format=posix", path)
    elf = output_of("readelf", "--dynamic", "--program-headers", "--wide", path)
    names = [line.split()[0] for line in printed.splitlines()]
    assert names and all(name.startswith(f"cadre_{framework}_") for name in names)
    assert "GNU_RELRO" in elf and "BIND_NOW" in elf
