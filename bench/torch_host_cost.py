#!/usr/bin/env python3
"""Host time of one call of the PyTorch front, in microseconds: what a launch costs before the GPU has run it.

usage: python bench/torch_host_cost.py [--json FILE]. The result of every call is checked first. Calls are so small that
the GPU keeps up; each sample is the mean over 100 calls, launched without a sync in between; the median, the least and
the greatest of 40 samples are printed, with the rivals in turn. no_grad is entered once for a sample, not for a call. On a
CPU the time of the product is in it.
"""

import argparse
import json
import platform
import statistics
import time

import cadre
import cadre.torch
import torch
import torch.nn.functional as F

#: The call whose time shows how fast the host is; every other is given as a multiple of it, too.
SCALE = "torch.mm, no_grad"
M, K, N, G = 128, 128, 128, 4


def cases(device):
    x = torch.randn(M, K, device=device).bfloat16()
    w = torch.randn(G, K, N, device=device).bfloat16()
    listed = [each.clone() for each in w]
    sizes = torch.full((G,), M // G, dtype=torch.int32, device=device)
    offs = torch.cumsum(sizes, 0, dtype=torch.int32)
    dy = torch.randn(M, N, device=device).bfloat16()
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    listed_g = [each.clone().requires_grad_() for each in w]
    main_grad = torch.zeros(G, K, N, device=device)
    expected = torch.cat([x[i * 32 : i * 32 + 32] @ w[i] for i in range(G)])

    products = {
        "gmm, no_grad": lambda: cadre.torch.gmm(x, w, sizes),
        "gmm, list of weights, no_grad": lambda: cadre.torch.gmm(x, listed, sizes),
        "gmm, host sizes, no_grad": lambda: cadre.torch.gmm(x, w, [M // G] * G),
        "grouped_mm, no_grad": lambda: cadre.torch.grouped_mm(x, w, offs=offs),
        "F.grouped_mm, no_grad": lambda: F.grouped_mm(x, w, offs=offs),
        "gmm, autograd": lambda: cadre.torch.gmm(xg, wg, sizes),
        "F.grouped_mm, autograd": lambda: F.grouped_mm(xg, wg, offs=offs),
    }
    for name, function in products.items():
        torch.testing.assert_close(
            function(), expected, msg=lambda text, name=name: f"{name}: {text}"
        )
    others = {
        "tgmm, no_grad": lambda: cadre.torch.tgmm(x, dy, sizes),
        "tgmm into main_grad, no_grad": lambda: cadre.torch.tgmm(
            x, dy, sizes, out=main_grad, accumulate=True
        ),
        "torch.mm, no_grad": lambda: torch.mm(x, listed[0]),
        "gmm, forward and backward": lambda: torch.autograd.grad(
            cadre.torch.gmm(xg, wg, sizes), (xg, wg), dy
        ),
        "gmm, list of weights, forward and backward": lambda: torch.autograd.grad(
            cadre.torch.gmm(xg, listed_g, sizes), (xg, *listed_g), dy
        ),
        "F.grouped_mm, forward and backward": lambda: torch.autograd.grad(
            F.grouped_mm(xg, wg, offs=offs), (xg, wg), dy
        ),
    }
    return {**products, **others}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--calls", type=int, default=100, help="calls in one sample")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    functions = cases(device)
    samples = {name: [] for name in functions}
    for sample in range(options.samples + 3):
        for name, function in functions.items():
            synchronize()
            with torch.set_grad_enabled(not name.endswith("no_grad")):
                start = time.perf_counter()
                for _ in range(options.calls):
                    function()
                elapsed = (time.perf_counter() - start) / options.calls * 1e6
            synchronize()
            if sample >= 3:
                samples[name].append(elapsed)
    scale = statistics.median(samples[SCALE])
    print(
        f"{'call':<43} {'median':>8} {'least':>8} {'greatest':>8}  microseconds of host time; / {SCALE}"
    )
    for name, values in samples.items():
        median = statistics.median(values)
        print(
            f"{name:<43} {median:8.2f} {min(values):8.2f} {max(values):8.2f} {median / scale:8.2f}"
        )
    if options.json:
        device_name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
        record = {
            "command": "python bench/torch_host_cost.py --json FILE",
            "device": device_name,
            "torch": torch.__version__,
            "cadre": cadre.__version__,
            "samples": options.samples,
            "calls": options.calls,
            "shape": {"m": M, "k": K, "n": N, "num_groups": G, "dtype": "bf16"},
            "results": [
                {
                    "op": name,
                    "median_us": statistics.median(values),
                    "least_us": min(values),
                    "greatest_us": max(values),
                    "relative": statistics.median(values) / scale,
                    "calls_per_second": 1e6 / statistics.median(values),
                }
                for name, values in samples.items()
            ],
        }
        with open(options.json, "w") as file:
            json.dump(record, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
