"""The JAX example runs and its loss falls."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "06_jax_moe.py"


def test_example_trains(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "loss" in capsys.readouterr().out
