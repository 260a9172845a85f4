#!/usr/bin/env python3
"""What an exchange costs: ExpertParallelMLP with one rank over NCCL, beside the layer on one device, on a GPU.

usage: python bench/expert_parallel.py [--shapes mixtral-8x7b,...] [--tokens N] [--json FILE]

Both hold the same experts and get the same tokens; results are compared before timing. `more` is the time of the layer over
the exchange over that of the layer alone, less 1. `bytes` are those that the exchange adds: the rows copied there and back by
the collective, one gather before it and one sum behind it, each read and written once. `of copy` is their rate, over the
added time, as a share of a device-to-device copy's.
"""

import argparse
import json
import sys
import tempfile

from layer import SHAPES, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", default="mixtral-8x7b,qwen3-30b")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--json")
    options = parser.parse_args()
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        sys.exit("bench/expert_parallel.py: no CUDA device here")
    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        results = [row for name in options.shapes.split(",") for row in measure(torch, name, options.tokens)]
        dist.destroy_process_group()
    bandwidth = copy_bytes_per_second(torch)
    for row in results:
        # None: the exchange cost less than two runs differ by.
        added = row["added ms"] / 1e3
        row["of copy"] = round(row["bytes"] / added / bandwidth, 3) if added > 0 else None
        print(json.dumps(row))
    document = {
        "command": "python bench/expert_parallel.py " + " ".join(sys.argv[1:]),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_second": round(bandwidth),
        "results": results,
    }
    if options.json:
        with open(options.json, "w") as file:
            json.dump(document, file, indent=1)


def measure(torch, name, tokens):
    import cadre.torch
    from cadre.torch.expert_parallel import ExpertParallelMLP

    experts, top_k, h, i, clamped = SHAPES[name]
    kind = {"activation": "clamped_swiglu" if clamped else "swiglu", "bias": clamped}
    common = {**kind, "dtype": torch.bfloat16, "device": "cuda", "init_method": lambda w: w.normal_(0, 0.02)}
    torch.manual_seed(1)
    alone = cadre.torch.GroupedMLP(experts, h, i, **common)
    x, dout = (torch.randn(tokens, h, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weights, ids = cadre.torch.select_experts(torch.randn(tokens, experts, device="cuda"), top_k)
    rows = tokens * top_k
    for exchange in ({"exchange": "capacity", "capacity": rows}, {"exchange": "all_to_all"}):
        torch.manual_seed(1)
        spread = ExpertParallelMLP(experts, h, i, **common, **exchange)
        spread.load_state_dict(alone.state_dict())
        with torch.no_grad():
            if not torch.equal(spread(x, ids, weights), alone(x, ids, weights)):
                sys.exit(f"{name}: the exchange changes results")

        def forward(layer):
            with torch.no_grad():
                layer(x, ids, weights)

        def step(layer):
            for parameter in layer.parameters():
                parameter.grad = None
            leaves = x.detach().requires_grad_(), weights.detach().requires_grad_()
            layer(leaves[0], ids, leaves[1]).backward(dout)

        for what, call, passes in (("forward", forward, 1), ("step", step, 2)):
            ours = seconds(torch, lambda: call(spread), False)
            base = seconds(torch, lambda: call(alone), False)
            yield {
                "shape": name, "tokens": tokens, "exchange": exchange["exchange"], "what": what,
                "alone ms": round(base * 1e3, 3), "exchange ms": round(ours * 1e3, 3),
                "added ms": round((ours - base) * 1e3, 3), "more": round(ours / base - 1, 4),
                "bytes": passes * 8 * rows * h * 2,
            }  # fmt: skip
        del spread
        torch.cuda.empty_cache()


def copy_bytes_per_second(torch):
    source = torch.empty(2**29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(torch, lambda: target.copy_(source), False)


if __name__ == "__main__":
    main()
