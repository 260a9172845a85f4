#!/usr/bin/env python3
"""Times the forward pass of a layer with few tokens on a GPU, as one CUDA graph, beside its two products alone.

usage: python bench/decode_layer.py [--tokens N]

The layer is route and cadre.torch.moe_mlp's forward pass; the products are two calls of gmm on rows that are sorted
already, without activation and sum. Graphs are replayed in a loop of their own, 0.3 s of warm-up first; the weights are
several times L2. `kernels` are those of one pass.
"""

import argparse
import sys
import time

SHAPES = {  # experts, top_k, h, i, bias and clamped swiglu
    "qwen3-30b": (128, 8, 2048, 768, False),
    "qwen3-235b": (128, 8, 4096, 1536, False),
    "mixtral-8x7b": (8, 2, 4096, 14336, False),
    "gpt-oss-120b": (128, 4, 2880, 2880, True),
}


def microseconds(torch, call, calls=100):
    graph = torch.cuda.CUDAGraph()
    call()  # outside the capture: what is made once
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        graph.replay()
        torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        graph.replay()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / calls * 1e3


def kernels(torch, call):
    """Names and microseconds of the kernels of one call."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    found = [event for event in trace.events() if event.device_type.name == "CUDA"]
    return [(event.name.split("(")[0].split("<")[0].split("::")[-1], event.device_time) for event in found]


def measure(torch, tokens, experts, top_k, h, i, clamped):
    import cadre.torch

    def normal(*shape, scale=1.0):
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(0, scale)

    x, w13, w2 = normal(tokens, h), normal(experts, 2 * i, h, scale=h**-0.5), normal(experts, h, i, scale=i**-0.5)
    bias13, bias2 = (normal(experts, 2 * i), normal(experts, h)) if clamped else (None, None)
    weights, ids = torch.topk(torch.rand(tokens, experts, device="cuda").softmax(-1), top_k)
    activation = "clamped_swiglu" if clamped else "swiglu"

    def layer():
        return cadre.torch.moe_mlp(x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, activation=activation)

    routing = cadre.torch.route(ids, experts)
    rows, inner = normal(tokens * top_k, h), normal(tokens * top_k, i)

    def products():
        cadre.torch.gmm(rows, w13, routing.group_sizes, transpose_rhs=True, bias=bias13)
        cadre.torch.gmm(inner, w2, routing.group_sizes, transpose_rhs=True, bias=bias2)

    return microseconds(torch, layer), microseconds(torch, products), kernels(torch, layer)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    tokens = parser.parse_args(arguments).tokens
    import torch

    with torch.no_grad():
        for name, shape in SHAPES.items():
            layer, products, found = measure(torch, tokens, *shape)
            print(
                f"{name:13} {tokens} tokens: layer {layer:7.1f} us, products {products:7.1f} us,"
                f" {100 * (layer / products - 1):.1f} % over them, {len(found)} kernels"
            )
            print("    " + ", ".join(f"{kernel} {time:.1f}" for kernel, time in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
