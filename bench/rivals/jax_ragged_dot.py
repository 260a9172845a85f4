#!/usr/bin/env python3
"""cadre.jax against lax.ragged_dot and, on a Hopper GPU, Pallas's Mosaic GPU ragged dot, in one run.

Beside them stand four calls of cadre.jax in one program ("program", the time of one), libcadre called directly on the same
buffers, which shows what JAX adds, and one dense product of the same m, k and n, for scale. Every result is checked first, on
samples in float32. Then cadre, the program and the library, which shall differ by no more than 3 %, are timed in pairs
(jax_pairing.py), and all others in turn; medians are compared. A rival that fails is a result too, with its reason.
queue_timing.py says what is timed on a GPU.

    python bench/rivals/jax_ragged_dot.py                      # shapes that fit this device, forward and both gradients
    python bench/rivals/jax_ragged_dot.py --shape qwen3-30b-w2 --case forward --json out.json
    python bench/rivals/jax_ragged_dot.py --lax-seconds 60     # lax first, in a process that ends after a minute
"""

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import os
import statistics
import sys
import time

import cadre.jax
import jax
import jax.numpy as jnp
import jax_pairing
import jax_samples
import lax_process
import layers
import libcadre_call
import numpy as np
import queue_timing
import result_file
from jax import lax

GPU_SHAPES = {**layers.TRAINING, **layers.DECODE}
CPU_SHAPES = {"8 experts": (8, 512, 512, 512), "64 experts": (64, 512, 512, 512)}
CASES = ("forward", "dlhs", "drhs")
#: Calls in one program, too few for a command buffer.
IN_PROGRAM = 4
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


#: Triton's gemms take XLA seconds to tune, for each product.
BY_CUBLAS = {"xla_gpu_enable_triton_gemm": False}


@functools.cache
def on_gpu():
    """Takes the GPU for this process."""
    return jax.default_backend() == "gpu"


def route(experts, rows, skew, seed=0):
    """Rows of each expert when every row draws its expert with probability 1 / rank^skew, ranks dealt at random."""
    random = np.random.default_rng(seed)
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return random.multinomial(rows, random.permutation(weights / weights.sum()))


def shapes_here():
    return GPU_SHAPES if on_gpu() else CPU_SHAPES


def operands(shape, dtype, skew, seed=0):
    """lhs [m, k], rhs [g, k, n], group sizes, dout [m, n]."""
    experts, m, k, n = shape
    sizes = route(experts, m, skew, seed)

    @jax.jit
    def make(key):
        keys = jax.random.split(key, 3)
        lhs = jax.random.normal(keys[0], (m, k), dtype)
        rhs = jax.random.normal(keys[1], (experts, k, n), dtype) * jnp.asarray(k**-0.5, dtype)
        return lhs, rhs, jax.random.normal(keys[2], (m, n), dtype)

    lhs, rhs, dout = jax.block_until_ready(make(jax.random.key(seed)))
    return lhs, rhs, jnp.asarray(sizes, jnp.int32), dout


def mosaic_gpu(lhs, rhs, sizes):
    """Pallas's kernel in the configuration that its own file finds best on most shapes."""
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

    settings = {"block_m": 128, "block_n": 128, "block_k": 64, "max_concurrent_steps": 4}
    return ragged_dot_mgpu.ragged_dot(lhs, rhs, group_sizes=sizes, grid_block_n=8, **settings)


def of_case(product, case):
    """The product or one of its gradients, as a function of (lhs, rhs, sizes, dout)."""
    if case == "forward":
        return jax.jit(lambda lhs, rhs, sizes, dout: product(lhs, rhs, sizes))
    if case == "dlhs":
        return jax.jit(
            lambda lhs, rhs, sizes, dout: jax.vjp(lambda x: product(x, rhs, sizes), lhs)[1](dout)[0]
        )
    return jax.jit(
        lambda lhs, rhs, sizes, dout: jax.vjp(lambda x: product(lhs, x, sizes), rhs)[1](dout)[0]
    )


def program(case):
    """Several calls in one program, as a layer has them: what XLA adds to each run of a program is shared."""
    one, copies = of_case(cadre.jax.ragged_dot, case), []
    several = jax.jit(lambda lhs, rhs, dout, *sizes: [one(lhs, rhs, s, dout) for s in sizes])

    def call(lhs, rhs, sizes, dout):
        if not copies:  # of sizes of one array, XLA would make one call
            copies.extend(jnp.array(sizes, copy=True) for _ in range(IN_PROGRAM))
        return several(lhs, rhs, dout, *copies)[-1]

    return call


#: What the process of lax runs.
PRODUCTS = {"cadre": cadre.jax.ragged_dot, "lax": lax.ragged_dot}


def dense(case):
    """One product of the same m, k and n, with the first expert's weights; on a GPU cuBLAS's."""
    product = {
        "forward": lambda lhs, rhs, sizes, dout: lhs @ rhs[0],
        "dlhs": lambda lhs, rhs, sizes, dout: dout @ rhs[0].T,
        "drhs": lambda lhs, rhs, sizes, dout: lhs.T @ dout,
    }[case]
    return jax.jit(product, compiler_options=BY_CUBLAS if on_gpu() else None)


def contenders(case, options):
    """name -> function of (lhs, rhs, sizes, dout). The program makes IN_PROGRAM calls at once."""
    if options.only_lax:
        return {name: of_case(product, case) for name, product in PRODUCTS.items()}
    everyone = {
        "cadre": of_case(cadre.jax.ragged_dot, case),
        "program": program(case),
        "library": libcadre_call.Case(case),
        "dense": dense(case),
        "lax": of_case(lax.ragged_dot, case),
    }
    if on_gpu() and case == "forward":
        everyone["mosaic"] = of_case(mosaic_gpu, case)
    return {name: function for name, function in everyone.items() if name not in options.without}


def seconds(name, function, arguments, calls):
    """Of one call, the mean of several behind some that aren't timed: the contender before has left its marks in the caches."""
    if on_gpu():
        time.sleep(PAUSE_S)
        clock = queue_timing.library_seconds if name == "library" else queue_timing.jax_seconds
        return clock(
            function, arguments, calls, lead_of(calls, 1 if name == "program" else IN_PROGRAM)
        )
    finish(function(*arguments))
    start = time.perf_counter()
    for _ in range(calls):
        out = function(*arguments)
    finish(out)
    return (time.perf_counter() - start) / calls


def lead_of(calls, in_program):
    """Calls before the clock starts, in which the queue fills: half as many, in whole programs, one at least."""
    return in_program * max(1, calls // in_program // 2)


def finish(out):
    return out.wait() if isinstance(out, libcadre_call.Pending) else jax.block_until_ready(out)


def admit(table, case, arguments, options):
    """Leaves out of the table who fails or errs. Returns (errors, reasons), each by name."""
    errors, reasons = {}, {}
    pick, expected = jax_samples.expectation(case, *arguments)
    for name in list(table):
        try:
            out = finish(table[name](*arguments))
            if name == "dense":
                continue
            errors[name] = jax_samples.largest_error(pick(out), expected)
            if errors[name] < options.tolerance:
                continue
            reasons[name] = f"wrong: error {errors[name]:.1e}"
        except FAILURES as error:
            text = str(error).strip().splitlines() or [""]
            reasons[name] = f"{type(error).__name__}: {text[0][:160]}"
        if name in ("cadre", "program", "library"):
            raise RuntimeError(f"{name}: {reasons[name]}")
        del table[name]
    return errors, reasons


def warm_up(tables, arguments):
    """Compiles everything for one shape at the same time. Whoever fails here fails again in admit()."""

    def run(function):
        with contextlib.suppress(*FAILURES):
            finish(function(*arguments))

    functions = [function for table in tables.values() for function in table.values()]
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        list(pool.map(run, functions))


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
    times = jax_pairing.rounds(paired, clock, options.repeats, deadline, random)
    # In another order each time: a contender's power draw sets the clock that the next one starts with.
    others = [name for name in table if name not in paired]
    for _ in range(min(options.repeats, 3)):
        for name in random.permutation(others):
            times.setdefault(str(name), []).append(clock(name))
    return times


def measure(name, skew, case, table, arguments, options, deadline, random):
    experts, m, k, n = shapes_here()[name]
    errors, reasons = admit(table, case, arguments, options)
    rounds = timings(table, arguments, options, deadline, random)
    times = {contender: statistics.median(values) for contender, values in rounds.items()}
    if options.lax_apart is not None:
        tried = case in (options.lax_case or CASES)
        row = options.lax_apart.get((name, skew, case))
        add_lax(row, "out of time" if tried else "left out", times, reasons)
    flops, own = 2 * m * k * n, times["cadre"]
    print(f"{name:18} {case:8} skew {skew} m {m} k {k} n {n} experts {experts}")
    for contender, median in times.items():
        print(
            f"  {contender:13} {median * 1e6:12.1f} us {flops / median / 1e12:9.3f} TFLOP/s"
            f"   {median / own:7.3f} of cadre's time"
        )
    for contender, reason in reasons.items():
        print(f"  {contender:13} {reason}")
    rivals = {rival: {"median_s": times[rival]} for rival in ("lax", "mosaic") if rival in times}
    row = {
        "op": "ragged_dot",
        "case": case,
        "shape": name,
        "skew": skew,
        "dtype": options.dtype,
        "m": m,
        "k": k,
        "n": n,
        "num_groups": experts,
        "median_s": own,
        "tflops": flops / own / 1e12,
        "max_error": errors["cadre"],
        "repeats": len(rounds["cadre"]),
        "of_dense": times["dense"] / own if "dense" in times else None,
        "rivals": rivals,
        "left_out": reasons,
    }
    if not options.only_lax:
        row["program_s"], row["library_s"] = times["program"], times["library"]
        row["long"] = times["library"] >= LONG_S
        row["paired"] = {
            f"{above}_over_{below}": jax_pairing.ratio(rounds[above], rounds[below])
            for above, below in COMPARED
        }
        for names, of in row["paired"].items():
            low, high = of["quartiles"]
            print(f"  {names:26} {of['median']:.3f} (quartiles {low:.3f} {high:.3f})")
    sys.stdout.flush()
    return row


def add_lax(row, otherwise, times, reasons):
    """What its own process found out about lax."""
    if row is None:
        reasons["lax"] = f"not measured: {otherwise}"
    elif "lax" in row["rivals"]:
        times["lax"] = row["rivals"]["lax"]["median_s"]
    else:
        reasons["lax"] = row["left_out"]["lax"]


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shapes = [*GPU_SHAPES, *CPU_SHAPES]
    parser.add_argument(
        "--shape", action="append", choices=shapes, help="may be repeated; default: all of training"
    )
    parser.add_argument(
        "--skew", type=int, action="append", choices=(0, 1), help="of the router; default: 0"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this one, likewise")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("dense", "lax", "mosaic"),
        help="leave this contender out",
    )
    parser.add_argument("--dtype", help="default: bfloat16 on a GPU, float32 elsewhere")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument(
        "--sample-s", type=float, default=0.02, help="length of one timing, in seconds"
    )
    parser.add_argument("--tolerance", type=float, default=0.02, help="largest relative error")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=float("inf"),
        help="repeat less where the run, lax's process included, would take longer than this",
    )
    parser.add_argument(
        "--lax-seconds",
        type=float,
        help="run lax, which compiles slowly, in a process of its own that ends after this long",
    )
    parser.add_argument(
        "--lax-case", action="append", choices=CASES, help="try lax there in this case alone"
    )
    parser.add_argument(
        "--only-lax", action="store_true", help="cadre and lax alone: what that process runs"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


def machine():
    device = jax.devices()[0]
    return {
        "device": device.device_kind if on_gpu() else result_file.cpu_name(),
        "platform": device.platform,
        "cpus": len(os.sched_getaffinity(0)),
        "jax": jax.__version__,
        "cadre": cadre.__version__,
    }


def main():
    begin = time.perf_counter()
    options = parse_options()
    options.lax_apart = None
    if options.lax_seconds is not None and not options.only_lax and "lax" not in options.without:
        options.lax_apart = lax_process.results(sys.argv, options.lax_seconds)
        options.without.append("lax")
    options.dtype = options.dtype or ("bfloat16" if on_gpu() else "float32")
    default = layers.TRAINING if on_gpu() else CPU_SHAPES
    cases = (options.only_lax and options.lax_case) or options.case or CASES
    layers_here = list(itertools.product(options.shape or default, options.skew or [0]))
    # One for all cases: each has other orders.
    results, random = [], np.random.default_rng(2)
    for name, skew in layers_here:
        arguments = operands(shapes_here()[name], jnp.dtype(options.dtype), skew)
        tables = {case: contenders(case, options) for case in cases}
        if on_gpu():
            warm_up(tables, arguments)
        for case, table in tables.items():
            now = time.perf_counter()
            left = len(layers_here) * len(cases) - len(results)
            deadline = now + (begin + options.limit_s - now) / left  # an equal share for each
            row = measure(name, skew, case, table, arguments, options, deadline, random)
            results.append(row)
            if options.json:  # kept all along; an older file stays until the run is complete
                command = result_file.command_of("jax_ragged_dot.py", sys.argv[1:])
                result_file.write(options.json, command, machine(), results)
    if options.json:
        result_file.complete(options.json)


if __name__ == "__main__":
    main()
