#!/usr/bin/env python3
"""Times gmm with an activation on a GPU beside the same product alone, in both orders of rhs, bf16.

usage: python bench/activations.py [--rows N] [--json FILE]

Sustained: each call in a loop of its own after 0.3 s of warm-up. The product is qwen3-30b's first (128 experts, k 2048,
1536 columns), with 512 rows for each expert unless told. Results are compared with the formulas before timing.
"""

import argparse
import json
import sys
import time

EXPERTS, K, COLUMNS = 128, 2048, 1536
GATED = ("swiglu", "geglu", "geglu_tanh", "clamped_swiglu")
ALONE = ("silu", "gelu", "gelu_tanh", "relu2")


def formula(torch, name, interleaved, sums):
    gelu = torch.nn.functional.gelu
    each = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
        "gelu": gelu,
        "relu2": lambda x: x.relu() ** 2,
    }
    if name in each:
        return each[name](sums)
    half = sums.shape[1] // 2
    gate, up = (sums[:, 0::2], sums[:, 1::2]) if interleaved else (sums[:, :half], sums[:, half:])
    if name == "clamped_swiglu":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    of_gate = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[name]
    return each[of_gate](gate) * up


def seconds(torch, call):
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 0.3:
        call()
        torch.cuda.synchronize()
        count += 1
    count = max(5, count)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / count


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512, help="of each expert")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    import cadre.torch
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/activations.py: no CUDA device here")
    torch.manual_seed(1)
    rows = EXPERTS * options.rows
    x = torch.randn(rows, K, device="cuda", dtype=torch.bfloat16)
    sizes = torch.full((EXPERTS,), options.rows, device="cuda", dtype=torch.int32)
    results = []
    for order, shape in (("[g, n, k]", (EXPERTS, COLUMNS, K)), ("[g, k, n]", (EXPERTS, K, COLUMNS))):
        w = torch.randn(shape, device="cuda", dtype=torch.bfloat16) * K**-0.5
        product = dict(transpose_rhs=order == "[g, n, k]")
        sums = cadre.torch.gmm(x, w, sizes, out_dtype=torch.float32, **product)
        alone = seconds(torch, lambda w=w, product=product: cadre.torch.gmm(x, w, sizes, **product))
        print(f"{order}: the product alone {alone * 1e3:.3f} ms", flush=True)
        for name, interleaved in [(a, False) for a in GATED + ALONE] + [(a, True) for a in GATED]:
            how = dict(activation=name, interleaved=interleaved, **product)
            found = cadre.torch.gmm(x, w, sizes, **how).float()
            expected = formula(torch, name, interleaved, sums)
            error = ((found - expected).norm() / expected.norm()).item()
            del found, expected
            if not error < 0.01:
                raise SystemExit(f"{name}, {order}: differs from its formula by {error:.3f} of its norm")
            spent = seconds(torch, lambda how=how, w=w: cadre.torch.gmm(x, w, sizes, **how))
            row = {"rhs": order, "activation": name, "interleaved": interleaved, "seconds": spent, "product_s": alone}
            results.append(row)
            label = name + (", interleaved" if interleaved else "")
            print(f"  {label:28} {spent * 1e3:.3f} ms, {spent / alone:.3f} of the product", flush=True)
        del sums
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": options.rows, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
