"""Every public function shows an example in its docstring, and the examples give what they say."""

import importlib.util
import subprocess
import sys

import pytest

RUN = """
import doctest, importlib, inspect
import numpy as np
import cadre
front = importlib.import_module({module!r})
names = {{"np": np, "cadre": cadre}}
for alias, imported in {imports!r}.items():
    names[alias] = importlib.import_module(imported)
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
shown = 0
for name in front.__all__:
    each = getattr(front, name)
    if not (inspect.isroutine(each) or inspect.isclass(each)) or issubclass(each if inspect.isclass(each) else int, {results}):
        continue
    (test,) = [t for t in doctest.DocTestFinder(recurse=False).find(each, name, globs=dict(names))] or [None]
    assert test is not None and test.examples, f"{{name}} shows no example"
    runner.run(test)
    shown += 1
assert shown >= {least} and not runner.failures, f"{{shown}} functions, {{runner.failures}} failures"
"""
#: What a function returns, never made by a user: nothing to show. As text, for issubclass.
FRONTS = {
    "numpy": ("cadre", {}, "(cadre.PackedWeights,)", 6),
    "torch": ("cadre.torch", {"torch": "torch"}, "(cadre.torch.Routing, cadre.ScaledTensor)", 14),
    "jax": ("cadre.jax", {"jax": "jax", "jnp": "jax.numpy"}, "()", 8),
}


@pytest.mark.parametrize("front", FRONTS)
def test_every_public_function_shows_an_example_that_is_true(front):
    if importlib.util.find_spec(front) is None:
        pytest.skip(f"{front} is not installed")
    module, imports, results, least = FRONTS[front]
    # In a process of its own: a framework started here would keep what it set for every other test.
    code = RUN.format(module=module, imports=imports, results=results, least=least)
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
