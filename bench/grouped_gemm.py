#!/usr/bin/env python3
"""Times grouped_gemm on a GPU beside gmm and tgmm of the same products, at the layers of known models.

usage: python bench/grouped_gemm.py [--shapes qwen3-30b,...] [--tokens N] [--json FILE]

Groups have the sizes of a router with a uniform random choice. Operands of grouped_gemm are lists of matrices, of which
the host knows the sizes; gmm's lie on the device. Results are compared bit by bit first. Sustained: each in a loop of its
own after 0.3 s of warm-up. Rested: the first ten calls after a second of rest.
"""

import argparse
import json
import sys

from layer import SHAPES, seconds


def cases(torch, name, tokens):
    """Yields (what, its gmm or tgmm, its grouped_gemm)."""
    import cadre.torch

    experts, top_k, h, i, _ = SHAPES[name]
    generator = torch.Generator(device="cuda").manual_seed(1)
    chosen = torch.rand(tokens, experts, device="cuda", generator=generator).topk(top_k).indices
    sizes = torch.bincount(chosen.flatten(), minlength=experts)
    rows = sizes.tolist()

    def normal(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(0, 1, generator=generator)

    x, w13, dy = normal(tokens * top_k, h), normal(experts, 2 * i, h), normal(tokens * top_k, 2 * i)
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w13)
    lists = {key: list(value.split(rows)) for key, value in {"x": x, "dy": dy, "y": y, "dx": dx}.items()}
    w_list, dw_list = list(w13.unbind()), list(dw.unbind())
    grouped = cadre.torch.grouped_gemm
    yield (
        "forward",
        lambda: cadre.torch.gmm(x, w13, sizes, transpose_rhs=True),
        lambda: (grouped(lists["x"], w_list, transb=True, d=lists["y"]), y)[1],
    )
    yield (
        "to the input",
        lambda: cadre.torch.gmm(dy, w13, sizes),
        lambda: (grouped(lists["dy"], w_list, d=lists["dx"]), dx)[1],
    )
    yield (
        "weight gradient",
        lambda: cadre.torch.tgmm(dy, x, sizes),
        lambda: (grouped(lists["dy"], lists["x"], transa=True, d=dw_list), dw)[1],
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-30b,qwen3-235b,mixtral-8x7b,gpt-oss-120b")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench/grouped_gemm.py: no CUDA device here")
    results = []
    for name in options.shapes.split(","):
        if name not in SHAPES:
            parser.error(f"unknown shape {name}: there are {', '.join(SHAPES)}")
        for what, product, grouped in cases(torch, name, options.tokens):
            expected, got = product(), grouped()
            if not torch.equal(expected, got):
                sys.exit(f"{name} {what}: grouped_gemm has other bits than gmm or tgmm")
            row = {"layer": name, "pass": what}
            for rested in (False, True):
                ours, other = (seconds(torch, call, rested) for call in (grouped, product))
                row["rested" if rested else "sustained"] = {"grouped us": ours * 1e6, "gmm us": other * 1e6, "speed": round(other / ours, 3)}
            print(json.dumps(row), flush=True)
            results.append(row)
    if options.json:
        document = {"command": " ".join(["python", *sys.argv]), "device": torch.cuda.get_device_name(), "rows": results}
        with open(options.json, "w") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
