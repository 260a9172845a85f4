"""bench/rivals/torch_grouped_mm.py runs on a CPU, its result file holds what `make goals` reads, its check finds faults."""

import importlib
import json
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

RIVALS = Path(__file__).resolve().parents[3] / "bench" / "rivals"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(RIVALS / "torch_grouped_mm.py"), "--device", "cpu", *arguments],
        check=False,
        capture_output=True,
        text=True,
    )


def test_every_case_is_checked_timed_and_written(tmp_path):
    path = tmp_path / "rivals.json"
    done = run("--repeats", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert document["command"].endswith("--device cpu --repeats 1 --json FILE")
    assert document["machine"]["torch"] == torch.__version__
    rows = document["results"]
    cases = {(row["shape"], row["case"], row["skew"]) for row in rows}
    assert len(cases) == len(rows) == 4 * 2 + 2 * 2
    for row in rows:
        assert set(row["rivals"]) | set(row["left_out"]) == {"torch grouped_mm", "loop of torch.mm"}
        assert row["error_over_tolerance"] <= 1 and row["median_s"] > 0
        assert ("of_dense" in row) == (not row["shape"].startswith("decode"))
        assert ("weights_tb_per_s" in row) == (not row["case"].startswith("wgrad"))
        assert row["condition"] == "mixed"
        assert f"{row['shape']:24} {row['skew']} {row['case']}" in done.stdout


def test_a_sustained_call_is_timed_in_batches_behind_its_lead(monkeypatch):
    monkeypatch.syspath_prepend(str(RIVALS))
    timer = importlib.import_module("torch_grouped_mm").Timer("cpu")
    asked = []

    def batches(call, counts):  # a call takes 2 ms at first and 3 ms in the loop
        asked.append(counts)
        return [count * (2e-3 if len(asked) == 1 else 3e-3) for count in counts]

    monkeypatch.setattr(timer, "batches", batches)
    medians, calls = timer.alone("sustained", {"cadre": None})
    assert asked == [[4], [150] + [5] * 11]  # 0.3 s, then batches of 10 ms
    assert medians == pytest.approx({"cadre": 3e-3}) and calls == 11


def test_filters():
    done = run("--repeats", "1", "--op", "dgrad", "--shape", "small", "--skew", "1", "--dtype", "f16",
               "--rival", "loop of torch.mm")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "small" in line and " 1 dgrad" in line and "loop of torch.mm" in line
    assert "grouped_mm" not in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "nonesuch"], "--shape nonesuch, expected one of small"),
        (["--op", "conv"], "invalid choice: 'conv'"),
        (["--repeats", "0"], "--repeats 0, expected 1 or more"),
        (["--condition", "rested"], "--condition sustained and rested need --device cuda"),
    ],
)
def test_bad_usage(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(RIVALS))
    import rival_calls
    import torch_grouped_mm

    yield torch_grouped_mm, rival_calls
    for name in ("rival_calls", "torch_grouped_mm"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("case", ["forward", "dgrad", "wgrad", "wgrad_f32"])
def test_the_check_finds_every_planted_fault(modules, case):
    driver, calls = modules
    layer = driver.Layer(case, (3, 40, 24, 16), 0, torch.bfloat16, "cpu")
    right = calls.calls_of(layer)["loop of torch.mm"]()
    assert calls.worst_error(layer, right) <= 1

    def one_off():
        result = right()
        result[0].view(-1)[0] += 1
        return result

    kept = right().clone()
    faults = {
        "one element is off": one_off,
        "nothing is written": lambda: kept,
        "zeros": lambda: torch.zeros_like(kept),
    }
    for name, call in faults.items():
        assert calls.worst_error(layer, call) > 1, name


def test_a_gradient_of_an_expert_without_rows_must_be_zero(modules):
    driver, calls = modules
    layer = driver.Layer("wgrad", (64, 16, 8, 8), 0, torch.bfloat16, "cpu")
    empty = layer.sizes.index(0)
    right = calls.calls_of(layer)["cadre"]()
    assert calls.worst_error(layer, right) <= 1

    def call():
        result = right()
        result[empty, 0, 0] = 1e-3
        return result

    assert calls.worst_error(layer, call) > 1


def test_the_router_is_balanced_or_skewed(modules):
    driver, _ = modules
    balanced, skewed = driver.route(16, 4096, 0), driver.route(16, 4096, 1)
    assert sum(balanced) == sum(skewed) == 4096
    assert max(balanced) < 2 * min(balanced) and max(skewed) > 4 * min(skewed)


@pytest.mark.parametrize("name", ["triton_grouped.py", "cublas_grouped.py"])
def test_what_needs_a_gpu_is_at_least_python(name, tmp_path):
    py_compile.compile(str(RIVALS / name), cfile=str(tmp_path / "compiled"), doraise=True)
