#!/usr/bin/env python3
"""Times forward and backward of cadre.torch.GroupedMLP in bf16 and in each FP8 recipe on a GPU.

usage: python bench/fp8_layer.py [--shapes qwen3-30b,...] [--recipes block_128,row,...] [--tokens N] [--json FILE]

Weights are quantised in the first pass of a step, as a training step with one microbatch does, so every timed pass
quantises everything. Sustained: each recipe in a loop of its own after 0.3 s of warm-up. Rested: the first ten calls
after a second of rest. Results and gradients are compared with the bf16 layer's first. "parts": where the GPU's time of
one step goes, by kernel, from torch's profiler.
"""

import argparse
import json
import shlex
import sys

from layer import SHAPES, seconds

RECIPES = ("block_128", "row", "tensor", "mx")


class Step:
    def __init__(self, torch, name, tokens):
        experts, top_k, self.hidden, self.inner, _ = SHAPES[name]
        self.torch, self.experts, self.tokens = torch, experts, tokens
        generator = torch.Generator(device="cuda").manual_seed(1)

        def normal(*shape, scale=1.0):
            values = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
            return values.normal_(0, scale, generator=generator)

        self.x = normal(tokens, self.hidden).requires_grad_(True)
        self.dy = normal(tokens, self.hidden)
        self.w13 = normal(experts, 2 * self.inner, self.hidden, scale=self.hidden**-0.5)
        self.w2 = normal(experts, self.hidden, self.inner, scale=self.inner**-0.5)
        logits = torch.rand(tokens, experts, device="cuda", generator=generator)
        weights, self.ids = torch.topk(torch.softmax(logits, -1), top_k)
        self.weights = weights.detach().requires_grad_(True)
        self.flops = 18 * tokens * top_k * self.hidden * self.inner

    def layer(self, recipe):
        import cadre.torch

        torch = self.torch
        made = cadre.torch.GroupedMLP(
            self.experts, self.hidden, self.inner, dtype=torch.bfloat16, device="cuda", recipe=recipe
        )
        with torch.no_grad():
            made.w13.copy_(self.w13)
            made.w2.copy_(self.w2)
        return made

    def run(self, layer):
        for each in (self.x, self.weights, layer.w13, layer.w2):
            each.grad = None
        out = layer(self.x, self.ids, self.weights, is_first_microbatch=True)
        out.backward(self.dy)
        return out

    def results(self, layer):
        out = self.run(layer)
        return [each.detach().float() for each in (out, self.x.grad, self.weights.grad, layer.w13.grad, layer.w2.grad)]


def parts(torch, call, count=3):
    """Milliseconds of a call by kernel, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    times = {}
    for event in profile.key_averages():
        name = event.key.split("(")[0][-90:]
        times[name] = times.get(name, 0) + event.self_device_time_total / 1e3 / count
    return dict(sorted(times.items(), key=lambda item: -item[1])[:14])


def measure(torch, name, tokens, recipes):
    step = Step(torch, name, tokens)
    plain = step.layer(None)
    expected = step.results(plain)
    row = {"layer": name, "tokens": tokens, "error": {}}

    def timed(layer):
        found = {}
        for condition in ("sustained", "rested"):
            spent = seconds(torch, lambda: step.run(layer), condition == "rested")
            found[condition] = {"ms": round(spent * 1e3, 3), "tflops": round(step.flops / spent * 1e-12, 1)}
        torch.cuda.reset_peak_memory_stats()
        step.run(layer)
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        return found

    row["bf16"] = timed(plain)
    print(f"{name:14} bf16       {row['bf16']}", flush=True)
    del plain
    for recipe in recipes:
        layer = step.layer(recipe)
        got = step.results(layer)
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(got, expected, strict=True)]
        del got
        row["error"][recipe] = {
            what: round(error, 4) for what, error in zip(("y", "dx", "dweights", "dw13", "dw2"), errors, strict=True)
        }
        if not max(errors) < 0.15:
            raise SystemExit(f"fp8_layer: {name} {recipe}: wrong by {errors}")
        row[recipe] = timed(layer)
        for condition in ("sustained", "rested"):
            row[recipe][condition]["of_bf16"] = round(row["bf16"][condition]["ms"] / row[recipe][condition]["ms"], 3)
        row[recipe]["parts"] = {key: round(ms, 3) for key, ms in parts(torch, lambda: step.run(layer)).items()}
        shown = {key: value for key, value in row[recipe].items() if key != "parts"}
        print(f"{name:14} {recipe:10} {shown}", flush=True)
        del layer
    return row


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-30b,qwen3-235b,mixtral-8x7b")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    for name in options.shapes.split(","):
        if name not in SHAPES:
            parser.error(f"unknown shape {name}: there are {', '.join(SHAPES)}")
    for name in options.recipes.split(","):
        if name not in RECIPES:
            parser.error(f"unknown recipe {name}: there are {', '.join(RECIPES)}")
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/fp8_layer.py: no CUDA device here")
    rows = []
    for name in options.shapes.split(","):
        rows.append(measure(torch, name, options.tokens, options.recipes.split(",")))
        torch.cuda.empty_cache()
        if options.json:
            head = {"command": shlex.join(["python", *sys.argv]), "device": torch.cuda.get_device_name()}
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**head, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
