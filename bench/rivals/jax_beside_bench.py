#!/usr/bin/env python3
"""cadre.jax beside the C++ benchmark on a GPU: the layers of training, forward and both gradients, bf16, skew 0.

    cadre bench --device cuda --json cuda.json
    python bench/rivals/jax_beside_bench.py --bench cuda.json --json jax_beside_bench.json

The same operands, group sizes, write of 256 MiB before each call, warm-up and CUDA events around the call as there, but on XLA's stream inside a
compiled program (jax_marks.py). Beside it, in turn, the library called directly on the same operands, which no drift of the card's clock
between two processes can touch. Its rows: forward is gmm_nt (weights [g, n, k]), the gradient of the rows is gmm, that of the weights tgmm.
"""

import argparse
import concurrent.futures
import functools
import json
import statistics
import sys
import time

import cadre.jax
import jax
import jax.numpy as jnp
import jax_marks
import jax_pairing
import jax_samples
import layers
import libcadre_call
import numpy as np
import result_file
import router
from jax import lax

#: case -> the op of the C++ benchmark that it is, and the same product's name in jax_samples.py and libcadre_call.py.
CASES = {"forward": ("gmm_nt", "dlhs"), "dlhs": ("gmm", "forward"), "drhs": ("tgmm", "drhs")}
#: Of the warm-up, as in bench/cuda/warm_up.h.
LEAST_S, MOST_S, FEWEST_ROUNDS, STILL_FALLING = 0.15, 0.4, 3, 0.99
TOLERANCE = 0.02


def kinds_of(shape, case):
    """The shapes of both operands and the result."""
    g, m, k, n = shape
    return {
        "forward": ((m, k), (g, n, k), (m, n)),
        "dlhs": ((m, k), (g, k, n), (m, n)),
        "drhs": ((m, n), (m, k), (g, n, k)),
    }[case]


def product_of(case):
    """The call or one of its gradients, a function of (lhs, rhs, sizes)."""

    def forward(lhs, rhs, sizes):
        return cadre.jax.gmm(lhs, rhs, sizes, transpose_rhs=True)

    def dlhs(dout, weights, sizes):
        rows = jnp.zeros((dout.shape[0], weights.shape[2]), dout.dtype)
        return jax.vjp(lambda x: forward(x, weights, sizes), rows)[1](dout)[0]

    def drhs(dout, rows, sizes):
        weights = jnp.zeros((sizes.shape[0], dout.shape[1], rows.shape[1]), rows.dtype)
        return jax.vjp(lambda w: forward(rows, w, sizes), weights)[1](dout)[0]

    return {"forward": forward, "dlhs": dlhs, "drhs": drhs}[case]


def random_values(shape, seed, deviation):
    """Those of random_value in bench/cuda/kernels.cu, for fewer than 2^32 elements."""
    x = lax.iota(jnp.uint32, int(np.prod(shape))) * jnp.uint32(2654435761) ^ jnp.uint32(seed)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    x = x ^ (x >> 16)
    low, high = (half.astype(jnp.float32) / 65536 for half in (x & 0xFFFF, x >> 16))
    return (
        ((low + high - 1) * jnp.float32(2.4494897 * deviation)).astype(jnp.bfloat16).reshape(shape)
    )


class Program:
    """One case of one layer, compiled."""

    def __init__(self, name, case, marks):
        self.name, self.case = name, case
        self.shape = g, m, k, _ = layers.TRAINING[name]
        lhs, rhs, out = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in kinds_of(self.shape, case))
        sizes = jax.ShapeDtypeStruct((g,), jnp.int32)
        deviation = (m // g if case == "drhs" else k) ** -0.5
        make = jax.jit(
            lambda: (random_values(lhs.shape, 1, 1.0), random_values(rhs.shape, 2, deviation))
        )
        product = product_of(case)
        marked = jax.jit(lambda a, b, s: marks.around(lambda t: product(a, b, t), s))
        self._make = make.lower().compile()
        self.marked = marked.lower(lhs, rhs, sizes).compile()
        placed = self.placed(lhs, rhs, sizes, out)
        self._check = jax_samples.compiled_check(CASES[case][1], *placed)

    def operands(self):
        g, m, _, _ = self.shape
        sizes = jnp.asarray(router.group_sizes(g, m, 0), jnp.int32)
        return (*jax.block_until_ready(self._make()), sizes)

    def placed(self, lhs, rhs, sizes, out):
        """In the order that jax_samples.py and libcadre_call.py have, (lhs, rhs, sizes, dout). Of `out` only the shape counts."""
        return {
            "dlhs": (out, rhs, sizes, lhs),
            "forward": (lhs, rhs, sizes, out),
            "drhs": (lhs, out, sizes, rhs),
        }[CASES[self.case][1]]

    def error(self, out, lhs, rhs, sizes):
        return float(self._check(out, *self.placed(lhs, rhs, sizes, out)))


def measure(program, marks, repeats, random):
    """Seconds of each contender, a list of rounds, and the largest error of both."""
    lhs, rhs, sizes = program.operands()
    direct = libcadre_call.Case(CASES[program.case][1])
    out, _ = program.marked(lhs, rhs, sizes)
    errors = [program.error(out, lhs, rhs, sizes)]
    arguments = program.placed(lhs, rhs, sizes, out)
    errors.append(program.error(direct(*arguments).wait(), lhs, rhs, sizes))

    def in_jax():
        jax.block_until_ready(program.marked(lhs, rhs, sizes))
        return marks.seconds()

    contenders = {
        "jax": in_jax,
        "library": lambda: marks.around_direct(lambda: direct(*arguments)),
    }

    def one_round():
        return {name: contenders[name]() for name in random.permutation(list(contenders))}

    begin, sums = time.perf_counter(), []
    while not warmed_up(sums, time.perf_counter() - begin):
        sums.append(sum(one_round().values()))
    rounds = [one_round() for _ in range(repeats)]
    return {name: [one[name] for one in rounds] for name in contenders}, max(errors)


def warmed_up(sums, elapsed_s):
    """The rule of bench/cuda/warm_up.cc."""
    if len(sums) < FEWEST_ROUNDS or elapsed_s < LEAST_S:
        return False
    third = len(sums) // 3
    last, before = sums[-third:], sums[-2 * third : -third]
    return elapsed_s >= MOST_S or statistics.median(last) >= STILL_FALLING * statistics.median(
        before
    )


def row_of(program, times, error, of_bench):
    g, m, k, n = program.shape
    medians = {name: statistics.median(values) for name, values in times.items()}
    row = {
        "op": CASES[program.case][0],
        "case": program.case,
        "shape": program.name,
        "skew": 0,
        "dtype": "bfloat16",
        "m": m,
        "k": k,
        "n": n,
        "num_groups": g,
        "max_error": error,
        "median_s": medians["jax"],
        "library_s": medians["library"],
        "tflops": 2 * m * k * n / medians["jax"] / 1e12,
        "repeats": len(times["jax"]),
        "jax_over_library": jax_pairing.ratio(times["jax"], times["library"]),
    }
    bench_s = of_bench.get((row["op"], row["shape"]))
    if bench_s:
        row |= {"bench_s": bench_s, "jax_over_bench": medians["jax"] / bench_s}
        row["library_over_bench"] = medians["library"] / bench_s
    return row


def bench_times(path):
    """(op, shape) -> median seconds of the C++ benchmark's plain bf16 products without skew, mixed."""
    plain = ("forward", "dgrad", "wgrad")
    with open(path) as file:
        rows = json.load(file)["results"]
    return {
        (row["op"], row["shape"]): row["median_s"]
        for row in rows
        if row["case"] in plain
        and row["dtype"] == row["out_dtype"] == "bf16"
        and row["skew"] == 0
        and row.get("condition", "mixed") == "mixed"  # files of before had no other
    }


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench", metavar="FILE", help="what cadre bench --device cuda wrote")
    parser.add_argument("--shape", action="append", choices=layers.TRAINING, help="may be repeated")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no case after")
    parser.add_argument("--marks", metavar="FILE", help="jax_marks.cc compiled, if it is already")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


def main():
    begin = time.perf_counter()
    options = parse()
    if jax.default_backend() != "gpu":
        sys.exit("jax_beside_bench.py: JAX has no GPU here")
    of_bench = bench_times(options.bench) if options.bench else {}
    marks = jax_marks.Marks(options.marks)
    wanted = [(name, case) for name in options.shape or layers.TRAINING for case in CASES]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        make = functools.partial(Program, marks=marks)
        programs = list(pool.map(make, *zip(*wanted, strict=True)))
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    command = result_file.command_of("jax_beside_bench.py", sys.argv[1:])
    device = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    machine = {**device, "cadre": cadre.__version__}
    random, results = np.random.default_rng(3), []
    print(
        "shape, case                 JAX us  library  bench | JAX/library (95 %)      | JAX/bench"
    )
    for program in programs:
        if time.perf_counter() - begin > options.limit_s:
            print(f"out of time before {program.name} {program.case}")
            break
        times, error = measure(program, marks, options.repeats, random)
        if not error < TOLERANCE:
            sys.exit(f"{program.name} {program.case}: wrong, error {error:.1e}")
        row = row_of(program, times, error, of_bench)
        results.append(row)
        pair = row["jax_over_library"]
        print(
            f"{program.name:18} {program.case:7} {row['median_s'] * 1e6:8.1f} {row['library_s'] * 1e6:8.1f}"
            f" {row.get('bench_s', 0) * 1e6:8.1f} | {pair['median']:.4f} ({pair['interval'][0]:.4f} to "
            f"{pair['interval'][1]:.4f}) | {row.get('jax_over_bench', 0):.4f}",
            flush=True,
        )
        if options.json:
            result_file.write(options.json, command, machine, results)
    if options.json:
        result_file.complete(options.json)


if __name__ == "__main__":
    main()
