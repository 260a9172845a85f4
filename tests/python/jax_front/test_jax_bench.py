"""The benchmark of the JAX front runs, checks every contender and writes what the goals are compared with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench/rivals/jax_ragged_dot.py"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="its GPU shapes are large")
def test_every_case_is_measured(tmp_path):
    output = tmp_path / "results.json"
    arguments = ["--shape", "8 experts", "--repeats", "1", "--sample-s", "0", "--json", str(output)]
    result = subprocess.run(
        [sys.executable, str(BENCH), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(output.read_text())
    assert str(tmp_path) not in document["command"]
    rows = document["results"]
    assert [row["case"] for row in rows] == ["forward", "dlhs", "drhs"]
    for row in rows:
        assert row["left_out"] == {} and list(row["rivals"]) == ["lax"]
        assert row["max_error"] < 1e-5
        assert all(row[name] > 0 for name in ("median_s", "program_s", "library_s", "of_dense"))
