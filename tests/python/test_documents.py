"""The Python blocks of the README run as they are printed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_has_python():
    assert BLOCKS


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block_runs(code):
    for framework in ("jax", "torch"):
        if f"import {framework}" in code and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    # In a process of its own: a framework started here would keep what it set for every other test.
    subprocess.run([sys.executable, "-c", code], check=True)
