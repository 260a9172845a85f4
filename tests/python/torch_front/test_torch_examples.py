"""The PyTorch examples run and say what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def output_of(name):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_moe_block():
    text = output_of("04_torch_moe_block.py")
    assert (
        "the grouped block gives the loop's outputs and gradients" in text and "in 20 steps" in text
    )


@pytest.mark.parametrize("line", ["sizes [256, 0, 0, 0]: 256 rows, gradients of experts [0]"])
def test_cuda_graph(line):
    assert line in output_of("05_torch_cuda_graph.py")
