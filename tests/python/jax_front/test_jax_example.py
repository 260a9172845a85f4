"""The JAX example runs, its loss falls, and its experts on several devices have the same gradients."""

import runpy
from pathlib import Path

import jax

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "06_jax_moe.py"


def test_example_trains(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert "loss" in said
    assert f"experts on {jax.device_count()} device(s): the same gradients" in said
