#!/usr/bin/env python3
"""cadre.jax against lax.ragged_dot and, on a Hopper GPU, Pallas's Mosaic GPU ragged dot, in one run.

Results are checked first, on sampled rows in float64; then every contender is timed in turn, round
after round, and the medians are compared. `--json FILE` writes what the table shows.

    python bench/rivals/jax_ragged_dot.py                      # shapes that fit this device
    python bench/rivals/jax_ragged_dot.py --shape qwen3-30b-w2 --gradients --json out.json
"""

import argparse
import functools
import json
import statistics
import sys
import time

import cadre.jax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# name: experts, rows, k, n. The first part is bench/shapes; a CPU runs the second.
GPU_SHAPES = {
    "mixtral-8x7b-w13": (8, 16384, 4096, 28672),
    "mixtral-8x7b-w2": (8, 16384, 14336, 4096),
    "dsv3-ep8-w13": (32, 65536, 7168, 4096),
    "dsv3-ep8-w2": (32, 65536, 2048, 7168),
    "qwen3-235b-w13": (128, 65536, 4096, 3072),
    "qwen3-235b-w2": (128, 65536, 1536, 4096),
    "qwen3-30b-w13": (128, 65536, 2048, 1536),
    "qwen3-30b-w2": (128, 65536, 768, 2048),
    "gpt-oss-120b-w13": (128, 32768, 2880, 5760),
}
CPU_SHAPES = {"8 experts": (8, 512, 512, 512), "64 experts": (64, 512, 512, 512)}
SAMPLED_ROWS = 64


def operands(shape, dtype, seed=0):
    experts, m, k, n = shape
    sizes = np.bincount(np.random.default_rng(seed).integers(0, experts, m), minlength=experts)
    keys = jax.random.split(jax.random.key(seed), 3)
    lhs = jax.random.normal(keys[0], (m, k), dtype)
    rhs = (jax.random.normal(keys[1], (experts, k, n), jnp.bfloat16) * k**-0.5).astype(dtype)
    dout = jax.random.normal(keys[2], (m, n), dtype)
    return lhs, rhs, jnp.asarray(sizes, jnp.int32), dout


def mosaic_gpu():
    """Pallas's kernel in the configuration its own file finds best on most shapes, or None."""
    if jax.default_backend() != "gpu":
        return None
    try:
        from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu
    except ImportError:
        return None
    settings = {"block_m": 128, "block_n": 128, "block_k": 64, "max_concurrent_steps": 4}
    return lambda lhs, rhs, sizes: ragged_dot_mgpu.ragged_dot(
        lhs, rhs, group_sizes=sizes, grid_block_n=8, **settings
    )


def contenders(gradients):
    """name -> function of (lhs, rhs, sizes, dout)."""
    products = {"cadre": cadre.jax.ragged_dot, "lax": lax.ragged_dot}
    table = {}
    for name, product in products.items():
        table[name] = jax.jit(lambda a, b, s, _, f=product: f(a, b, s))
        if gradients:
            table[f"{name} dlhs"] = jax.jit(functools.partial(gradient, product, 0))
            table[f"{name} drhs"] = jax.jit(functools.partial(gradient, product, 1))
    if pallas := mosaic_gpu():
        table["mosaic"] = jax.jit(lambda a, b, s, _: pallas(a, b, s))
    return table


def gradient(product, argument, lhs, rhs, sizes, dout):
    one = (
        (lambda x: product(x, rhs, sizes)) if argument == 0 else (lambda x: product(lhs, x, sizes))
    )
    return jax.vjp(one, (lhs, rhs)[argument])[1](dout)[0]


def largest_error(out, lhs, rhs, sizes):
    """Relative error of sampled rows against float64 products."""
    ends = np.cumsum(np.asarray(sizes))
    rows = np.unique(np.random.default_rng(1).integers(0, lhs.shape[0], SAMPLED_ROWS))
    worst = 0.0
    for row in rows:
        group = int(np.searchsorted(ends, row, side="right"))
        weights = (
            np.asarray(rhs[group], np.float64) if group < len(ends) else 0 * np.asarray(rhs[0])
        )
        expected = np.asarray(lhs[row], np.float64) @ weights
        error = np.abs(np.asarray(out[row], np.float64) - expected).max()
        worst = max(worst, float(error / max(np.abs(expected).max(), 1e-30)))
    return worst


def seconds(function, arguments, calls):
    start = time.perf_counter()
    for _ in range(calls):
        out = function(*arguments)
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls


def measure(name, shape, options):
    experts, m, k, n = shape
    arguments = operands(shape, jnp.dtype(options.dtype))
    table, errors = contenders(options.gradients), {}
    for contender in list(table):
        try:
            out = jax.block_until_ready(table[contender](*arguments))
            if " " not in contender:
                errors[contender] = largest_error(out, *arguments[:3])
                if not errors[contender] < options.tolerance:
                    raise ArithmeticError(f"error {errors[contender]:.1e}")
        except Exception as error:  # a rival that fails is a result
            reason = str(error).strip().splitlines()[0][:100]
            print(
                f"{name}: {contender} left out: {type(error).__name__}: {reason}", file=sys.stderr
            )
            if contender == "cadre":
                raise
            del table[contender]
    times = {contender: [] for contender in table}
    for round_number in range(options.repeats + 1):
        for contender, function in table.items():
            elapsed = seconds(function, arguments, options.calls)
            if round_number:  # the first round warms up
                times[contender].append(elapsed)
    medians = {contender: statistics.median(values) for contender, values in times.items()}
    flops = 2 * m * k * n
    print(f"{name:20} m {m} k {k} n {n} experts {experts}")
    for contender, median in medians.items():
        own = "cadre" + contender[contender.find(" ") :] if " " in contender else "cadre"
        print(
            f"  {contender:12} {median * 1e6:12.1f} us {flops / median / 1e9:10.1f} GFLOP/s"
            f"   cadre is {median / medians[own]:7.2f} times as fast"
        )
    rivals = {c: {"median_s": t} for c, t in medians.items() if not c.startswith("cadre")}
    return [
        {
            "op": contender.replace("cadre", "ragged_dot"),
            "shape": name,
            "dtype": options.dtype,
            "m": m,
            "k": k,
            "n": n,
            "num_groups": experts,
            "median_s": medians[contender],
            "gflops": flops / medians[contender] / 1e9,
            "max_error": errors.get(contender),
            "rivals": {
                r: v
                for r, v in rivals.items()
                if r.partition(" ")[2] == contender.partition(" ")[2]
            },
        }
        for contender in medians
        if contender.startswith("cadre")
    ]


def main():
    on_gpu = jax.default_backend() == "gpu"
    shapes = GPU_SHAPES if on_gpu else CPU_SHAPES
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", action="append", choices=list(shapes), help="only this one; may be repeated"
    )
    parser.add_argument("--dtype", default="bfloat16" if on_gpu else "float32")
    parser.add_argument("--gradients", action="store_true", help="time both gradients too")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--calls", type=int, default=5 if on_gpu else 1, help="calls in one timing")
    parser.add_argument(
        "--tolerance", type=float, default=0.02, help="largest relative error of a row"
    )
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    results = []
    for name in options.shape or shapes:
        results += measure(name, shapes[name], options)
    if options.json:
        device = jax.devices()[0]
        machine = {
            "device": device.device_kind,
            "platform": device.platform,
            "jax": jax.__version__,
        }
        with open(options.json, "w") as file:
            json.dump(
                {
                    "schema": 1,
                    "machine": machine,
                    "command": " ".join(sys.argv),
                    "results": results,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
