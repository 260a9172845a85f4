"""bench/rivals/torch_cpu_ladder.py checks, times and writes both layouts of both types, and refuses a wrong result."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

RIVALS = Path(__file__).resolve().parents[3] / "bench" / "rivals"


@pytest.fixture
def ladder(monkeypatch):
    """The script as a module, its layer small enough for a test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(RIVALS))
    import torch_cpu_ladder

    for name, value in {"K": 64, "N": 96, "CACHES": 0, "PAUSE_S": 0}.items():
        monkeypatch.setattr(torch_cpu_ladder, name, value)
    yield torch_cpu_ladder
    for name in set(sys.modules) - before:
        if str(RIVALS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_row_is_checked_timed_and_written(ladder, tmp_path, capsys):
    path = tmp_path / "ladder.json"
    assert ladder.main(["--rows", "1", "--rows", "40", "--rounds", "1", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["command"].endswith("--rows 1 --rows 40 --rounds 1 --json FILE")
    rows = document["results"]
    cases = {(row["op"], row["dtype"], row["rows_per_group"]) for row in rows}
    assert len(cases) == len(rows) == 2 * 2 * 2
    for row in rows:
        assert row["m"] == row["num_groups"] * row["rows_per_group"]
        assert row["error_over_tolerance"] <= 1 and row["times_torch"] > 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


def test_a_wrong_result_ends_the_run(ladder, monkeypatch):
    calls_of = ladder.calls_of

    def calls_with_zeros(layer):
        zeros = torch.zeros(layer.m, layer.n, dtype=layer.dtype)
        return {**calls_of(layer), "cadre": lambda: lambda: zeros.clone()}

    monkeypatch.setattr(ladder, "calls_of", calls_with_zeros)
    with pytest.raises(ArithmeticError, match="cadre, dgrad, 40 rows"):
        ladder.main(["--rows", "40", "--dtype", "f32", "--rounds", "1"])


@pytest.mark.parametrize("option", ["--rounds", "--rows"])
def test_bad_usage(ladder, option, capsys):
    with pytest.raises(SystemExit):
        ladder.main([option, "0"])
    assert "expected 1 or more" in capsys.readouterr().err
