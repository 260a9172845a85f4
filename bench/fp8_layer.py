#!/usr/bin/env python3
"""Times forward and backward of cadre.torch.GroupedMLP in bf16 and in each FP8 recipe on a GPU.

usage: python bench/fp8_layer.py

32 experts, top 8, 8192 tokens, h 2048, i 768. The median of six passes after two, with a wait behind each, the host's time
included. Weights are quantised in the first pass alone. The peak is that of all passes so far.
"""

import sys
import time

EXPERTS, HIDDEN, INNER, TOKENS, TOP_K = 32, 2048, 768, 8192, 8


def main():
    import cadre.torch
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/fp8_layer.py: no CUDA device here")
    x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weights, ids = cadre.torch.select_experts(torch.randn(TOKENS, EXPERTS, device="cuda"), TOP_K)
    for recipe in (None, "block_128", "row", "tensor", "mx"):
        layer = cadre.torch.GroupedMLP(EXPERTS, HIDDEN, INNER, dtype=torch.bfloat16, device="cuda", recipe=recipe)
        times = []
        for step in range(8):
            torch.cuda.synchronize()
            start = time.perf_counter()
            layer(x, ids, weights, is_first_microbatch=step == 0).sum().backward()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{recipe or 'bf16':10} {sorted(times[2:])[3] * 1e3:8.2f} ms, peak {peak:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
