"""The JAX examples run, their losses fall; experts on several devices, and those inside tokamax, have the same gradients."""

import runpy
from pathlib import Path

import jax
import pytest

try:
    # Here, since it sets an environment variable, which no test may.
    import tokamax
    from absl import flags

    # It reads its flags from the command line unless somebody has, and pytest's are none of them.
    flags.FLAGS.mark_as_parsed()
except ModuleNotFoundError:
    tokamax = None

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_example_trains(capsys):
    runpy.run_path(str(EXAMPLES / "06_jax_moe.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "loss" in said
    assert f"experts on {jax.device_count()} device(s): the same gradients" in said


@pytest.mark.skipif(
    tokamax is None,
    reason='tokamax is not installed; to run this: make test FRONTS="torch jax tokamax"',
)
def test_example_inside_tokamax(capsys):
    runpy.run_path(str(EXAMPLES / "16_tokamax.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "cadre inside tokamax: the values and gradients of its own implementation" in said
    assert "in 20 steps" in said
