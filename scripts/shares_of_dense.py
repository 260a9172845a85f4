#!/usr/bin/env python3
"""Prints the shares of dense in a result file of `cadre bench --device cuda` as the Markdown tables of docs/kernels.md.

usage: shares_of_dense.py [FILE]      (default: bench/results/h200/cuda.json)

A table for each condition that the file has, sustained first: bf16, the geometric mean over layers and both routings, with the
worst and the best row in brackets.
"""
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONDITIONS = ("sustained", "rested", "mixed")
CASES = {
    "forward": "forward",
    "dgrad": "to the input",
    "wgrad": "weight gradient",
    "wgrad f32 accumulate": "the same, added to fp32",
}


def cell(shares):
    if not shares:
        return "–"
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    return f"{mean:.2f} ({min(shares):.2f} to {max(shares):.2f})"


def table(rows):
    """Lines of a table of rows of one condition, most rows per expert first."""
    shares = {}
    for row in rows:
        shares.setdefault(row["m"] // row["num_groups"], {}).setdefault(row["case"], []).append(row["of_dense"])
    yield "| bf16, rows per expert | " + " | ".join(CASES.values()) + " |"
    yield "|---" * (len(CASES) + 1) + "|"
    for rows_per_expert, of_case in sorted(shares.items(), reverse=True):
        yield f"| {rows_per_expert} | " + " | ".join(cell(of_case.get(case)) for case in CASES) + " |"


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench/results/h200/cuda.json"
    rows = [row for row in json.loads(path.read_text())["results"]
            if row.get("case") in CASES and row["dtype"] == "bf16" and "of_dense" in row]
    for condition in CONDITIONS:
        chosen = [row for row in rows if row.get("condition", "mixed") == condition]
        if chosen:
            print(f"{condition}:\n", *table(chosen), "", sep="\n")


if __name__ == "__main__":
    main()
