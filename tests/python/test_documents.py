"""The Python blocks of the README, docs/numpy.md and docs/jax*.md run as they are printed; the README's figures are those of the
committed results, and its commands those that made them."""

import importlib.util
import json
import math
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/jax.md", "docs/jax-fp8.md", "docs/numpy.md")
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


README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "bench" / "results"


def _results(name):
    return json.loads((RESULTS / name).read_text())


def test_the_readmes_shares_of_dense_are_those_of_the_file():
    text = " ".join(README.split())
    rows = [
        row
        for row in _results("h200/cuda.json")["results"]
        if row.get("case") == "forward" and row["dtype"] == "bf16" and row["condition"] == "sustained"
    ]
    said = re.search(r"at (0\.\d+) of dense with 2048 rows an expert, (0\.\d+) with 512 and (0\.\d+) with 256", text)
    for share, count in zip(said.groups(), (2048, 512, 256), strict=True):
        shares = [row["of_dense"] for row in rows if row["m"] == count * row["num_groups"]]
        assert f"{math.exp(sum(map(math.log, shares)) / len(shares)):.2f}" == share, count


def test_the_readmes_times_of_lax_are_those_of_the_files():
    text = " ".join(README.split())
    for where, files in (
        (r"(\d+) to (\d+) times as long on an H200", ["h200/jax_rivals_apart.json"]),
        (r"(\d+) to (\d+) times on a CPU", ["zen4/jax_ragged_dot.json", "zen4/jax_ragged_dot_bf16.json"]),
    ):
        ratios = [
            rival["median_s"] / row["median_s"]
            for file in files
            for row in _results(file)["results"]
            for name, rival in row["rivals"].items()
            if name.startswith("lax")
        ]
        assert re.search(where, text).groups() == (f"{min(ratios):.0f}", f"{max(ratios):.0f}"), where


def test_the_readmes_layers_are_those_of_the_file():
    ratios = [
        row["sustained"][f"{what}_s"] / row["sustained"][f"torch_{what}_s"]
        for row in _results("h200/layer.json")["results"]
        if "torch_step_s" in row["sustained"]
        for what in ("forward", "step")
    ]
    said = re.search(r"takes (\d+) to (\d+) % of the time of torch's ops", " ".join(README.split()))
    assert said.groups() == (f"{100 * min(ratios):.0f}", f"{100 * max(ratios):.0f}")


MEASURING = [
    command
    for command in re.findall(r"`([^`]*)`", " ".join(README.split()))
    if "bench/" in command.partition(" -")[0] and command.count(" ") or "cadre bench --" in command
]


def test_the_readme_says_how_its_figures_are_measured():
    assert len(MEASURING) >= 5


@pytest.mark.parametrize("command", MEASURING)
def test_a_command_of_the_readme_is_one_that_made_results(command):
    """Its program, and options that a run which made a committed file had; `cadre bench` leaves out what isn't quoted."""
    words = shlex.split(command)
    ran = [shlex.split(part) for path in RESULTS.glob("*/*.json") for part in _commands(path)]
    if "bench" in words:
        assert words[0] == "build/cuda/cadre", "pip's command has no bench"
        assert any("cadre" in each and "bench" in each and "cuda" in each for each in ran)
        return
    wanted = [f"{one} {two}" for one, two in zip(words, words[1:] + [""]) if one.startswith("--")] + [
        word for word in words if word.endswith(".py")
    ]
    assert any(all(f"{option} ".replace("  ", " ") in " ".join(each) + " " for option in wanted) for each in ran), wanted


def _commands(path):
    said = json.loads(path.read_text()).get("command") or ""
    return [part.partition(" (")[0] for part in said.split("; ") if "'" not in part or part.count("'") % 2 == 0]
