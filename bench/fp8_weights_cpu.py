"""Products of FP8 weights beside the same of bf16 weights on a CPU, in turn, on one thread.

Prints and writes, for some numbers of rows an expert, the least and the median CPU time of a call (time on the core, not
on the wall: other processes of a shared machine then cost caches and memory bandwidth, not time) and the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import cadre
import ml_dtypes
import numpy as np


def cpu_time(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,16,64", help="rows an expert")
    parser.add_argument("--shape", default="2048x1536", help="k x n of an expert's weights")
    parser.add_argument("--megabytes", type=int, default=256, help="of bf16 weights")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    k, n = (int(size) for size in options.shape.split("x"))
    experts = max(options.megabytes * 2**20 // (2 * k * n), 1)
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((experts, n, k), dtype=np.float32)
    w16 = weights.astype(ml_dtypes.bfloat16)
    w8 = cadre.quantize(weights, "block_128")
    del weights
    results = []
    for rows in (int(text) for text in options.rows.split(",")):
        x = rng.standard_normal((experts * rows, k), dtype=np.float32)
        sizes = np.full(experts, rows, np.int32)
        x16 = x.astype(ml_dtypes.bfloat16)
        x8 = cadre.quantize(x, "block_128", sizes)
        calls = {
            "bf16": lambda: cadre.gmm(x16, w16, sizes, transpose_rhs=True),
            "e4m3 block_128": lambda: cadre.gmm(x8, w8, sizes, transpose_rhs=True),
        }
        outs = {name: np.asarray(call(), np.float32) for name, call in calls.items()}
        error = np.linalg.norm(outs["e4m3 block_128"] - outs["bf16"]) / np.linalg.norm(outs["bf16"])
        assert error < 0.1, error  # of quantisation: 3 bits of fraction in both operands
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.rounds):
            for name, call in calls.items():
                times[name].append(cpu_time(call))
        row = {"rows": rows, "k": k, "n": n, "experts": experts, "relative_difference": float(error)}
        for name, values in times.items():
            row[name] = {"least_ms": min(values) * 1e3, "median_ms": statistics.median(values) * 1e3}
        row["times_as_fast_least"] = min(times["bf16"]) / min(times["e4m3 block_128"])
        pairs = [a / b for a, b in zip(times["bf16"], times["e4m3 block_128"], strict=True)]
        row["times_as_fast_median_of_rounds"] = statistics.median(pairs)
        results.append(row)
        print(json.dumps(row), flush=True)
    if options.json:
        from this_machine import machine

        threads = [f"{name}={os.environ[name]}" for name in ("CADRE_NUM_THREADS",) if name in os.environ]
        report = {
            "command": " ".join([*threads, "python bench/fp8_weights_cpu.py", *sys.argv[1:]]),
            "machine": machine(),
            "results": results,
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
