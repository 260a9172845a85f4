"""Every public function says what shapes it takes and shows an example, and the examples give what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import doctest, importlib, inspect, re
import numpy as np
import cadre, cadre.scale
names = {{"np": np, "cadre": cadre}}
for alias, imported in {imports!r}.items():
    names[alias] = importlib.import_module(imported)
if "cadre.torch.expert_parallel" in {modules!r}:  # a group of one rank
    import tempfile, torch.distributed
    store = tempfile.NamedTemporaryFile()
    torch.distributed.init_process_group("gloo", init_method=f"file://{{store.name}}", rank=0, world_size=1)
SHAPE = re.compile(r"\\[[a-z0-9_*+ ]*(, [a-z0-9_*+ ]+)*\\]")
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)

def offered(module):
    listed = getattr(module, "__all__", None)
    for name, each in list(vars(module).items()):
        own = getattr(each, "__module__", "") == module.__name__ and not name.startswith("_")
        if (name in listed if listed else own) and (inspect.isroutine(each) or inspect.isclass(each)):
            yield name, each

faults, shown = [], 0
for path in {modules!r}:
    for name, each in offered(importlib.import_module(path)):
        if name in {no_example!r} or inspect.isclass(each) and issubclass(each, Exception):
            continue
        (test,) = [t for t in doctest.DocTestFinder(recurse=False).find(each, name, globs=dict(names))] or [None]
        if test is None or not test.examples:
            faults.append(f"{{path}}.{{name}} shows no example")
            continue
        # Without its example, which may index something.
        said = re.sub(r"(?m)^ *(>>>|\\.\\.\\.) .*$", "", each.__doc__)
        if name not in {no_arrays!r} and path != "cadre.scale" and not SHAPE.search(said):
            faults.append(f"{{path}}.{{name}} names no shape")
        runner.run(test)
        shown += 1
assert not faults, faults
assert shown >= {least} and not runner.failures, f"{{shown}} functions, {{runner.failures}} failures"
"""
#: What a function returns, never made by a user; and what can't be shown without a package or a program's arguments.
NO_EXAMPLE = ("PackedWeights", "Routing", "ScaledTensor", "Cluster", "Rates", "main", "install")
NO_ARRAYS = ("backends", "check", "register", "show_versions")
#: Configurations of a framework, of which an example names the shapes that matter elsewhere.
NO_ARRAYS += ("submodules", "experts", "grouped_experts", "over_cadre", "activation_options")
INTEGRATIONS = ("vllm", "megatron", *(name for name in ("transformers", "torchtitan") if importlib.util.find_spec(name)))
#: name: (modules, what else their examples know, the fewest functions that there are)
FRONTS = {
    "numpy": (("cadre", "cadre.scale"), {}, 12),
    "torch": (
        (
            "cadre.torch",
            "cadre.torch.compat.grouped_gemm.ops",
            "cadre.torch.compat.grouped_gemm.backend",
            "cadre.torch.compat.transformer_engine",
            "cadre.torch.compat.transformer_engine_ops",
        ),
        {"torch": "torch"},
        20,
    ),
    "torch integrations": (
        tuple(f"cadre.torch.integrations.{name}" for name in INTEGRATIONS),
        {"torch": "torch"},
        9,
    ),
    "torch expert_parallel": (("cadre.torch.expert_parallel",), {"torch": "torch"}, 7),
    "jax": (
        ("cadre.jax", "cadre.jax.megablox", "cadre.jax.ejkernel", "cadre.jax.maxtext", "cadre.jax.expert_parallel"),
        {"jax": "jax", "jnp": "jax.numpy"},
        14,
    ),
}


@pytest.mark.parametrize("front", FRONTS)
def test_every_public_function_names_shapes_and_shows_an_example_that_is_true(front):
    package = front.split()[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    modules, imports, least = FRONTS[front]
    # In a process of its own: a framework started here would keep what it set for every other test.
    code = RUN.format(modules=modules, imports=imports, no_example=NO_EXAMPLE, no_arrays=NO_ARRAYS, least=least)
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
