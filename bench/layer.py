#!/usr/bin/env python3
"""Times a whole MoE layer on a GPU: cadre.torch.moe_mlp, its two dense products, and torch's own composition.

usage: python bench/layer.py [--shapes qwen3-30b,...] [--tokens N] [--phases] [--json FILE]

Sustained: each contender in a loop of its own after 0.3 s of warm-up. Rested: the first ten calls after a second of rest.
`of dense` is the time of the two dense products of the same numbers of rows over that of the layer's forward pass, which
writes no pre-activation. TFLOP/s of a training step count 18 t k h i. Results are compared with torch's before timing.
--phases cuts the training step by what its kernels do (kernel_phases.py); `cadre.report` draws it.
"""

import argparse
import json
import shlex
import sys
import time

SHAPES = {  # experts, top_k, h, i, bias and clamped swiglu
    "qwen3-30b": (128, 8, 2048, 768, False),
    "qwen3-235b": (128, 8, 4096, 1536, False),
    "mixtral-8x7b": (8, 2, 4096, 14336, False),
    "gpt-oss-120b": (128, 4, 2880, 2880, True),
}
SONIC = {  # SonicMoE's published shapes: tokens, h, i, experts, top_k
    "sonic 24576,1536/256,128,8": (24576, 1536, 256, 128, 8),
    "sonic 32768,4096/256,256,16": (32768, 4096, 256, 256, 16),
    "sonic 32768,4096/512,128,8": (32768, 4096, 512, 128, 8),
    "sonic 32768,4096/1024,64,4": (32768, 4096, 1024, 64, 4),
    "sonic 32768,4096/1024,128,8": (32768, 4096, 1024, 128, 8),
    "sonic 32768,4096/2048,64,4": (32768, 4096, 2048, 64, 4),
}


class Layer:
    def __init__(self, torch, tokens, experts, top_k, h, i, clamped):
        self.torch, self.clamped = torch, clamped
        self.tokens, self.experts, self.top_k, self.h, self.i = tokens, experts, top_k, h, i
        generator = torch.Generator(device="cuda").manual_seed(1)

        def normal(*shape, scale=1.0):
            values = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
            return values.normal_(0, scale, generator=generator).requires_grad_(True)

        self.x = normal(tokens, h)
        self.w13 = normal(experts, 2 * i, h, scale=h**-0.5)
        self.w2 = normal(experts, h, i, scale=i**-0.5)
        self.bias13 = normal(experts, 2 * i) if clamped else None
        self.bias2 = normal(experts, h) if clamped else None
        logits = torch.rand(tokens, experts, device="cuda", generator=generator)
        weights, self.ids = torch.topk(torch.softmax(logits, -1), top_k)
        self.weights = weights.detach().requires_grad_(True)

    def leaves(self):
        return [t for t in (self.x, self.w13, self.w2, self.bias13, self.bias2, self.weights) if t is not None]

    def cadre(self):
        import cadre.torch

        options = {"activation": "clamped_swiglu"} if self.clamped else {}
        return cadre.torch.moe_mlp(
            self.x, self.ids, self.weights, self.w13, self.w2, bias13=self.bias13, bias2=self.bias2, **options
        )

    def composed(self):
        """Torch's ops around torch's grouped products, as transformers' grouped_mm path composes them."""
        torch = self.torch
        flat = self.ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = order // self.top_k
        expert = flat[order]
        offs = torch.cumsum(torch.bincount(flat, minlength=self.experts), 0).to(torch.int32)
        rows = self.x[token]
        pre = torch._grouped_mm(rows, self.w13.transpose(1, 2), offs=offs)
        if self.bias13 is not None:
            pre = pre + self.bias13[expert]
        gate, up = pre[:, : self.i], pre[:, self.i :]
        if self.clamped:
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            inner = torch.nn.functional.silu(gate) * up
        y = torch._grouped_mm(inner, self.w2.transpose(1, 2), offs=offs)
        if self.bias2 is not None:
            y = y + self.bias2[expert]
        y = y * self.weights.reshape(-1)[order][:, None]
        out = torch.zeros(self.tokens, self.h, device="cuda", dtype=torch.float32)
        return out.index_add_(0, token, y.float()).to(torch.bfloat16)

    def dense(self):
        """The two products alone, all rows with one expert's weights."""
        if not hasattr(self, "dense_operands"):
            m = self.tokens * self.top_k
            torch = self.torch
            self.dense_operands = (
                torch.randn(m, self.h, device="cuda", dtype=torch.bfloat16),
                torch.randn(m, self.i, device="cuda", dtype=torch.bfloat16),
            )
        a, b = self.dense_operands
        a @ self.w13[0].t()
        b @ self.w2[0].t()

    def step(self, forward):
        for leaf in self.leaves():
            leaf.grad = None
        forward().backward(self.x.detach())


def seconds(torch, call, rested):
    """Seconds of a call: sustained, or the mean of the first ten after a second of rest."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if rested:
        call()
        torch.cuda.synchronize()
        time.sleep(1.0)
        count = 10
    else:
        torch.cuda.synchronize()
        start, warm = time.perf_counter(), 0
        while time.perf_counter() - start < 0.3:
            call()
            warm += 1
            torch.cuda.synchronize()
        count = max(5, warm)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / count


def measure(torch, name, layer, composed, phases=False):
    with torch.no_grad():
        mine, theirs = layer.cadre().float(), layer.composed().float()
    error = ((mine - theirs).norm() / theirs.norm()).item()
    if not error < 0.02:
        raise SystemExit(f"{name}: differs from torch's composition by {error:.3f} of its norm")
    numbers = {"experts": layer.experts, "top_k": layer.top_k, "hidden": layer.h, "intermediate": layer.i}
    row = {"layer": name, "tokens": layer.tokens, **numbers, "error": error}

    def inference(call):
        def run():
            with torch.no_grad():
                call()

        return run

    work = layer.tokens * layer.top_k * layer.h * layer.i
    for condition in ("sustained", "rested"):
        rested = condition == "rested"
        dense = seconds(torch, inference(layer.dense), rested)
        forward = seconds(torch, inference(layer.cadre), rested)
        step = seconds(torch, lambda: layer.step(layer.cadre), rested)
        row[condition] = {
            "dense_s": dense, "forward_s": forward, "step_s": step,
            "of_dense": dense / forward, "step_tflops": 18 * work / step / 1e12,
        }  # fmt: skip
        if phases and not rested:  # while the GPU is warm from the loop above
            import kernel_phases

            row[condition]["phases"] = kernel_phases.profiled(torch, lambda: layer.step(layer.cadre))
        if composed:
            row[condition]["torch_forward_s"] = seconds(torch, inference(layer.composed), rested)
            row[condition]["torch_step_s"] = seconds(torch, lambda: layer.step(layer.composed), rested)
    for key, forward in (("cadre", layer.cadre), ("torch", layer.composed)):
        for leaf in layer.leaves():
            leaf.grad = None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = forward()
        row[f"{key}_kept_mib"] = (torch.cuda.memory_allocated() - before - out.nbytes) / 2**20
        out.backward(layer.x.detach())
        row[f"{key}_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        del out
    row["preactivation_mib"] = layer.tokens * layer.top_k * 2 * layer.i * 2 / 2**20
    return row


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names, separated by commas; 'sonic' adds SonicMoE's")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--no-torch", action="store_true", help="don't time torch's composition")
    parser.add_argument("--phases", action="store_true", help="also cut the sustained training step into phases")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("layer: no GPU here", file=sys.stderr)
        return 2
    layers = []
    for name in options.shapes.split(","):
        if name == "sonic":
            layers += [(n, (t, e, k, h, i, False)) for n, (t, h, i, e, k) in SONIC.items()]
        elif name in SHAPES:
            layers.append((name, (options.tokens, *SHAPES[name])))
        else:
            parser.error(f"--shapes: {name!r} is none of {', '.join(SHAPES)}, sonic")
    head = {
        "machine": f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        "command": shlex.join(["python", "bench/layer.py", *(sys.argv[1:] if arguments is None else arguments)]),
    }
    rows = []
    for name, dims in layers:
        row = measure(torch, name, Layer(torch, *dims), not options.no_torch, options.phases)
        rows.append(row)
        for condition in ("sustained", "rested"):
            r = row[condition]
            line = (
                f"{name:28} {condition:9} forward {r['forward_s'] * 1e3:7.3f} ms {r['of_dense']:.3f} of dense, "
                f"step {r['step_s'] * 1e3:7.3f} ms {r['step_tflops']:.0f} TFLOP/s"
            )
            if "torch_forward_s" in r:
                line += (
                    f"; torch forward {r['torch_forward_s'] / r['forward_s']:.2f}, "
                    f"step {r['torch_step_s'] / r['step_s']:.2f} times as long"
                )
            print(line, flush=True)
            if "phases" in r:
                print(f"{name:28} phases    " + ", ".join(f"{each} {s * 1e3:.3f}" for each, s in r["phases"].items()), "ms")
        print(
            f"{name:28} kept {row['cadre_kept_mib']:.0f} MiB (torch {row['torch_kept_mib']:.0f}; the pre-activation "
            f"{row['preactivation_mib']:.0f}), peak {row['cadre_peak_mib']:.0f} (torch {row['torch_peak_mib']:.0f})"
        )
        torch.cuda.empty_cache()
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**head, "results": rows}, file, indent=1)
                file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
