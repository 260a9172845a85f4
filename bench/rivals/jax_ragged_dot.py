#!/usr/bin/env python3
"""cadre.jax against lax.ragged_dot and, on a Hopper GPU, Pallas's Mosaic GPU ragged dot, in one run.

Beside them stand four calls of cadre.jax in one program ("program", the time of one), libcadre called directly on the same
buffers, which shows what JAX adds, and one dense product of the same m, k and n, for scale. Every result is checked first, on
samples in float32. Then cadre, the program and the library, which shall differ by no more than 3 %, are timed in pairs
(jax_pairing.py), and all others in turn; medians are compared. A rival that fails is a result too, with its reason.
queue_timing.py says what is timed on a GPU. There lax stands twice: as it comes, and without XLA's tuning, which takes minutes.

    python bench/rivals/jax_ragged_dot.py                      # shapes that fit this device, forward and both gradients
    python bench/rivals/jax_ragged_dot.py --shape qwen3-30b-w2 --case forward --json out.json
    python bench/rivals/jax_ragged_dot.py --apart 60           # the rivals alone, each in a process that may take a minute
    python bench/rivals/jax_ragged_dot.py --without lax --without lax_untuned --without mosaic --operands zeros
"""

import concurrent.futures
import contextlib
import itertools
import os
import statistics
import sys
import time

import cadre.jax
import jax
import jax.numpy as jnp
import jax_apart
import jax_options
import jax_pairing
import jax_samples
import layers
import libcadre_call
import numpy as np
import queue_timing
import result_file
from jax_products import (
    CASES,
    CPU_SHAPES,
    IN_PROGRAM,
    RIVALS,
    compile_operands,
    contenders,
    kinds_of,
    on_gpu,
    operands,
    rivals,
    shapes_here,
)

#: Timed in pairs. Those of CONTROLS are one of them once more: what the ratio of one to itself comes to.
CONTROLS = {"cadre_again": "cadre", "library_again": "library"}
PAIRED = ("cadre", "program", "library", *CONTROLS)
COMPARED = (("library", "cadre"), ("library", "program"), *((a, b) for a, b in CONTROLS.items()))
#: Of each case, before it is timed on a GPU.
HEAT_S = 0.15
#: Without work before each timing on a GPU, so that all begin with the same clock.
PAUSE_S = 0.004
#: Kernels at least this long are compared with the library's own time.
LONG_S = 200e-6
#: What a contender may end in: out of memory, a shape it refuses, a module that isn't there.
FAILURES = (RuntimeError, ValueError, TypeError, ImportError, NotImplementedError, ArithmeticError)


def seconds(name, function, arguments, calls):
    """Of one call, the mean of several behind some that aren't timed: the contender before has left its marks in the caches."""
    if on_gpu():
        time.sleep(PAUSE_S)
        clock = queue_timing.library_seconds if name == "library" else queue_timing.jax_seconds
        return clock(function, arguments, calls, lead_of(name, calls))
    finish(function(*arguments))
    start = time.perf_counter()
    for _ in range(calls):
        out = function(*arguments)
    finish(out)
    return (time.perf_counter() - start) / calls


def lead_of(name, calls):
    """Calls before the clock starts, in which the queue fills: half as many, one at least, and in pairs as many kernels for all."""
    at_once = IN_PROGRAM if name in ("cadre", "library") else 1
    return at_once * max(1, calls // at_once // 2)


def finish(out):
    return out.wait() if isinstance(out, libcadre_call.Pending) else jax.block_until_ready(out)


def admit(table, case, arguments, options):
    """Leaves out of the table who fails or errs. Returns (errors, reasons), each by name."""
    errors, reasons = {}, {}
    check = check_of(case, arguments)
    for name in list(table):
        try:
            out = finish(table[name](*arguments))
            if name == "dense":
                continue
            errors[name] = float(check(out, *arguments))
            if errors[name] < options.tolerance:
                continue
            reasons[name] = f"wrong: error {errors[name]:.1e}"
        except FAILURES as error:
            reasons[name] = reason_of(error)
        if name in ("cadre", "program", "library"):
            raise RuntimeError(f"{name}: {reasons[name]}")
        del table[name]
    return errors, reasons


def check_of(case, arguments):
    kinds = (jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arguments)
    return jax_samples.compiled_check(case, *kinds)


def reason_of(error):
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:160]}"


def warm_up(tables, arguments):
    """Compiles everything for one shape at the same time. Whoever fails here fails again in admit()."""

    def run(function):
        with contextlib.suppress(*FAILURES):
            finish(function(*arguments))

    functions = [function for table in tables.values() for function in table.values()]
    with concurrent.futures.ThreadPoolExecutor(len(functions) + len(tables)) as pool:
        checks = [pool.submit(check_of, case, arguments) for case in tables]
        concurrent.futures.wait([*checks, *(pool.submit(run, function) for function in functions)])


def timings(table, arguments, options, deadline, random):
    """(name -> seconds of one call, a list of rounds). A timing holds enough calls to dwarf its wait."""
    if on_gpu() and "library" in table:
        jax_pairing.heat(lambda: finish(table["library"](*arguments)), HEAT_S)
    first = {name: seconds(name, function, arguments, 1) for name, function in table.items()}
    most = queue_timing.MOST_CALLS if on_gpu() else 200
    calls = {name: max(1, min(most, round(options.sample_s / first[name]))) for name in table}
    # As many kernels for those in pairs, before and while the clock runs: it falls while the card works.
    calls["program"] = max(1, round(calls["cadre"] / IN_PROGRAM))
    calls["cadre"] = calls["library"] = calls["program"] * IN_PROGRAM

    def clock(name):
        of = CONTROLS.get(str(name), name)
        time_s = seconds(of, table[of], arguments, calls[of])
        return time_s / IN_PROGRAM if of == "program" else time_s

    paired = PAIRED if "library" in table else ["cadre"]

    def decided(times):
        pairs = [jax_pairing.ratio(times[above], times[below]) for above, below in COMPARED[:2]]
        return not any(
            pair["interval"][0] <= options.decide <= pair["interval"][1] for pair in pairs
        )

    enough = decided if options.decide and "library" in table else None
    times = jax_pairing.rounds(paired, clock, options.repeats, deadline, random, enough)
    # In another order each time: a contender's power draw sets the clock that the next one starts with.
    others = [name for name in table if name not in paired]
    for _ in range(min(options.repeats, 3)):
        for name in random.permutation(others):
            times.setdefault(str(name), []).append(clock(name))
    return times


def measure(row, table, operands_of, options, deadline, random):
    """Adds to the row what is measured. `operands_of`: by what they are made of, as --operands has it."""
    errors, reasons = admit(table, row["case"], operands_of["random"], options)
    rounds = timings(table, operands_of[row["operands"]], options, deadline, random)
    times = {contender: statistics.median(values) for contender, values in rounds.items()}
    flops, own = 2 * row["m"] * row["k"] * row["n"], times["cadre"]
    print(title_of(row))
    for contender, median in times.items():
        print(
            f"  {contender:13} {median * 1e6:12.1f} us {flops / median / 1e12:9.3f} TFLOP/s"
            f"   {median / own:7.3f} of cadre's time"
        )
    for contender, reason in reasons.items():
        print(f"  {contender:13} {reason}")
    row |= {
        "median_s": own,
        "tflops": flops / own / 1e12,
        "max_error": errors["cadre"],
        "repeats": len(rounds["cadre"]),
        "of_dense": times["dense"] / own if "dense" in times else None,
        "rivals": {rival: {"median_s": times[rival]} for rival in RIVALS if rival in times},
        "left_out": reasons,
    }
    if options.only is None:
        row["program_s"], row["library_s"] = times["program"], times["library"]
        row["long"] = times["library"] >= LONG_S
        row["paired"] = {
            f"{above}_over_{below}": jax_pairing.ratio(rounds[above], rounds[below])
            for above, below in COMPARED
        }
        for names, of in row["paired"].items():
            low, high = of["interval"]
            print(f"  {names:26} {of['median']:.3f} ({low:.3f} to {high:.3f})")
    sys.stdout.flush()


def row_of(name, skew, case, kind, options):
    """What a row says of its case, whatever is measured."""
    experts, m, k, n = shapes_here()[name]
    row = {"op": "ragged_dot", "case": case, "shape": name, "skew": skew, "dtype": options.dtype}
    return row | {"m": m, "k": k, "n": n, "num_groups": experts, "operands": kind}


def title_of(row):
    shape = " ".join(f"{name} {row[name]}" for name in ("m", "k", "n"))
    layer = f"{row['shape']:18} {row['case']:8} {row['operands']} skew {row['skew']}"
    return f"{layer} {shape} experts {row['num_groups']}"


def machine():
    device = jax.devices()[0]
    return {
        "device": device.device_kind if on_gpu() else result_file.cpu_name(),
        "platform": device.platform,
        "cpus": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
        "cadre": cadre.__version__,
    }


def prepared(case, layer, options):
    """The contenders of a process of jax_apart, compiled when it is their turn. Returns (table, reasons)."""
    table = {**contenders(case, without=RIVALS), **rivals(case)}
    table = {name: table[name] for name in ("cadre", options.only) if name in table}
    reasons = {} if options.only in table else {options.only: "not there for this case"}
    dtype = jnp.dtype(options.dtype)
    kinds = kinds_of(layer, dtype)
    compile_operands(layer, dtype)
    jax_samples.compiled_check(case, *kinds)
    if options.only in jax_apart.TUNED:
        wait_for_turn()
    for name in list(table):
        try:
            table[name] = table[name].lower(*kinds).compile()
        except FAILURES as error:
            if name == "cadre":
                raise
            reasons[name] = reason_of(error)
            del table[name]
    if options.only not in jax_apart.TUNED:
        wait_for_turn()
    return table, reasons


def wait_for_turn():
    print(jax_apart.READY, flush=True)
    if not sys.stdin.readline():
        sys.exit("the benchmark that started this process is gone")


def run_apart(layers_here, cases, options, begin):
    """The rivals, each in its process; returns the rows."""
    jobs = [
        jax_apart.Job((name, skew, case, kind), rival)
        for rival in RIVALS
        for case in cases
        for name, skew in layers_here
        for kind in options.operands
        if rival not in options.without and rival in rivals(case)
    ]
    common = ["--dtype", options.dtype, "--repeats", options.repeats]
    common += ["--sample-s", options.sample_s, "--tolerance", options.tolerance]
    limits = (options.apart, options.processes, begin + options.limit_s)
    jax_apart.run(jobs, [__file__, *map(str, common)], limits)
    rows = jax_apart.merged(jobs, lambda *key: row_of(*key, options))
    for row in rows:
        print(title_of(row))
        if "median_s" in row:
            print(f"  cadre         {row['median_s'] * 1e6:12.1f} us {row['tflops']:9.3f} TFLOP/s")
        for name, rival in row["rivals"].items():
            over = rival["over_cadre_in_its_process"]
            print(f"  {name:13} {rival['median_s'] * 1e6:12.1f} us   {over:7.3f} of cadre's time")
        for name, reason in row["left_out"].items():
            print(f"  {name:13} {reason}")
    return rows


def run_here(layers_here, cases, options, begin):
    """Everyone in this process. Yields the rows so far."""
    # One for all cases: each has other orders.
    results, random = [], np.random.default_rng(2)
    for name, skew in layers_here:
        layer, gone = shapes_here()[name], {case: {} for case in cases}
        if options.only:
            (case,) = cases
            table, gone[case] = prepared(case, layer, options)
            tables = {case: table}
        else:
            tables = {case: contenders(case, options.without) for case in cases}
        made = {"random": operands(layer, jnp.dtype(options.dtype), skew)}
        if on_gpu() and not options.only:
            warm_up(tables, made["random"])
        if "zeros" in options.operands:
            lhs, rhs, sizes, dout = made["random"]
            made["zeros"] = (jnp.zeros_like(lhs), jnp.zeros_like(rhs), sizes, jnp.zeros_like(dout))
        for (case, table), kind in itertools.product(tables.items(), options.operands):
            now = time.perf_counter()
            left = len(layers_here) * len(cases) * len(options.operands) - len(results)
            deadline = now + (begin + options.limit_s - now) / left  # an equal share for each
            row = row_of(name, skew, case, kind, options)
            measure(row, table, made, options, deadline, random)
            gone[case] |= row["left_out"]
            row["left_out"] = gone[case]
            results.append(row)
            yield results


def main():
    begin = time.perf_counter()
    options = jax_options.parse(__doc__)
    if options.apart is not None or options.only:  # several processes share the GPU
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    options.operands = options.operands or ["random"]
    options.dtype = options.dtype or ("bfloat16" if on_gpu() else "float32")
    default = layers.TRAINING if on_gpu() else CPU_SHAPES
    cases = options.case or CASES
    layers_here = list(itertools.product(options.shape or default, options.skew or [0]))
    command = result_file.command_of("jax_ragged_dot.py", sys.argv[1:])
    if options.apart is not None:
        steps = [run_apart(layers_here, cases, options, begin)]
    else:
        steps = run_here(layers_here, cases, options, begin)
    for results in steps:
        if options.json:  # kept all along; an older file stays until the run is complete
            result_file.write(options.json, command, machine(), results)
    if options.json:
        result_file.complete(options.json)


if __name__ == "__main__":
    main()
