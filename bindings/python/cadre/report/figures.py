"""Chooses what is drawn of the result files, and says of each figure which file and command made it."""

import dataclasses
import math
from collections import defaultdict

from .._units import time_of
from . import plot
from .plot import Axis, Plot, log_axis

_MODELS = ("mixtral", "dsv3", "qwen3-235b", "qwen3-30b", "gpt-oss", "kimi")
_FIRST = {"sustained": 0, "in turn": 1, "rested": 2, "mixed": 3}


@dataclasses.dataclass
class Figure:
    kind: str  # roofline, rivals, rows, skew, layer, schedule
    title: str
    text: str
    html: str
    sources: list  # files
    first: bool = True  # shown; others are folded


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def figures(files):
    found = []
    for make in (_rooflines, _rivals, _rows_curves, _skew, _layers, _schedules):
        found += make(files)
    return found


def _by(rows, *names):
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(getattr(row, name) for name in names)].append(row)
    return groups


def _best_condition(rows):
    """The rows of the condition that is quoted first."""
    least = min((_FIRST.get(row.condition, 9) for row in rows), default=9)
    return [row for row in rows if _FIRST.get(row.condition, 9) == least]


def _peaks(device_rows, file):
    """[(what, FLOP/s)] and bytes a second of the memory, measured in the same run."""
    limits = max((row.limits for row in device_rows if row.limits), key=lambda each: each["threads"], default=None)
    if limits:
        named = (("bf16", "bf16_gflops"), ("f32", "f32_gflops"), ("i8", "int8_gflops"))
        peaks = [(f"{name}, {limits['threads']} threads", limits[key] * 1e9) for name, key in named if limits.get(key)]
        return peaks, limits["read_gbs"] * 1e9
    dense = [row.dense_gflops for row in device_rows if row.dense_gflops]
    peaks = [("best dense product of this file", max(dense) * 1e9)] if dense else []
    return peaks, file.copy_tb_per_s * 1e12 if file.copy_tb_per_s else None


def _rooflines(files):
    for file in files:
        rows = [row for row in file.rows if row.intensity and row.gflops]
        peaks, memory = _peaks(rows, file)
        if not rows or not peaks or not memory:
            continue
        top = max([flops for _, flops in peaks] + [row.gflops * 1e9 for row in rows])
        y = log_axis("FLOP/s", [min(row.gflops * 1e9 for row in rows), top])
        x = log_axis("FLOP for each byte moved once", [row.intensity for row in rows])
        figure = Plot(f"Roofline of {file.device}: {len(rows)} cases", x, y)
        for index, (name, flops) in enumerate(sorted(peaks, key=lambda peak: peak[1])):
            ridge = flops / memory
            points = [(min(max(ridge, x.low), x.high), flops), (x.high, flops)]
            if index == len(peaks) - 1 and ridge > x.low:
                start = max(x.low, y.low / memory)
                points = [(start, start * memory), *points]
            figure.line(points, "roof", name)
            figure.note(x.high, flops, f"{name}: {plot.number(flops)}FLOP/s")
        groups = sorted(_by(rows, "op", "dtype").items())
        for colour, ((op, dtype), part) in enumerate(groups):
            figure.legend(f"c{colour % plot.COLOURS}", f"{op} {dtype} ({len(part)})")
            for row in part:
                title = f"{row.case} {row.shape} {row.dtype} {row.condition}: {plot.number(row.gflops * 1e9)}FLOP/s"
                figure.point(row.intensity, row.gflops * 1e9, colour, title)
        text = f"Memory moves {memory / 1e12:.3g} TB/s. Every point is a case; above a roof the caches help."
        yield Figure("roofline", f"Roofline: {file.device}", text, figure.svg(), [file])


def _rivals(files):
    for file in files:
        rows = [row for row in file.rows if row.rivals]
        for index, ((case, dtype), part) in enumerate(_by(rows, "case", "dtype").items()):
            part = _best_condition(part)
            most = max((row.threads or 0) for row in part)
            part = [row for row in part if (row.threads or 0) == most]
            names = sorted({name for row in part for name in row.rivals})
            shown = []
            for (shape,), same in _by(part, "shape").items():
                times = _times(same[0]) if len(same) == 1 else {}
                series = [("cadre", 1.0, 0, f"{shape}: cadre", times.get("cadre", ""))]
                for colour, name in enumerate(names, 1):
                    ratios = [row.rivals[name] / row.seconds for row in same if name in row.rivals]
                    if ratios:
                        mean = geometric_mean(ratios)
                        title = f"{shape}: {name} takes {mean:.2f} times cadre's time (mean of {len(ratios)})"
                        series.append((name, mean, colour, title, times.get(name, "")))
                shown.append((shape, series))
            threads = f", {most} threads" if most else ""
            title = f"{case} {dtype}: time over cadre's, {file.device}{threads}"
            text = f"{part[0].condition.capitalize()}. Longer means slower."
            if len(part) > len(shown):
                text += " Geometric means over routings."
            first = index == 0 or bool(file.answers)
            yield Figure("rivals", title, text, plot.bars(title, shown, "×"), [file], first=first)


def _times(row):
    """How long cadre and each rival take, for a bar of one case alone."""
    about = {name: "about " if name in row.estimated else "" for name in row.rivals}
    rivals = {name: f", {about[name]}{time_of(seconds)}" for name, seconds in row.rivals.items()}
    return {"cadre": f", {time_of(row.seconds)}", **rivals}


def _rows_curves(files):
    for file in files:
        rows = [row for row in file.rows if row.rows_per_group and row.gflops and not row.skew and row.op != "layer"]
        is_gpu = any(row.of_dense for row in rows) and not any(row.limits for row in rows)
        rows = _best_condition(rows)
        if is_gpu:
            yield from _share_curve(file, [row for row in rows if row.of_dense])
            continue
        rows = [row for row in rows if " rows" in row.shape or row.shape == "1 row"]
        for index, ((op, dtype), part) in enumerate(_by(rows, "op", "dtype").items()):
            most = max(row.threads or 0 for row in part)
            part = sorted((row for row in part if (row.threads or 0) == most), key=lambda row: row.rows_per_group)
            if len(part) < 2:
                continue
            names = sorted({name for row in part for name in row.rivals})
            flops = [row.gflops * 1e9 * scale for row in part for scale in _relative(row)]
            ticks = tuple(sorted({row.rows_per_group for row in part}))
            x = Axis("rows per expert", ticks[0], ticks[-1], log=True, ticks=ticks, form=lambda v: f"{v:.0f}")
            title = f"{op} {dtype}: speed by rows per expert, {file.device}, {most} threads"
            figure = Plot(title, x, log_axis("FLOP/s", flops))
            figure.legend("c0", "cadre")
            figure.line([(row.rows_per_group, row.gflops * 1e9) for row in part], "c0", "cadre", dots=True)
            for colour, name in enumerate(names, 1):
                points = [
                    (row.rows_per_group, row.gflops * 1e9 * row.seconds / row.rivals[name])
                    for row in part
                    if name in row.rivals
                ]
                figure.legend(f"c{colour}", name)
                figure.line(points, f"rival c{colour}", name, dots=True)
            yield Figure("rows", title, "Equal groups.", figure.svg(), [file], first=index == 0)


def _relative(row):
    return [1.0, *(row.seconds / seconds for seconds in row.rivals.values())]


def _share_curve(file, rows):
    rows = [row for row in rows if row.dtype == "bf16" and "portable" not in row.case and "," not in row.case]
    if not rows:
        return
    highest = max(row.of_dense for row in rows)
    counts = [row.rows_per_group for row in rows]
    ticks = tuple(2.0**power for power in range(0, 15))
    x = Axis("rows per expert", min(counts) / 1.3, max(counts) * 1.3, log=True, ticks=ticks, form=lambda v: f"{v:.0f}")
    y = Axis("share of a dense product's speed", 0, max(1.1, math.ceil(highest * 5) / 5))
    title = f"Share of dense by rows per expert, {file.device}"
    figure = Plot(title, x, y)
    figure.line([(x.low, 1.0), (x.high, 1.0)], "roof", "dense")
    for colour, ((case,), part) in enumerate(sorted(_by(rows, "case").items())):
        figure.legend(f"c{colour % plot.COLOURS}", case)
        means = [
            (count, geometric_mean([row.of_dense for row in same]))
            for (count,), same in sorted(_by(part, "rows_per_group").items())
        ]
        figure.line(means, f"c{colour % plot.COLOURS}", f"{case}, mean", dots=False)
        for row in part:
            figure.point(row.rows_per_group, row.of_dense, colour, f"{case} {row.shape}: {row.of_dense:.3f} of dense")
    text = f"{rows[0].condition.capitalize()}, bf16, balanced router; lines are geometric means."
    yield Figure("rows", title, text, figure.svg(), [file])


def _skew(files):
    for file in files:
        rows = _best_condition([row for row in file.rows if row.skew is not None or "% in one" in row.shape])
        every = _best_condition(file.rows)
        shown = defaultdict(list)
        for row in rows:
            base_shape = row.shape.removesuffix(" skewed").removesuffix(" 90% in one")
            even = [
                other
                for other in every
                if not other.skew and other.shape == base_shape and _same(row, other) and other is not row
            ]
            if even and (row.skew or row.shape != base_shape):
                shown[base_shape].append((row, row.seconds / even[0].seconds))
        if not shown:
            continue
        lines = []
        for shape, pairs in shown.items():
            series = []
            ratios = defaultdict(list)
            for row, ratio in pairs:
                ratios[(row.case, "90 % in one" if "% in one" in row.shape else "")].append(ratio)
            for colour, ((case, what), values) in enumerate(sorted(ratios.items())):
                mean = geometric_mean(values)
                series.append((f"{case} {what}".strip(), mean, colour, f"{shape} {case}: {mean:.2f} times as long", ""))
            lines.append((shape, series))
        title = f"What a skewed router costs, {file.device}"
        text = f"{rows[0].condition.capitalize()}. Time with a Zipf router (skew 1) over a balanced one; 1× is no cost."
        yield Figure("skew", title, text, plot.bars(title, lines, "×"), [file])


def _same(row, other):
    names = ("op", "case", "dtype", "condition", "threads")
    return all(getattr(row, name) == getattr(other, name) for name in names)


def _layers(files):
    for file in files:
        if not file.layers:
            continue
        for condition in ("sustained", "rested"):
            rows = [row for row in file.layers if row.get(condition)]
            phased = [row for row in rows if row[condition].get("phases")]
            if phased:
                names = sorted({name for row in phased for name in row[condition]["phases"]})
                shown = [(row["layer"], [row[condition]["phases"].get(n, 0.0) for n in names]) for row in phased]
                text = f"{condition.capitalize()}; phases as they were timed."
            else:
                names = ["two dense products", "around them, forward", "backward"]
                shown = [
                    (row["layer"], [t["dense_s"], max(0.0, t["forward_s"] - t["dense_s"]), t["step_s"] - t["forward_s"]])
                    for row in rows
                    for t in (row[condition],)
                ]
                text = (
                    f"{condition.capitalize()}. The file has no phases of its own: forward is cut into its two dense "
                    "products, timed alone, and the rest."
                )
            if shown:
                title = f"A layer's training step by phases, {condition}, {file.device}"
                html = plot.stacked(title, shown, names)
                yield Figure("layer", title, text, html, [file], first=condition == "sustained")


def _schedules(files):
    for file in files:
        for row in file.schedules:
            yield _schedule(file, row)


def _busy(tiles, lanes):
    """The part of the time until `end` in which an SM has a tile; of two at a time it counts once."""
    busy, end = 0.0, max(tile[3] for tile in tiles)
    until = defaultdict(float)
    for sm, _, begin, stop, *_ in sorted(tiles, key=lambda tile: tile[2]):
        busy += max(0.0, stop - max(begin, until[sm]))
        until[sm] = max(until[sm], stop)
    return busy / (end * lanes)


def _schedule(file, row):
    tiles = row["tiles"]  # sm, group, start, end; of a recorded one also which of an SM's two warpgroups ran it
    sms = max(row["sms"], 1 + max(tile[0] for tile in tiles))
    slots = 1 + max(tile[4] if len(tile) > 4 else 0 for tile in tiles)  # beside each other on an SM
    op = f", {row['op']}" if row.get("op") else ""
    title = f"Tile schedule of {row['shape']}{op}, {row['m']} x {row['k']} x {row['n']}, {row['num_groups']} experts"
    title += ", recorded" if row.get("recorded") else ", computed"
    x = Axis(row["time_unit"], 0, max(tile[3] for tile in tiles))
    y = Axis("SM", 0, sms, ticks=tuple(range(0, sms + 1, 12)), form=lambda v: f"{v:.0f}")
    figure = Plot(title, x, y)
    paths = defaultdict(list)
    for sm, group, begin, stop, *slot in tiles:
        low = sm + (slot[0] if slot else 0) / slots
        left, top = figure.at(begin, low + 1 / slots)
        right, bottom = figure.at(stop, low)
        gap = 0.4 / slots
        paths[group % plot.COLOURS].append(f"M{left:.1f} {top:.2f}H{right - 0.3:.1f}V{bottom - gap:.2f}H{left:.1f}Z")
    for colour, parts in sorted(paths.items()):
        figure.add(f'<path class="tiles c{colour}" d="{"".join(parts)}"/>')
    two = " Two warpgroups of an SM have tiles of their own at the same time: its upper and lower half." if slots > 1 else ""
    text = (
        f"{row['source'][:1].upper()}{row['source'][1:]}: {row['how']} {len(tiles)} tiles of {row['tile']} on {sms} SMs, "
        f"which are busy {_busy(tiles, sms):.0%} of the time.{two} A colour is an expert, in turn."
    )
    return Figure("schedule", title, text, figure.svg(), [file])
