#!/usr/bin/env python3
"""cadre.torch against torch's grouped_mm, a loop of torch.mm, cuBLAS's grouped call and Triton, in one process.

Every result is checked first against products in float64 (outputs poisoned); then all contenders are timed and medians are
compared, in the conditions of docs/benchmarking.md: mixed (in turn, in a new order every round, with an emptied L2),
sustained (each in a loop of its own) and rested (the first calls after a second of rest); a row for each. Loops and cuBLAS's grouped call know the sizes on
the host; cadre, grouped_mm and Triton read them on the device. A rival that fails is left out, with its reason; cadre
failing ends in 1.

    python bench/rivals/torch_grouped_mm.py --json bench/results/h200/rivals_torch.json
    python bench/rivals/torch_grouped_mm.py --condition sustained --op forward --rival "torch grouped_mm"
    python bench/rivals/torch_grouped_mm.py --op forward --shape qwen3-30b-w2 --skew 0 --repeats 21
    python bench/rivals/torch_grouped_mm.py --device cpu            # a few small layers, no GPU needed
"""

import argparse
import math
import platform
import random
import statistics
import sys
import time

import layers
import result_file
import torch
from rival_calls import CASES, calls_of, dense_of, worst_error

SHAPES = {**layers.TRAINING, **layers.DECODE}
CPU_SHAPES = {"small": (6, 192, 64, 96), "decode-small": (16, 24, 96, 64)}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
WARM_UPS = 2  # rounds at least, and so long that clocks have followed the power of what runs
WARM_UP_S = 0.15
FLUSH_BYTES = 256 << 20
# Behind the flush the GPU spins for about 0.1 ms, so that a call from Python is queued before its time begins.
SPIN_CYCLES = 180_000
CONDITIONS = ("sustained", "rested", "mixed")
# As in bench/cuda/conditions.h.
REST_S = 1.0
RESTED_CALLS = 10
SUSTAINED_LEAD_S = 0.3
SUSTAINED_BATCH_S = 0.01
SUSTAINED_BATCHES = 11


def shapes_of(device):
    return CPU_SHAPES if device == "cpu" else SHAPES


def route(experts, rows, skew, seed=1):
    """Rows of each expert when every row draws its expert with probability 1 / rank^skew, ranks dealt at random."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, experts + 1, dtype=torch.float64) ** -skew
    weights = weights[torch.randperm(experts, generator=generator)]
    drawn = torch.multinomial(weights, rows, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=experts).tolist()


class Layer:
    """Random operands of one case, and what its results are compared with."""

    def __init__(self, case, shape, skew, dtype, device):
        self.case, self.dtype, self.device = case, dtype, device
        self._references = None
        self.experts, self.m, self.k, self.n = shape
        self.sizes = route(self.experts, self.m, skew)
        self.group_sizes = torch.tensor(self.sizes, dtype=torch.int32, device=device)
        self.ends = torch.cumsum(self.group_sizes, 0, dtype=torch.int32)
        generator = torch.Generator(device).manual_seed(2)

        def normal(*dims, scale=1.0):
            values = torch.randn(dims, dtype=torch.float32, device=device, generator=generator)
            return values.mul_(scale).to(dtype)

        self.x = normal(self.m, self.k)
        if case.startswith("wgrad"):
            self.dy = normal(self.m, self.n, scale=(self.m / self.experts) ** -0.5)
            return
        dims = (self.n, self.k) if case == "forward" else (self.k, self.n)
        self.w = torch.empty((self.experts, *dims), dtype=dtype, device=device)
        for expert in range(self.experts):  # one by one: float32 copies of all would be large
            self.w[expert] = normal(*dims, scale=self.k**-0.5)

    def spans(self):
        """(expert, first row, end) of experts that have rows."""
        begin = 0
        for expert, rows in enumerate(self.sizes):
            if rows:
                yield expert, begin, begin + rows
            begin += rows

    def references(self, make):
        """What every contender's result is compared with, made once."""
        if self._references is None:
            self._references = make(self)
        return self._references

    @property
    def flops(self):
        return 2 * self.m * self.k * self.n

    @property
    def weight_bytes(self):
        return sum(1 for _ in self.spans()) * self.k * self.n * 2


class Timer:
    """Seconds of one call: by CUDA events behind a flush of the L2, or by the clock on a CPU."""

    def __init__(self, device):
        self.cuda = device == "cuda"
        if self.cuda:
            self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def seconds(self, call):
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        self.flush.zero_()
        torch.cuda._sleep(SPIN_CYCLES)
        self.events[0].record()
        call()
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e-3

    def medians(self, calls, repeats, deadline):
        """(the median of each, rounds): at least three of them, then until the deadline."""
        times = {name: [] for name in calls}
        order = random.Random(1)
        warm_until = time.perf_counter() + (WARM_UP_S if self.cuda else 0)
        warm_ups = 0
        while warm_ups < WARM_UPS or time.perf_counter() < warm_until:
            for name in order.sample(list(calls), len(calls)):
                self.seconds(calls[name])
            warm_ups += 1
        for round_number in range(repeats):
            if round_number >= 3 and time.perf_counter() > deadline:
                break
            for name in order.sample(list(calls), len(calls)):
                times[name].append(self.seconds(calls[name]))
        medians = {name: statistics.median(values) for name, values in times.items()}
        return medians, len(times["cadre"])

    def rested(self, call):
        """The median of the first calls after a rest, each behind a flush."""
        torch.cuda.synchronize()
        time.sleep(REST_S)
        return statistics.median(self.seconds(call) for _ in range(RESTED_CALLS))

    def sustained(self, call):
        """The median over batches of a loop of this call alone, without a flush, once it has run for a while."""
        trial = self.batches(call, [4])[0] / 4
        lead, batch = (
            max(1, math.ceil(seconds / trial)) for seconds in (SUSTAINED_LEAD_S, SUSTAINED_BATCH_S)
        )
        return statistics.median(self.batches(call, [lead] + [batch] * SUSTAINED_BATCHES)[1:]) / batch

    @staticmethod
    def batches(call, counts):
        """Seconds of so many calls each, all of them queued without a wait in between."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(counts) + 1)]
        marks[0].record()
        for mark, count in zip(marks[1:], counts):
            for _ in range(count):
                call()
            mark.record()
        marks[-1].synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in zip(marks, marks[1:])]

    def alone(self, condition, calls):
        """(the median of each, timed calls)"""
        if condition == "rested":
            return {name: self.rested(call) for name, call in calls.items()}, RESTED_CALLS
        return {name: self.sustained(call) for name, call in calls.items()}, SUSTAINED_BATCHES


def checked_calls(layer, options):
    """The calls whose results are right, and why the others were left out."""
    calls, left_out, errors = {}, {}, {}
    for name, make in calls_of(layer).items():
        if options.rival and name != "cadre" and name not in options.rival:
            continue
        try:
            call = make()
            errors[name] = worst_error(layer, call)
            if not errors[name] <= 1:
                raise ArithmeticError(f"{errors[name]:.2g} times the tolerance")
            calls[name] = call
        except Exception as error:  # a rival that fails is a result
            if name == "cadre":
                raise
            left_out[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return calls, left_out, errors


def measure(name, case, skew, options, timer, deadline):
    """A row for each condition."""
    layer = Layer(
        case, shapes_of(options.device)[name], skew, DTYPES[options.dtype], options.device
    )
    calls, left_out, errors = checked_calls(layer, options)
    dense = None if name.startswith("decode") else dense_of(layer)
    timed = {**calls, "dense": dense} if dense else calls
    rows = []
    for condition in CONDITIONS:
        if condition not in options.condition:
            continue
        if condition == "mixed":
            medians, repeats = timer.medians(timed, options.repeats, deadline)
        else:
            medians, repeats = timer.alone(condition, timed)
        row = row_of(layer, medians, errors, calls)
        row |= {"shape": name, "skew": skew, "dtype": options.dtype, "condition": condition}
        rows.append(row | {"repeats": repeats, "left_out": left_out})
    return rows


def row_of(layer, medians, errors, calls):
    """What one condition's medians say of the contenders."""
    case = layer.case
    ours = medians["cadre"]
    row = {
        "op": CASES[case],
        "case": case,
        "m": layer.m,
        "k": layer.k,
        "n": layer.n,
        "num_groups": layer.experts,
        "median_s": ours,
        "gflops": layer.flops / ours / 1e9,
        "error_over_tolerance": errors["cadre"],
        "rivals": {
            rival: {"median_s": medians[rival], "error_over_tolerance": errors[rival]}
            for rival in calls
            if rival != "cadre"
        },
    }
    if "dense" in medians:
        row["of_dense"] = medians["dense"] / ours
        row["dense_median_s"] = medians["dense"]
    if not case.startswith("wgrad"):
        row["weights_tb_per_s"] = layer.weight_bytes / ours / 1e12
    return row


def print_row(row):
    figures = [f"cadre {row['gflops'] / 1e3:7.1f} TFLOP/s"]
    if "of_dense" in row:
        figures.append(f"{row['of_dense']:.3f} of dense")
    elif "weights_tb_per_s" in row:
        figures.append(f"weights {row['weights_tb_per_s']:.2f} TB/s")
    rivals = [
        f"{name} {times['median_s'] / row['median_s']:.2f}" for name, times in row["rivals"].items()
    ]
    rivals += [f"{name} left out" for name in row["left_out"]]
    print(
        f"{row['shape']:24} {row['skew']:1} {row['case']:10} {row['condition']:9} {', '.join(figures)};  times ours: {', '.join(rivals)}",
        flush=True,
    )


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=best)
    parser.add_argument(
        "--op", action="append", choices=list(CASES), help="may be repeated; default: all"
    )
    parser.add_argument("--shape", action="append", help="a name; may be repeated; default: all")
    parser.add_argument("--rival", action="append", help="only this one; may be repeated")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument(
        "--skew", type=int, choices=[0, 1], action="append", help="default: 0 and 1"
    )
    parser.add_argument(
        "--condition",
        action="append",
        choices=CONDITIONS,
        help="may be repeated; default: sustained and mixed, on a CPU mixed, which is all there is",
    )
    parser.add_argument(
        "--repeats", type=int, default=11, help="mixed: timed calls of each (default 11)"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=float("inf"),
        help="repeat less where the run would take longer than this",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda, but torch sees no GPU here")
    if options.device == "cpu" and set(options.condition or []) - {"mixed"}:
        parser.error("--condition sustained and rested need --device cuda")
    options.condition = options.condition or (
        ["mixed"] if options.device == "cpu" else ["sustained", "mixed"]
    )
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}, expected 1 or more")
    for name in options.shape or []:
        if name not in shapes_of(options.device):
            known = ", ".join(shapes_of(options.device))
            parser.error(f"--shape {name}, expected one of {known}")
    return options


def machine_of(device):
    import cadre

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    machine = {"device": name, "torch": torch.__version__, "cadre": cadre.__version__}
    try:
        import triton

        machine["triton"] = triton.__version__
    except ImportError:
        machine["triton"] = None
    return machine


def main(arguments=None):
    options = parse(arguments)
    command = result_file.command_of(
        "torch_grouped_mm.py", sys.argv[1:] if arguments is None else arguments
    )
    begin = time.perf_counter()
    timer = Timer(options.device)
    rows = [
        (name, case, skew)
        for name in options.shape or shapes_of(options.device)
        for case in options.op or CASES
        for skew in options.skew or [0, 1]
        if not (name.startswith("decode") and case.startswith("wgrad"))
    ]
    results, reasons = [], {}
    for done, (name, case, skew) in enumerate(rows):
        now = time.perf_counter()
        # An equal share of what is left for each row.
        deadline = now + (begin + options.limit_s - now) / (len(rows) - done)
        for row in measure(name, case, skew, options, timer, deadline):
            results.append(row)
            reasons.update(row["left_out"])
            print_row(row)
        if options.json:  # kept all along; an older file stays until the run is complete
            result_file.write(options.json, command, machine_of(options.device), results)
        if timer.cuda:
            torch.cuda.empty_cache()
    for rival, reason in reasons.items():
        print(f"{rival} was left out: {reason}")
    if options.json:
        result_file.complete(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
