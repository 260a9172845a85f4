"""Rivals in processes of their own, which may compile for minutes, fill the GPU's memory or be ended by XLA itself.

Every rival of every case is one process that times cadre beside it. Several compile at the same time, and none is timed before all
of these are done or gone; then one after another has the GPU to itself. XLA tunes lax's products while it compiles them, with trials on the
GPU: "lax" therefore compiles in its own turn. How a process ended is its result where it left no other.
"""

import contextlib
import dataclasses
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import result_file

#: Those that XLA tunes by trial.
TUNED = ("lax",)
#: The word of a process that is ready, and what it waits for then.
READY, GO = "ready", "go\n"


@dataclasses.dataclass
class Job:
    """One rival in one case."""

    key: tuple  # (shape, skew, case, operands)
    rival: str
    row: dict | None = None
    reason: str | None = None  # why there is no row


class Child:
    """The process of a job. `files` is a folder for its result and what it says."""

    def __init__(self, job, arguments, files):
        self.job = job
        self._json, self._log = f"{files}/row.json", Path(files) / "log.txt"
        shape, skew, case, operands = job.key
        chosen = ["--shape", shape, "--skew", str(skew), "--case", case, "--operands", operands]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments, *chosen, "--only", job.rival, "--json", self._json],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        os.set_blocking(self._process.stdout.fileno(), False)
        self._said = ""

    def settled(self):
        """Whether it waits for its turn or is gone."""
        return READY in self._heard() or self._process.poll() is not None

    def _heard(self):
        with contextlib.suppress(BlockingIOError, TypeError):
            self._said += self._process.stdout.read() or ""
        return self._said

    def take_turn(self, limit_s, otherwise):
        """Lets it run for this long at most, and notes what came of it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(GO)
            self._process.stdin.flush()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end(otherwise)
            return
        rows = result_file.read_results(self._json)
        self.job.row = rows[0] if rows else None
        if not rows:
            self.job.reason = f"its process ended {self._how()}: {self._last_words()}"

    def end(self, reason):
        """Ends it now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.job.reason = reason

    def _how(self):
        code = self._process.returncode
        return f"with {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    def _last_words(self):
        """The line of its log that says most: an error's, or the last."""
        lines = [line.strip() for line in self._log.read_text().splitlines() if line.strip()]
        telling = ("Check fail", "RESOURCE_EXHAUSTED", "Out of memory", "Error")
        errors = [line for line in lines if any(word in line for word in telling)]
        return (errors or lines or ["without a word"])[-1][:160]


def run(jobs, arguments, limits):
    """Runs every job. `limits`: seconds for a process (to get ready, and again to run), processes at once, when to stop."""
    each_s, at_once, deadline = limits
    tuned = [job for job in jobs if job.rival in TUNED]
    for kind in ([job for job in jobs if job.rival not in TUNED], tuned):
        for first in range(0, len(kind), at_once):
            _run_batch(kind[first : first + at_once], arguments, each_s, deadline)


def _run_batch(jobs, arguments, each_s, deadline):
    if time.perf_counter() > deadline:
        for job in jobs:
            job.reason = "not tried: out of time"
        return
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for number, job in enumerate(jobs):
            files = Path(folder) / str(number)
            files.mkdir()
            children.append(Child(job, arguments, files))
        try:
            give_up = min(deadline, time.perf_counter() + each_s)
            while not all(child.settled() for child in children) and time.perf_counter() < give_up:
                time.sleep(0.05)
            for child in children:
                if not child.settled():
                    child.end(f"not compiled in {each_s:g} s")
            for child in children:
                left_s = deadline - time.perf_counter()
                if child.job.reason is None and each_s <= left_s:
                    child.take_turn(each_s, f"not done in its {each_s:g} s")
                elif child.job.reason is None and left_s > 0:
                    child.take_turn(left_s, "not done: out of time")
        finally:
            for child in children:
                if child.job.row is None and child.job.reason is None:
                    child.end("not tried: out of time")


def merged(jobs, of_layer):
    """A row for each case. cadre's time is the median of its times in these processes."""
    rows = {}
    for job in jobs:
        row = rows.setdefault(job.key, {**of_layer(*job.key), "rivals": {}, "left_out": {}})
        if job.row is None:
            row["left_out"][job.rival] = job.reason
            continue
        row["left_out"].update(job.row["left_out"])
        row.setdefault("cadre_s", []).append(job.row["median_s"])
        row["max_error"] = max(row.get("max_error", 0), job.row["max_error"])
        for name, rival in job.row["rivals"].items():
            over = rival["median_s"] / job.row["median_s"]
            row["rivals"][name] = {**rival, "over_cadre_in_its_process": over}
    for row in rows.values():
        if "cadre_s" in row:
            row["median_s"] = statistics.median(row["cadre_s"])
            row["tflops"] = 2 * row["m"] * row["k"] * row["n"] / row["median_s"] / 1e12
    return list(rows.values())
