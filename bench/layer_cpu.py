#!/usr/bin/env python3
"""Times a whole MoE layer on a CPU: cadre.torch.moe_mlp beside torch's own compositions and beside its two products alone.

usage: python bench/layer_cpu.py [--shapes qwen3-30b,...] [--tokens 1,16,...] [--dtypes bf16,f32] [--seconds S] [--cpu-time]
                                 [--phases] [--json FILE]

All are forward passes from expert ids to tokens, on as many threads as torch has (OMP_NUM_THREADS). Contenders take turns,
in another order each round; a ratio is the median of the rounds' ratios, so that a busy machine slows both sides of it. On one
thread --cpu-time leaves out the time that others have.

  packed    moe_mlp with weights that pack_weights packed ahead
  grouped   torch's ops around its grouped_mm
  loop      torch's ops in a loop over the experts that have rows
  products  two gmm calls on rows that are sorted already: no routing, gathering, activation or sum

--phases also times the layer's ops one by one, as it calls them: the first product gathers rows as it packs them and applies
the activation as it writes, so these three are one phase.
"""

import argparse
import json
import os
import statistics
import sys
import time

SHAPES = {  # experts, top_k, h, i
    "qwen3-30b": (128, 8, 2048, 768),
    "mixtral-8x7b/4": (8, 2, 1024, 3584),
}


class Weights:
    """Of all experts, each with other values, and packed copies."""

    def __init__(self, torch, dtype, experts, h, i):
        import cadre.torch

        torch.manual_seed(1)
        # One matrix is random and others are multiples of it: 10^9 random numbers would take longer than the benchmark.
        factors = torch.linspace(0.5, 1.5, experts)[:, None, None].to(dtype)
        self.w13 = factors * torch.empty(2 * i, h, dtype=dtype).normal_(0, h**-0.5)
        self.w2 = factors * torch.empty(h, i, dtype=dtype).normal_(0, i**-0.5)
        self.packs = {
            "packed_w13": cadre.torch.pack_weights(self.w13, transpose_rhs=True),
            "packed_w2": cadre.torch.pack_weights(self.w2, transpose_rhs=True),
        }


class Layer:
    def __init__(self, torch, weights, tokens, experts, top_k, h, i):
        import cadre.torch

        self.torch, self.cadre = torch, cadre.torch
        self.tokens, self.experts, self.top_k = tokens, experts, top_k
        self.w13, self.w2, self.packs = weights.w13, weights.w2, weights.packs
        torch.manual_seed(tokens)
        dtype = self.w13.dtype
        self.x = torch.randn(tokens, h).to(dtype)
        self.weights, self.ids = torch.topk(torch.softmax(torch.rand(tokens, experts), -1), top_k)
        self.routing = cadre.torch.route(self.ids, experts)
        self.rows = cadre.torch.permute(self.x, self.routing)
        self.inner = torch.randn(tokens * top_k, i).to(dtype)

    def layer(self):
        return self.cadre.moe_mlp(self.x, self.ids, self.weights, self.w13, self.w2)

    def packed(self):
        return self.cadre.moe_mlp(self.x, self.ids, self.weights, self.w13, self.w2, **self.packs)

    def products(self):
        sizes = self.routing.group_sizes
        self.cadre.gmm(self.rows, self.w13, sizes, transpose_rhs=True)
        self.cadre.gmm(self.inner, self.w2, sizes, transpose_rhs=True)

    def phases(self):
        """[(what, call)]: the ops that the layer calls, each with operands of its own."""
        sizes, cadre = self.routing.group_sizes, self.cadre
        y = cadre.gmm(self.inner, self.w2, sizes, transpose_rhs=True)
        swiglu = {"transpose_rhs": True, "activation": "swiglu", "lhs_rows": self.routing}
        return [
            ("route", lambda: cadre.route(self.ids, self.experts)),
            ("gather, w13 and activation", lambda: cadre.gmm(self.x, self.w13, sizes, **swiglu)),
            ("w2", lambda: cadre.gmm(self.inner, self.w2, sizes, transpose_rhs=True)),
            ("combine", lambda: cadre.combine(y, self.routing, weights=self.weights)),
        ]

    def grouped(self):
        """As transformers' grouped_mm path composes it."""
        torch = self.torch
        flat = self.ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = order // self.top_k
        offs = torch.cumsum(torch.bincount(flat, minlength=self.experts), 0).to(torch.int32)
        product = torch.nn.functional.grouped_mm
        gate, up = product(self.x[token], self.w13.transpose(1, 2), offs=offs).chunk(2, -1)
        y = product(torch.nn.functional.silu(gate) * up, self.w2.transpose(1, 2), offs=offs)
        y = y * self.weights.reshape(-1)[order][:, None]
        return torch.zeros(self.x.shape).index_add_(0, token, y.float()).to(self.x.dtype)

    def loop(self):
        """As transformers' eager path composes it."""
        torch = self.torch
        out = torch.zeros(self.x.shape)
        hits = torch.bincount(self.ids.reshape(-1), minlength=self.experts)
        for expert in hits.nonzero().flatten().tolist():
            token, slot = torch.where(self.ids == expert)
            gate, up = (self.x[token] @ self.w13[expert].t()).chunk(2, -1)
            y = (torch.nn.functional.silu(gate) * up) @ self.w2[expert].t()
            out.index_add_(0, token, (y * self.weights[token, slot, None]).float())
        return out.to(self.x.dtype)


def check(layer, name, limit):
    expected = layer.loop().float()
    for contender in (layer.layer, layer.packed, layer.grouped):
        error = ((contender().float() - expected).norm() / expected.norm()).item()
        if not error < limit:
            raise SystemExit(f"{name}: {contender.__name__} differs from the loop by {error:.1e} of its norm")


def measure(layer, seconds, clock, phases=False):
    """A row's times: medians and ratios to the layer's, of rounds in which every contender has its turn."""
    whole = [layer.layer, layer.packed, layer.grouped, layer.loop, layer.products]
    contenders = [(each.__name__, each) for each in whole]
    parts = layer.phases() if phases else []
    contenders += parts
    times = {name: [] for name, _ in contenders}
    calls = {}
    for name, call in contenders:
        call()
        begin = clock()
        call()
        # A turn is 5 ms or one call.
        calls[name] = max(1, int(5e-3 / (clock() - begin)))
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        rounds += 1
        first = rounds % len(contenders)
        for name, call in contenders[first:] + contenders[:first]:
            begin = clock()
            for _ in range(calls[name]):
                call()
            times[name].append((clock() - begin) / calls[name])
    medians = {name: statistics.median(each) for name, each in times.items()}
    ratios = {
        name: statistics.median(theirs / mine for theirs, mine in zip(times[name], times["layer"], strict=True))
        for name in (each.__name__ for each in whole[1:])
    }
    row = {"rounds": rounds, "seconds": {each.__name__: medians[each.__name__] for each in whole}, "times_the_layer": ratios}
    return row | ({"phases": {name: medians[name] for name, _ in parts}} if parts else {})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-30b", help=f"of {', '.join(SHAPES)}, separated by commas")
    parser.add_argument("--tokens", default="1,16,64,256,1024")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each line, at least; five rounds are made anyway")
    parser.add_argument("--cpu-time", action="store_true", help="count the process's CPU time, on one thread")
    parser.add_argument("--phases", action="store_true", help="also time the ops of the layer one by one")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    import torch
    from this_machine import machine

    threads = torch.get_num_threads()
    if options.cpu_time and (threads > 1 or os.environ.get("CADRE_NUM_THREADS") != "1"):
        parser.error("--cpu-time: set OMP_NUM_THREADS=1 and CADRE_NUM_THREADS=1")
    clock = time.process_time if options.cpu_time else time.perf_counter
    dtypes = {"bf16": (torch.bfloat16, 2e-2), "f32": (torch.float32, 1e-5)}
    rows = []
    set_here = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "CADRE_NUM_THREADS", "CADRE_ISA") if name in os.environ]
    words = sys.argv[1:] if arguments is None else arguments
    record = {
        "command": " ".join([*set_here, "python bench/layer_cpu.py", *words]),
        "machine": machine(),
        "torch": torch.__version__,
        "threads": threads,
        "load": os.getloadavg(),
        "results": rows,
    }
    with torch.no_grad():
        for name in options.shapes.split(","):
            experts, top_k, h, i = SHAPES[name]
            numbers = {"experts": experts, "top_k": top_k, "hidden": h, "intermediate": i}
            for dtype in options.dtypes.split(","):
                weights = Weights(torch, dtypes[dtype][0], experts, h, i)
                for tokens in map(int, options.tokens.split(",")):
                    layer = Layer(torch, weights, tokens, *SHAPES[name])
                    check(layer, name, dtypes[dtype][1])
                    times = measure(layer, options.seconds, clock, options.phases)
                    rows.append({"layer": name, "dtype": dtype, "tokens": tokens, **numbers, **times})
                    print(
                        f"{name} {dtype:4} {tokens:5} tokens {times['seconds']['layer'] * 1e3:9.3f} ms; "
                        "takes the time of the layer times: "
                        + ", ".join(f"{each} {ratio:.2f}" for each, ratio in times["times_the_layer"].items())
                        + "".join(f"; {each} {s * 1e3:.3f} ms" for each, s in times.get("phases", {}).items()),
                        flush=True,
                    )
                    if options.json:
                        with open(options.json, "w", encoding="utf-8") as file:
                            json.dump(record, file, indent=1)
                            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
