"""What a layer of experts costs on many ranks, on paper: the formulas of docs/expert-parallel.md with measured rates.

    python -m cadre.scale qwen3-235b --nvlink 370 --network 45 --latency 30 --results bench/results/h200

Kernels run at the rates in --results (cuda.json and row_ops.txt of a device); the links at what you measured on your
cluster. Routing is taken as even. Times are of one layer on one rank, in milliseconds; bytes are what one rank sends.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._compare.models import Layer, named

_BYTES = 2  # of an element: bf16
_ROW_OPS = ("permute", "combine", "route")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of a device. products: case -> [(rows of each expert, operations a second)], sorted; the others in bytes a second."""

    products: dict[str, list[tuple[float, float]]]
    copy: float
    permute: float
    combine: float
    route_s: float

    def product_s(self, case: str, rows: float, k: int, n: int, experts: int) -> float:
        """rows spread over `experts` matrices [k, n]: by rate, and never below the time of reading the weights once."""
        points, each = self.products[case], max(rows / experts, 1)
        lower = max((p for p in points if p[0] <= each), default=points[0])
        upper = min((p for p in points if p[0] >= each), default=points[-1])
        rate = lower[1]
        if lower[0] < upper[0] and lower[0] <= each <= upper[0]:
            share = math.log(each / lower[0]) / math.log(upper[0] / lower[0])
            rate = lower[1] + share * (upper[1] - lower[1])
        return max(2 * rows * k * n / rate, experts * k * n * _BYTES / self.copy)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Bytes a second of one rank in one direction, seconds until the first byte of a collective arrives, ranks of a node."""

    nvlink: float
    network: float
    latency: float
    node: int


def load(folder: str | Path) -> Rates:
    """The Rates in a folder of results: sustained bf16 products, row ops, a copy.

    >>> rates = cadre.scale.load("bench/results/h200")
    >>> sorted(rates.products)
    ['dgrad', 'forward', 'wgrad']
    """
    folder = Path(folder)
    try:
        rows = json.loads((folder / "cuda.json").read_text())["results"]
        text = (folder / "row_ops.txt").read_text()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--results = {folder}, expected a folder with cuda.json and row_ops.txt: {error}") from None
    products = {}
    for row in rows:
        if (row.get("condition"), row.get("dtype")) == ("sustained", "bf16") and row.get("num_groups"):
            case = str(row.get("case")).removeprefix("decode ")
            if case in ("forward", "dgrad", "wgrad") and row.get("gflops"):
                products.setdefault(case, {}).setdefault(row["m"] / row["num_groups"], []).append(row["gflops"] * 1e9)
    found = {name: re.findall(rf"^\S+ +{name} +([\d.]+) us(?:, ([\d.]+) TB/s)?", text, re.MULTILINE) for name in _ROW_OPS}
    copy = next((row["copy_tb_per_s"] * 1e12 for row in rows if "copy_tb_per_s" in row), None)
    absent = [name for name in ("forward", "dgrad", "wgrad") if name not in products]
    absent += [name for name in _ROW_OPS if not found[name]] + ([] if copy else ["copy_tb_per_s"])
    if absent:
        raise ValueError(f"--results = {folder}, expected measurements of {', '.join(absent)}, too")
    points = {case: sorted((at, statistics.median(each)) for at, each in by.items()) for case, by in products.items()}
    rates = {name: statistics.median(float(each[1]) for each in found[name]) * 1e12 for name in ("permute", "combine")}
    return Rates(points, copy, rates["permute"], rates["combine"], max(float(us) for us, _ in found["route"]) * 1e-6)


def travel(cluster: Cluster, ranks: int, rows: float, width: int) -> tuple[float, float, float]:
    """(seconds, bytes over NVLink, bytes over the network) of rows that are spread evenly over the ranks of a group.

    >>> cluster = cadre.scale.Cluster(nvlink=400e9, network=50e9, latency=0, node=8)
    >>> cadre.scale.travel(cluster, ranks=16, rows=4096, width=4096)  # half of 16 MiB leaves the node
    (0.00016777216, 7340032.0, 8388608.0)
    """
    inside = min(cluster.node, ranks)
    near, far = (rows * width * count / ranks for count in (inside - 1, ranks - inside))
    seconds = max(near / cluster.nvlink, far / cluster.network) + (cluster.latency if ranks > 1 else 0.0)
    return seconds, near, far


def estimate(
    layer: Layer, cluster: Cluster, rates: Rates, ranks: int, tokens: int, parameter_bytes: float = 18
) -> dict[str, float]:
    """name -> value, in seconds and bytes, for one layer and one rank with that many tokens.

    >>> rates = cadre.scale.load("bench/results/h200")
    >>> cluster = cadre.scale.Cluster(nvlink=400e9, network=50e9, latency=30e-6, node=8)
    >>> found = cadre.scale.estimate(cadre.scale.named("qwen3-30b"), cluster, rates, ranks=64, tokens=8192)
    >>> found["local experts"], found["rows of an expert"], found["forward"] > found["travel"] > 0
    (2, 32768.0, True)
    """
    group = math.gcd(layer.experts, ranks)  # share one copy of the experts; the others hold replicas
    local, rows, h, i = layer.experts // group, tokens * layer.top_k, layer.hidden, layer.intermediate
    width = h * _BYTES
    gather = 2 * rows * width / rates.permute
    total = (rows + tokens) * width / rates.combine
    there, near, far = travel(cluster, group, rows, width)
    back, more_near, more_far = travel(cluster, group, rows, width + 4)  # with router weights or their gradients
    counts, *_ = travel(cluster, group, 0, 0)  # a few numbers ahead of the rows: latency alone

    def products(case: str, rows: float = rows) -> float:
        return rates.product_s(case, rows, h, 2 * i, local) + rates.product_s(case, rows, i, h, local)

    experts = gather + products("forward")  # what arrived is gathered once more, by expert
    around = 2 * rates.route_s + gather + total
    activation = 6 * rows * i * _BYTES / rates.copy
    experts_back = 2 * gather + products("dgrad") + activation + products("wgrad")
    # Half of the rows at a time: each half travels with the whole latency, and its products run at their own rate.
    half, *_ = travel(cluster, group, rows / 2, width)
    hidden = max(half, gather / 2 + products("forward", rows / 2))
    parameters = layer.weight_elements(local)
    replicas = ranks // group
    reduced = 2 * (replicas - 1) / replicas * parameters * 4
    return {
        "group": group, "replicas": replicas, "local experts": local, "rows of an expert": rows / local,
        "gather": gather, "travel": there, "experts": experts, "sum": total,
        "forward": around + counts + there + experts + there,
        "forward in two chunks": around + 2 * counts + half + 2 * hidden + half,
        "backward": gather + 2 * back + experts_back + total, "reduce": reduced / cluster.network,
        "bytes NVLink": near, "bytes network": far, "bytes of a step, NVLink": 2 * near + 2 * more_near,
        "bytes of a step, network": 2 * far + 2 * more_far + reduced,
        "memory of parameters": parameters * parameter_bytes, "memory kept": rows * (h + 2 * i) * _BYTES,
    }  # fmt: skip


_COLUMNS = (("ranks", None, 1), ("group", "group", 1), ("experts", "local experts", 1), ("rows", "rows of an expert", 1),
            ("gather", "gather", 1e3), ("travel", "travel", 1e3), ("compute", "experts", 1e3), ("sum", "sum", 1e3),
            ("forward", "forward", 1e3), ("chunks", "forward in two chunks", 1e3), ("backward", "backward", 1e3),
            ("reduce", "reduce", 1e3), ("MB NVLink", "bytes NVLink", 1e-6), ("MB network", "bytes network", 1e-6),
            ("GB params", "memory of parameters", 1e-9), ("GB kept", "memory kept", 1e-9))  # fmt: skip


def _line(values: dict[str | None, float]) -> str:
    cells = []
    for title, name, scale in _COLUMNS:
        value = values[name] * scale
        text = f"{value:.0f}" if scale == 1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"
        cells.append(f"{text:>{max(len(title), 7)}}")
    return "  ".join(cells)


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text}, expected a number above 0")
        return value

    return parse


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m cadre.scale", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a model's name, or EXPERTS,TOP_K,HIDDEN,INTERMEDIATE")
    parser.add_argument("--results", required=True, metavar="FOLDER", help="measured rates: bench/results/h200")
    parser.add_argument("--nvlink", required=True, type=_positive(float), help="GB/s of a rank to its node, one way")
    parser.add_argument("--network", required=True, type=_positive(float), help="GB/s of a rank to other nodes, one way")
    parser.add_argument("--latency", required=True, type=_positive(float), help="us of an empty all_to_all")
    parser.add_argument("--ranks", type=_positive(int), nargs="+", default=[2**each for each in range(3, 13)])
    parser.add_argument("--tokens", type=_positive(int), default=8192, help="of one rank (8192)")
    parser.add_argument("--node", type=_positive(int), default=8, help="ranks of a node (8)")
    parser.add_argument("--parameter-bytes", type=_positive(float), default=18, metavar="BYTES",
                        help="of a parameter with gradient and optimiser (18: bf16, f32 gradient, Adam)")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        layer, rates = named(options.model), load(options.results)
    except ValueError as error:
        parser.error(str(error))
    cluster = Cluster(options.nvlink * 1e9, options.network * 1e9, options.latency * 1e-6, options.node)
    print("  ".join(f"{title:>{max(len(title), 7)}}" for title, *_ in _COLUMNS))
    for ranks in options.ranks:
        print(_line({None: ranks, **estimate(layer, cluster, rates, ranks, options.tokens, options.parameter_bytes)}))


if __name__ == "__main__":
    sys.exit(main())
