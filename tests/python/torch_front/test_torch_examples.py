"""The PyTorch examples, and the benchmark of the host cost, run and say what they should."""

import json
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


def test_fp8_layer():
    text = output_of("11_torch_fp8_layer.py")
    assert text.count("relative error of out 0.0") == 4 and "the loss falls: True" in text


def test_host_cost_is_measured(tmp_path):
    """The benchmark beside them, with few calls: it checks each result before it times it."""
    bench, output = EXAMPLES.parent / "bench/torch_host_cost.py", tmp_path / "results.json"
    arguments = ["--samples", "2", "--calls", "2", "--json", str(output)]
    subprocess.run([sys.executable, str(bench), *arguments], check=True, capture_output=True)
    rows = {row["op"]: row for row in json.loads(output.read_text())["results"]}
    assert rows["gmm, no_grad"]["calls_per_second"] > 0
    assert rows["torch.mm, no_grad"]["relative"] == 1.0
