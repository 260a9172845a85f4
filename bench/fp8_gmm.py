#!/usr/bin/env python3
"""Times cadre.torch.gmm and tgmm on FP8 operands on a GPU beside a dense FP8 product of as many rows.

usage: python bench/fp8_gmm.py [--shapes mixtral-w2,...] [--modes block_128,row,row-fast,tensor] [--skew 0|1]
                              [--pass forward|weights] [--conditions sustained,rested] [--json FILE]

Sustained: each contender in a loop of its own after 0.3 s of warm-up. Rested: the median of the first ten calls
after a second of rest, L2 flushed. Dense is torch._scaled_mm with row-wise scales and fast accumulation, which is its
fastest form. Rows are routed at random (skew 1: by Zipf's law). The pass "weights" is the gradient of the weights, from
column-wise copies, in bf16. Some rows are compared with the product in double before anything is timed.
"""

import argparse
import json
import shlex
import sys
import time

SHAPES = {  # experts, rows, k, n
    "mixtral-w13": (8, 16384, 4096, 28672),
    "mixtral-w2": (8, 16384, 14336, 4096),
    "dsv3-w2": (32, 65536, 2048, 7168),
    "qwen3-235b-w13": (128, 65536, 4096, 3072),
    "qwen3-235b-w2": (128, 65536, 1536, 4096),
    "qwen3-30b-w13": (128, 65536, 2048, 1536),
    "qwen3-30b-w2": (128, 65536, 768, 2048),
    "gpt-oss-w13": (128, 32768, 2880, 5760),
    "dsv3-decode": (32, 512, 7168, 4096),
    "qwen3-235b-decode": (128, 1024, 4096, 3072),
}
MODES = ("block_128", "row", "row-fast", "tensor")


class Case:
    """The operands of one shape."""

    def __init__(self, torch, experts, rows, k, n, skew):
        self.torch, self.experts, self.m, self.k, self.n = torch, experts, rows, k, n
        generator = torch.Generator(device="cuda").manual_seed(1)

        def codes(*shape):
            values = torch.empty(shape, device="cuda", dtype=torch.float8_e4m3fn)
            for part in values.view(-1).split(1 << 28):
                noise = torch.empty(part.shape, device="cuda", dtype=torch.bfloat16)
                part.copy_(noise.normal_(0, 64, generator=generator).clamp_(-448, 448).to(torch.float8_e4m3fn))
            return values

        def scales(*shape):
            return torch.empty(shape, device="cuda").uniform_(0.005, 0.015, generator=generator)

        self.x, self.w = codes(rows, k), codes(experts, n, k)
        blocks = -(-k // 128)
        self.scales = {
            "block_128": (scales(blocks, rows).t(), scales(experts, -(-n // 128), blocks)),
            "row": (scales(rows), scales(experts, n)),
            "tensor": (scales(1), scales(experts)),
        }
        chances = torch.arange(1, experts + 1, dtype=torch.float64) ** -float(skew)
        ids = torch.multinomial(chances, rows, replacement=True, generator=torch.Generator().manual_seed(2))
        self.sizes = torch.bincount(ids, minlength=experts).to(torch.int32).cuda()
        self.copies = {}
        self.out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)

    def gmm(self, mode):
        import cadre.torch as ct

        name, _, fast = mode.partition("-")
        lhs, rhs = self.scales[name]
        return ct.gmm(
            ct.ScaledTensor(self.x, lhs, name),
            ct.ScaledTensor(self.w, rhs, name),
            self.sizes,
            transpose_rhs=True,
            out=self.out,
            fast_accumulation=bool(fast),
        )

    def tgmm(self, mode):
        import cadre.torch as ct

        if mode not in self.copies:
            made = []
            for width in (self.k, self.n):
                rows = self.torch.empty(self.m, width, device="cuda", dtype=self.torch.bfloat16).normal_()
                made.append(ct.quantize(rows, mode, self.sizes, rows=False, columns=True))
            self.copies = {mode: made}
            self.gradient = self.torch.empty(self.experts, self.k, self.n, device="cuda", dtype=self.torch.bfloat16)
        return ct.tgmm(*self.copies[mode], self.sizes, out=self.gradient)

    def gradient_error(self, mode):
        import cadre.torch as ct

        self.tgmm(mode)
        self.gradient.fill_(float("nan"))
        got = self.tgmm(mode)
        ends, worst = self.sizes.cumsum(0).tolist(), 0.0
        how = {"num_rows": self.m, "out_dtype": self.torch.bfloat16}
        x, dy = (ct.dequantize(each, self.sizes, **how) for each in self.copies[mode])
        for group in {0, self.experts // 2, self.experts - 1}:
            rows = slice(ends[group - 1] if group else 0, ends[group])
            for column in {0, self.k // 2, self.k - 1}:
                want = x[rows, column].double() @ dy[rows].double()
                error = (got[group, column].double() - want).abs().max() / want.abs().max().clamp(min=1e-3)
                worst = max(worst, float(error))
        return worst

    def dense(self):
        lhs, rhs = self.scales["row"]
        return self.torch._scaled_mm(
            self.x,
            self.w[0].t(),
            scale_a=lhs.view(-1, 1),
            scale_b=rhs[0].view(1, -1),
            out_dtype=self.torch.bfloat16,
            use_fast_accum=True,
        )

    def error(self, mode):
        """The largest error of some rows, as a part of their largest element."""
        torch, name = self.torch, mode.partition("-")[0]
        self.out.fill_(float("nan"))
        got = self.gmm(mode)
        ends = self.sizes.cumsum(0)
        lhs, rhs = self.scales[name]
        worst = 0.0
        for row in {0, self.m // 3, self.m // 2, self.m - 1}:
            group = int((ends <= row).sum())
            x, w = self.x[row].double(), self.w[group].double()
            if name == "block_128":
                x *= lhs[row].repeat_interleave(128)[: self.k]
                w *= rhs[group].repeat_interleave(128, 0)[: self.n].repeat_interleave(128, 1)[:, : self.k]
            else:
                x *= lhs[row if name == "row" else 0]
                w *= rhs[group][:, None] if name == "row" else rhs[group]
            want = w @ x
            worst = max(worst, float((got[row].double() - want).abs().max() / want.abs().max()))
        return worst


def sustained(torch, call):
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(30):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 30 * 1e-3


def rested(torch, call, flush):
    time.sleep(1)
    times = []
    for i in range(10):
        flush.fill_(i)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e-3)
    return sorted(times)[5]


def measure(torch, name, modes, skew, conditions, flush, weights):
    case = Case(torch, *SHAPES[name], skew)
    product, error = (case.tgmm, case.gradient_error) if weights else (case.gmm, case.error)
    calls = {"dense": case.dense, **{mode: (lambda mode=mode: product(mode)) for mode in modes}}
    extent = {"m": case.m, "k": case.k, "n": case.n, "experts": case.experts}
    row = {"shape": name, "pass": "weights" if weights else "forward", "skew": skew, **extent, "error": {}}
    for mode in modes:
        row["error"][mode] = error(mode)
        if not row["error"][mode] < 0.02:
            raise SystemExit(f"fp8_gmm: {name} {mode}: wrong by {row['error'][mode]} of the largest element")
    read = int((case.sizes > 0).sum()) * case.k * case.n
    ways = {"sustained": sustained, "rested": lambda t, c: rested(t, c, flush)}
    for condition, timed in ((condition, ways[condition]) for condition in conditions):
        times = {contender: timed(torch, call) for contender, call in calls.items()}
        row[condition] = {
            contender: {
                "tflops": round(2 * case.m * case.k * case.n / seconds * 1e-12, 1),
                "of_dense": round(times["dense"] / seconds, 4),
                **({} if contender == "dense" else {"weights_tb_s": round(read / seconds * 1e-12, 4)}),
                "us": round(seconds * 1e6, 1),
            }
            for contender, seconds in times.items()
        }
    return row


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--pass", dest="of", choices=("forward", "weights"), default="forward")
    parser.add_argument("--conditions", default="sustained,rested")
    parser.add_argument("--skew", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no shape after so many")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("fp8_gmm: no GPU here", file=sys.stderr)
        return 2
    begin, rows = time.perf_counter(), []
    flush = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    for name in options.shapes.split(","):
        if time.perf_counter() - begin > options.seconds:
            print(f"{name}: not begun, out of time")
            continue
        conditions = options.conditions.split(",")
        row = measure(torch, name, options.modes.split(","), options.skew, conditions, flush, options.of == "weights")
        rows.append(row)
        for condition in conditions:
            line = ", ".join(
                f"{contender} {r['us']:.0f} us {r['tflops']:.0f} TFLOP/s {r['of_dense']:.3f}"
                + (f" ({r['weights_tb_s']:.2f} TB/s)" if "weights_tb_s" in r else "")
                for contender, r in row[condition].items()
            )
            print(f"{name:18} {condition:9} {line}", flush=True)
        torch.cuda.empty_cache()
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                head = {
                    "command": shlex.join(["python", *sys.argv]),
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                }
                lines = ",\n  ".join(json.dumps(row) for row in rows)
                file.write(json.dumps(head)[:-1] + ',\n "rows": [\n  ' + lines + "\n]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
