#!/usr/bin/env python3
"""Draws the share of dense that the forward product reaches on a GPU, cadre beside torch's grouped_mm.

    make plots        # or: python scripts/plot_share_of_dense.py

Reads bench/results/h200/rivals_torch.json, where all contenders ran in one process, and writes
docs/images/h200_share_of_dense.svg. A bar is the geometric mean over a model's layers and both routings (balanced and
Zipf), its line goes from the worst row to the best. The condition is the file's best: sustained, else rested, else mixed.
"""

import argparse
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONDITIONS = ("sustained", "rested", "mixed")
CONTENDERS = {"cadre": "#2f81f7", "torch grouped_mm": "#d98324"}
#: Bars: the label, and how the shapes' names begin.
MODELS = {
    "Mixtral 8x7B": "mixtral-8x7b",
    "DeepSeek-V3, 8 shards": "dsv3-ep8",
    "Qwen3 235B": "qwen3-235b",
    "Qwen3 30B": "qwen3-30b",
    "gpt-oss 120B": "gpt-oss-120b",
}
GREY = "#808890"  # readable on white and on black


def rows_of(path, condition):
    """(condition, rows): the forward rows in that condition, or in the first of CONDITIONS that the file has."""
    rows = [row for row in json.loads(path.read_text())["results"] if row["case"] == "forward" and "of_dense" in row]
    for name in [condition] if condition else CONDITIONS:
        chosen = [row for row in rows if row.get("condition", "mixed") == name]
        if chosen:
            return name, chosen
    raise SystemExit(f"{path}: no forward row in the condition {condition or ' or '.join(CONDITIONS)}")


def share(row, contender):
    if contender == "cadre":
        return row["of_dense"]
    rival = row["rivals"].get(contender)
    return row["dense_median_s"] / rival["median_s"] if rival else None


def bars_of(rows):
    """For each model in the file: (label, {contender: (geometric mean, worst, best)})."""
    bars = []
    for label, beginning in MODELS.items():
        named = [row for row in rows if row["shape"].startswith(beginning)]
        if not named:
            continue
        figures = {}
        for contender in CONTENDERS:
            shares = [value for value in (share(row, contender) for row in named) if value]
            if shares:
                mean = math.exp(sum(map(math.log, shares)) / len(shares))
                figures[contender] = (mean, min(shares), max(shares))
        rows_per_expert = named[0]["m"] // named[0]["num_groups"]
        bars.append((f"{label}\n{rows_per_expert} rows an expert", figures))
    return bars


def draw(bars, title, source, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text stays text, and the same data give the same bytes.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "cadre", "font.family": "sans-serif",
                         "font.size": 10, "text.color": GREY, "axes.labelcolor": GREY,
                         "xtick.color": GREY, "ytick.color": GREY, "axes.edgecolor": GREY})
    figure, axes = plt.subplots(figsize=(8.4, 3.9))
    width = 0.36
    for index, (contender, color) in enumerate(CONTENDERS.items()):
        places = [place + (index - 0.5) * width for place in range(len(bars))]
        figures = [figures.get(contender, (0, 0, 0)) for _, figures in bars]
        axes.bar(places, [mean for mean, _, _ in figures], width * 0.94, color=color, label=contender)
        for place, (mean, worst, best) in zip(places, figures):
            axes.plot([place, place], [worst, best], color=GREY, linewidth=1.2)
            axes.text(place, min(worst, mean) - 0.03, f"{mean:.2f}", ha="center", va="top", color="white",
                      fontweight="bold")
    axes.axhline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(len(bars) - 0.42, 1.0, "dense\ncuBLAS", va="center", ha="left", fontsize=9)
    axes.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize=9)
    axes.set_ylabel("share of a dense product's speed")
    axes.set_ylim(0, 1.22)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=12)
    axes.legend(loc="upper right", ncols=2, frameon=False, borderaxespad=0, bbox_to_anchor=(1, 1.02))
    figure.text(0.01, 0.01, source, fontsize=8, ha="left", va="bottom")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/h200/rivals_torch.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/h200_share_of_dense.svg")
    parser.add_argument("--figures-only", action="store_true", help="print the figures and draw nothing")
    parser.add_argument("--condition", choices=CONDITIONS, help="default: the first of these that the file has")
    options = parser.parse_args()
    condition, rows = rows_of(options.results, options.condition)
    device = json.loads(options.results.read_text())["machine"]["device"]
    results = options.results.resolve()
    name = results.relative_to(ROOT) if results.is_relative_to(ROOT) else results.name
    bars = bars_of(rows)
    for label, figures in bars:
        shares = [f"{contender} {mean:.3f} ({worst:.3f} to {best:.3f})"
                  for contender, (mean, worst, best) in figures.items()]
        print(f"{condition}, {', '.join(label.splitlines())}: {'; '.join(shares)}")
    if options.figures_only:
        return
    draw(bars, f"bf16 forward product on one {device}, {condition}",
         f"{name}; condition: {condition} (docs/benchmarking.md). "
         "Bars: geometric mean; lines: worst to best row.", options.out)


if __name__ == "__main__":
    main()
