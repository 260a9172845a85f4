#!/usr/bin/env python3
"""cadre.torch.gmm against torch's grouped_mm on a CPU: the ladder of `cadre bench --device cpu`, in one process.

Every result is checked first against products in float64. Then both are timed in turn, in a new order every round. They bring an
OpenMP runtime each, whose idle threads spin for a while: a turn is a pause, an untimed call, and the median of three. A
ratio is the median over the rounds.

    python bench/rivals/torch_cpu_ladder.py --json bench/results/xeon-amx/rivals_torch.json
    python bench/rivals/torch_cpu_ladder.py --rows 1024 --dtype f32 --rounds 15
"""

import argparse
import os
import random
import statistics
import sys
import time

import result_file
import torch
from rival_calls import CASES, calls_of, worst_error

K, N = 2048, 1536
ROWS = (1, 4, 16, 64, 256, 1024)
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
CONTENDERS = ("cadre", "torch grouped_mm")
PAUSE_S = 0.03
TIMED_CALLS = 3
# Up to so many rows the weights are read from memory: with as many experts as fill the cache so many times.
MEMORY_BOUND_ROWS, CACHES = 16, 2


def largest_cache_bytes():
    folder = "/sys/devices/system/cpu/cpu0/cache"
    sizes = [0]
    for index in os.listdir(folder) if os.path.isdir(folder) else []:
        if index.startswith("index"):
            with open(f"{folder}/{index}/size") as file:
                sizes.append(int(file.read().strip().removesuffix("K")) << 10)
    return max(sizes)


class Layer:
    """Equal groups of random rows. Every expert has the same random weights, shifted by another number of places."""

    device = "cpu"

    def __init__(self, case, rows, dtype):
        self.case, self.dtype, self.k, self.n = case, dtype, K, N
        self.experts = min(max(2048 // rows, 2), 16)
        if rows <= MEMORY_BOUND_ROWS:
            expert_bytes = K * N * dtype.itemsize
            self.experts = max(self.experts, CACHES * largest_cache_bytes() // expert_bytes + 1)
        self.sizes = [rows] * self.experts
        self.m = rows * self.experts
        self.group_sizes = torch.tensor(self.sizes, dtype=torch.int32)
        self.ends = torch.cumsum(self.group_sizes, 0, dtype=torch.int32)
        generator = torch.Generator().manual_seed(2)
        self.x = torch.randn(self.m, K, generator=generator).to(dtype)
        dims = (N, K) if case == "forward" else (K, N)
        values = torch.randn(K * N, generator=generator).mul_(K**-0.5).to(dtype)
        self.w = torch.empty((self.experts, *dims), dtype=dtype)
        for expert in range(self.experts):
            self.w[expert] = values.roll(7919 * expert).view(dims)
        self._references = None

    def spans(self):
        rows = self.sizes[0]
        return ((expert, expert * rows, (expert + 1) * rows) for expert in range(self.experts))

    def references(self, make):
        if self._references is None:
            self._references = make(self)
        return self._references


def seconds_of_turn(call):
    time.sleep(PAUSE_S)
    call()
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(case, rows, dtype, rounds):
    layer = Layer(case, rows, DTYPES[dtype])
    makers = calls_of(layer)
    calls = {name: makers[name]() for name in CONTENDERS}
    errors = {name: worst_error(layer, call) for name, call in calls.items()}
    for name, error in errors.items():
        if not error <= 1:
            raise ArithmeticError(f"{name}, {case}, {rows} rows: {error:.2g} times the tolerance")
    times = {name: [] for name in CONTENDERS}
    order = random.Random(1)
    for _ in range(rounds):
        for name in order.sample(CONTENDERS, len(CONTENDERS)):
            times[name].append(seconds_of_turn(calls[name]))
    ours, theirs = (times[name] for name in CONTENDERS)
    median = statistics.median(ours)
    return {
        "op": CASES[case],
        "dtype": dtype,
        "rows_per_group": rows,
        "m": layer.m,
        "k": K,
        "n": N,
        "num_groups": layer.experts,
        "torch_threads": torch.get_num_threads(),
        "rounds": rounds,
        "median_s": median,
        "gflops": 2 * layer.m * K * N / median / 1e9,
        "times_torch": statistics.median(b / a for a, b in zip(ours, theirs)),
        "error_over_tolerance": errors["cadre"],
        "rivals": {"torch grouped_mm": {"median_s": statistics.median(theirs)}},
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, action="append", help="may be repeated; default: all")
    parser.add_argument("--dtype", choices=list(DTYPES), action="append", help="default: both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or any(rows < 1 for rows in options.rows or []):
        parser.error("--rounds and --rows, expected 1 or more")
    import cadre

    command = result_file.command_of(
        "torch_cpu_ladder.py", sys.argv[1:] if arguments is None else arguments
    )
    machine = {
        "model": result_file.cpu_name(),
        "logical_cpus": os.cpu_count(),
        "torch": torch.__version__,
        "cadre": cadre.__version__,
    }
    results = []
    for dtype in options.dtype or DTYPES:
        for rows in options.rows or ROWS:
            for case in ("dgrad", "forward"):  # weights [k, n] and [n, k]
                row = measure(case, rows, dtype, options.rounds)
                results.append(row)
                print(
                    f"{row['op']:7} {dtype:5} {rows:5} rows  cadre {row['gflops']:8.1f} GFLOP/s,"
                    f" {row['times_torch']:.2f} times torch",
                    flush=True,
                )
                if options.json:
                    result_file.write(options.json, command, machine, results)
    if options.json:
        result_file.complete(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
