"""The JAX examples run, their losses fall; experts on several devices, and those inside tokamax, have the same gradients."""

import importlib.util
import runpy
from pathlib import Path

import jax
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_example_trains(capsys):
    runpy.run_path(str(EXAMPLES / "06_jax_moe.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "loss" in said
    assert f"experts on {jax.device_count()} device(s): the same gradients" in said


def test_example_inside_tokamax(capsys):
    if importlib.util.find_spec("tokamax") is None:
        pytest.skip('tokamax is not installed; to run this: make test FRONTS="torch jax tokamax"')
    from absl import flags

    # It reads its flags from the command line unless somebody has, and pytest's are none of them.
    flags.FLAGS.mark_as_parsed()
    runpy.run_path(str(EXAMPLES / "16_tokamax.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "cadre inside tokamax: the values and gradients of its own implementation" in said
    assert "in 20 steps" in said
