"""The public functions carry type hints, and type checkers understand them as users write calls (tests/typing)."""

import importlib
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "typing"
MODULES = {
    "numpy": ("cadre", "cadre.scale"),
    "torch": (
        "cadre.torch",
        "cadre.torch.compat.grouped_gemm.ops",
        "cadre.torch.compat.grouped_gemm.backend",
        "cadre.torch.compat.transformer_engine",
        "cadre.torch.compat.transformer_engine_ops",
        "cadre.torch.expert_parallel",
        "cadre.torch.integrations.megatron",
        "cadre.torch.integrations.vllm",
    ),
    "jax": ("cadre.jax", "cadre.jax.megablox", "cadre.jax.ejkernel", "cadre.jax.maxtext", "cadre.jax.expert_parallel"),
}
#: What a parameter of these checks may be called without a hint.
_OF_METHODS = ("self", "cls")


def public_functions(module):
    """(name, function) of what the module offers: its functions, and the public methods of its classes."""
    listed = getattr(module, "__all__", ())
    for name, each in vars(module).items():
        home = getattr(each, "__module__", "")
        if name not in listed and (home != module.__name__ or name.startswith("_")):
            continue
        if inspect.isclass(each):
            for method, value in vars(each).items():
                value = value.fget if isinstance(value, property) else value
                value = getattr(value, "__func__", value)
                if inspect.isfunction(value) and (method in ("__init__", "forward") or method[0] != "_"):
                    yield f"{name}.{method}", value
        elif callable(each):
            yield name, each


def without_hints(module):
    missing = []
    for name, function in public_functions(module):
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.name not in _OF_METHODS]
        missing += [f"{name}: {p.name}" for p in parameters if p.annotation is p.empty]
        if signature.return_annotation is signature.empty:
            missing.append(f"{name}: its result")
    return missing


@pytest.mark.parametrize("front", MODULES)
def test_every_public_function_is_annotated(front):
    if importlib.util.find_spec(front) is None:
        pytest.skip(f"{front} is not installed")
    # In a process of its own: a framework started here would keep what it set for every other test.
    code = f"""
import importlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_types import public_functions, without_hints
modules = [importlib.import_module(name) for name in {MODULES[front]!r}]
assert sum(len(list(public_functions(module))) for module in modules) > 5
missing = [each for module in modules for each in without_hints(module)]
assert not missing, missing
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def checked(tmp_path):
    """checked(command): runs a type checker from the repository on the sources; returns what it printed."""

    def run(*command):
        source = str(ROOT / "bindings" / "python")
        environment = {**os.environ, "PYTHONPATH": source, "MYPYPATH": source}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
        )
        return result.returncode, result.stdout + result.stderr

    return run


def mypy(tmp_path):
    pytest.importorskip("mypy")
    return (sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path))


@pytest.mark.parametrize("front", [pytest.param(each, marks=[] if each == "numpy" else pytest.mark.slow) for each in MODULES])
def test_mypy_accepts_right_calls_and_refuses_wrong_ones(front, checked, tmp_path):
    if importlib.util.find_spec(front) is None:
        pytest.skip(f"{front} is not installed")
    code, said = checked(*mypy(tmp_path), str(PROGRAMS / f"{front}_program.py"))
    assert code == 0, said


def test_mypy_sees_a_wrong_call(checked, tmp_path):
    """That a checker finds nothing must not be because it doesn't look."""
    program = tmp_path / "program.py"
    program.write_text("import cadre\n\ncadre.gmm(1, 2)\ncadre.backends(3)\n")
    code, said = checked(*mypy(tmp_path), str(program))
    assert code == 1 and "group_sizes" in said and "backends" in said, said


@pytest.mark.slow
def test_pyright_accepts_right_calls_and_refuses_wrong_ones(checked, tmp_path):
    command = shutil.which("pyright", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("pyright is not installed")
    if any(importlib.util.find_spec(front) is None for front in ("jax", "torch")):
        pytest.skip("jax or torch is not installed")
    code, said = checked(command, "--pythonpath", sys.executable, str(PROGRAMS))
    assert code == 0, said
    program = tmp_path / "program.py"
    program.write_text("import cadre\n\ncadre.gmm(1, 2)\n")
    code, said = checked(command, "--pythonpath", sys.executable, str(program))
    assert code == 1 and "group_sizes" in said, said
