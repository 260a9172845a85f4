"""The benchmark of the JAX front runs, checks every contender and writes what the goals are compared with."""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench/rivals/jax_ragged_dot.py"


pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the benchmark's GPU shapes are large"
)


def measured(tmp_path, *arguments):
    output = tmp_path / "results.json"
    common = ["--shape", "8 experts", "--repeats", "1", "--sample-s", "0", "--json", str(output)]
    result = subprocess.run(
        [sys.executable, str(BENCH), *common, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(output.read_text())
    assert str(tmp_path) not in document["command"]
    assert document["environment"]["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS=cpu " in document["command"]
    return document["results"]


def test_every_case_is_measured(tmp_path):
    rows = measured(tmp_path)
    assert [row["case"] for row in rows] == ["forward", "dlhs", "drhs"]
    for row in rows:
        assert row["left_out"] == {} and list(row["rivals"]) == ["lax"]
        assert row["max_error"] < 1e-5
        assert all(row[name] > 0 for name in ("median_s", "program_s", "library_s", "of_dense"))
        ratios = ("library_over_cadre", "library_over_program")
        controls = ("cadre_again_over_cadre", "library_again_over_library")
        assert tuple(row["paired"]) == ratios + controls
        for ratio in row["paired"].values():
            low, high = ratio["quartiles"]
            assert 0 < low <= ratio["median"] <= high and ratio["rounds"] == row["repeats"] == 1


def test_rounds_read_the_same_forwards_and_backwards(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import jax_pairing

    taken = []
    clock = lambda name: taken.append(name) or len(taken) + (0 if name == "b" else 10)
    times = jax_pairing.rounds(["a", "b", "c"], clock, 4, 0.0, np.random.default_rng(0))
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}
    for turn in range(3):
        order = taken[6 * turn : 6 * turn + 6]
        assert order == order[::-1] and sorted(order[:3]) == ["a", "b", "c"]
    # The drift of one tick a timing is the same for all.
    assert all(a - b == 10 and a == c for a, b, c in zip(*times.values(), strict=True))
    assert jax_pairing.ratio([1.0, 2.0, 4.0], [1.0, 1.0, 1.0])["median"] == 2.0


def test_rounds_end_when_the_question_is_decided(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import jax_pairing

    for decided_at, expected in ((0, 6), (8, 8), (99, 20)):
        decided = lambda times, at=decided_at: len(times["a"]) >= at
        random = np.random.default_rng(0)
        times = jax_pairing.rounds(["a", "b"], lambda name: 1.0, 20, np.inf, random, decided)
        assert len(times["a"]) == len(times["b"]) == expected


@pytest.mark.parametrize(
    "rounds, rank, confidence", [(3, 0, 0.75), (8, 0, 0.992), (9, 1, 0.961), (27, 7, 0.981)]
)
def test_the_interval_of_a_median_is_as_sure_as_it_says(monkeypatch, rounds, rank, confidence):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import jax_pairing

    interval, sure = jax_pairing.median_interval(list(range(rounds)))
    assert interval == [rank, rounds - 1 - rank]
    assert abs(sure - confidence) < 1e-3
    # By trial, with values whose median is 0.
    trials = np.sort(np.random.default_rng(3).standard_normal((20000, rounds)), axis=1)
    covered = np.mean((trials[:, rank] < 0) & (trials[:, rounds - 1 - rank] > 0))
    assert abs(covered - confidence) < 0.01


def test_zeros_are_timed_once_random_operands_were_right(tmp_path):
    common = ("--case", "forward", "--without", "lax", "--dtype", "bfloat16")
    rows = measured(tmp_path, *common, "--operands", "random", "--operands", "zeros")
    assert [row["operands"] for row in rows] == ["random", "zeros"]
    # Of zeros there would be no error at all.
    assert all(1e-4 < row["max_error"] < 0.01 and row["rivals"] == {} for row in rows)


@pytest.mark.slow
def test_rivals_are_measured_in_processes_of_their_own(tmp_path):
    cases = ("--case", "forward", "--case", "drhs")
    rows = measured(tmp_path, *cases, "--apart", "100", "--processes", "2")
    assert [row["case"] for row in rows] == ["forward", "drhs"]
    for row in rows:
        assert row["left_out"] == {} and list(row["rivals"]) == ["lax"]
        assert row["median_s"] > 0 and row["rivals"]["lax"]["median_s"] > 0
        over = row["rivals"]["lax"]["over_cadre_in_its_process"]
        assert over == row["rivals"]["lax"]["median_s"] / row["median_s"]
        assert (row["m"], row["k"], row["n"], row["num_groups"]) == (512, 512, 512, 8)


@pytest.mark.parametrize(
    "limit, reason",
    [
        (("--apart", "0.01"), "not compiled in 0.01 s"),
        (("--apart", "9", "--limit-s", "0"), "not tried: out of time"),
    ],
)
def test_a_rival_that_takes_too_long_is_left_out_by_name(tmp_path, limit, reason):
    (row,) = measured(tmp_path, "--case", "forward", *limit)
    assert row["rivals"] == {} and row["left_out"] == {"lax": reason}
    assert "median_s" not in row


#: Programs that stand for the process of a rival, and what is said of each.
ENDINGS = {
    "print('ready', flush=True); input(); import os; os.kill(os.getpid(), 6)": "its process ended with SIGABRT: without a word",
    "import sys; sys.exit('F1115 Check failed: no tile fits')": "its process ended with status 1: F1115 Check failed: no tile fits",
    "import sys; print('RESOURCE_EXHAUSTED: 68 GB\\nbye', file=sys.stderr); sys.exit(3)": "its process ended with status 3: RESOURCE_EXHAUSTED: 68 GB",
    "print('ready', flush=True); input(); import time; time.sleep(60)": "not done in its 3 s",
}


@pytest.mark.slow
def test_how_a_process_ended_is_its_result(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import jax_apart

    for at_once in (1, 4):
        for program, said in ENDINGS.items():
            jobs = [
                jax_apart.Job(("layer", 0, "forward", "random"), rival)
                for rival in ("mosaic", "lax")
            ]
            jax_apart.run(jobs, ["-c", program], (3.0, at_once, float("inf")))
            (row,) = jax_apart.merged(jobs, lambda *key: {"case": key[2]})
            assert row == {
                "case": "forward",
                "rivals": {},
                "left_out": {"mosaic": said, "lax": said},
            }


def test_a_process_that_the_whole_run_has_no_time_for_says_so(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import jax_apart

    waits = "print('ready', flush=True); input(); import time; time.sleep(60)"
    jobs = [jax_apart.Job(("layer", 0, "forward", "random"), "mosaic") for _ in range(2)]
    jax_apart.run(jobs, ["-c", waits], (30.0, 2, time.perf_counter() + 3.0))
    assert [job.reason for job in jobs] == ["not done: out of time", "not tried: out of time"]


class Simulated:
    """A queue of calls of which each takes the host and the device so long, and the clock that both are timed by."""

    def __init__(self, host_s, device_s):
        self.now = self.idle_from = 0.0
        self.host_s, self.device_s = host_s, device_s

    def perf_counter(self):
        return self.now

    def call(self):
        self.now += self.host_s
        self.idle_from = max(self.idle_from, self.now) + self.device_s
        end = self.idle_from
        return types.SimpleNamespace(end=end, is_ready=lambda: self.now >= end)

    def block_until_ready(self, result):
        """Returns late by 0.1 ms, as a host that is woken does."""
        self.now = max(self.now, result.end) + 1e-4


@pytest.mark.parametrize("calls", [1, 5, 16, 20])
@pytest.mark.parametrize("host_s, device_s, slower", [(6e-5, 1e-3, 1e-3), (2e-3, 1e-3, 2e-3)])
def test_a_queued_call_takes_as_long_as_the_slower_of_host_and_gpu(
    monkeypatch, calls, host_s, device_s, slower
):
    monkeypatch.syspath_prepend(str(BENCH.parent))
    import queue_timing

    simulated = Simulated(host_s, device_s)
    monkeypatch.setattr(queue_timing, "time", simulated)
    monkeypatch.setattr(queue_timing, "jax", simulated)
    measured_s = queue_timing.jax_seconds(simulated.call, (), calls, lead=1 + calls // 2)
    # Where the host is slower, the last call's time on the device and two late returns are in.
    late = 1.2e-3 / (calls + 1) if slower == host_s else 0
    assert slower * (1 - 1e-6) <= measured_s <= slower * (1 + 1e-6) + late
