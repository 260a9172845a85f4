"""The Python blocks of the README, docs/numpy.md and docs/jax.md run as they are printed."""

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/jax.md", "docs/numpy.md")
BLOCKS = [
    pytest.param(textwrap.dedent(code), id=f"{page}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    )
]


def test_every_page_has_python():
    found = " ".join(block.id for block in BLOCKS)
    assert all(page in found for page in PAGES)


@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(code):
    for framework in ("jax", "torch"):
        if f"import {framework}" in code and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    # In a process of its own: a framework started here would keep what it set for every other test.
    subprocess.run([sys.executable, "-c", code], check=True)
