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


def _peaks(rows, files):
    """[(what, FLOP/s)] and bytes a second of the memory, each measured in a run of these files."""
    limits = max((row.limits for row in rows if row.limits), key=lambda each: each["threads"], default=None)
    if limits:
        named = (("bf16", "bf16_gflops"), ("f32", "f32_gflops"), ("i8", "int8_gflops"))
        peaks = [(f"{name}, {limits['threads']} threads", limits[key] * 1e9) for name, key in named if limits.get(key)]
        return peaks, limits["read_gbs"] * 1e9
    dense = defaultdict(float)  # f16 runs at the rate of bf16
    for row in rows:
        if row.dense_gflops:
            name = "bf16" if row.dtype == "f16" else row.dtype
            dense[name] = max(dense[name], row.dense_gflops * 1e9)
    memory = max((file.copy_tb_per_s or 0.0 for file in files), default=0.0) * 1e12
    return [(f"best dense {name} product", flops) for name, flops in dense.items()], memory


def _rooflines(files):
    """One for each machine, with every case whose operations and bytes are known."""
    for (device,), same in _by(files, "device").items():
        rows = [row for file in same for row in file.rows if row.intensity and row.gflops]
        peaks, memory = _peaks(rows, same)
        if not rows or not peaks or not memory:
            continue
        sources = [file for file in same if any(row.intensity and row.gflops for row in file.rows)]
        top = max([flops for _, flops in peaks] + [row.gflops * 1e9 for row in rows])
        y = log_axis("FLOP/s", [min(row.gflops * 1e9 for row in rows), top])
        x = log_axis("FLOP for each byte moved once", [row.intensity for row in rows])
        figure = Plot(f"Roofline of {device}: {len(rows)} cases", x, y)
        for index, (name, flops) in enumerate(sorted(peaks, key=lambda peak: peak[1])):
            ridge = flops / memory
            points = [(min(max(ridge, x.low), x.high), flops), (x.high, flops)]
            if index == len(peaks) - 1 and ridge > x.low:
                start = max(x.low, y.low / memory)
                points = [(start, start * memory), *points]
            figure.line(points, "roof", name)
            figure.note(x.high, flops, f"{name}: {plot.rate(flops)}")
        groups = sorted(_by(rows, "op", "dtype").items())
        for colour, ((op, dtype), part) in enumerate(groups):
            figure.legend(f"c{colour % plot.COLOURS}", f"{op} {dtype} ({len(part)})")
            for row in part:
                title = f"{row.case} {row.shape} {row.dtype} {row.condition}: {plot.rate(row.gflops * 1e9)}"
                figure.point(row.intensity, row.gflops * 1e9, colour, title)
        text = f"Memory moves {memory / 1e12:.3g} TB/s. Every point is a case; above a roof the caches help."
        yield Figure("roofline", f"Roofline: {device}", text, figure.svg(), sources)


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
            for dtype in ("bf16", "e4m3"):
                yield from _share_curve(file, dtype, [row for row in rows if row.of_dense and row.dtype == dtype])
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


def _share_curve(file, dtype, rows):
    rows = [row for row in rows if "portable" not in row.case and "," not in row.case]
    if not rows:
        return
    highest = max(row.of_dense for row in rows)
    counts = [row.rows_per_group for row in rows]
    ticks = tuple(2.0**power for power in range(15))
    x = Axis("rows per expert", min(counts) / 1.3, max(counts) * 1.3, log=True, ticks=ticks, form=lambda v: f"{v:.0f}")
    y = Axis(f"share of a dense {dtype} product's speed", 0, max(1.1, math.ceil(highest * 5) / 5))
    title = f"Share of dense by rows per expert, {dtype}, {file.device}"
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
    text = f"{rows[0].condition.capitalize()}, {dtype}, balanced router; lines are geometric means."
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
        for index, ((what, condition, measured), part) in enumerate(_by(file.layers, "what", "condition", "measured").items()):
            names = list(dict.fromkeys(name for layer in part for name in layer.parts))
            shown = [
                (layer.layer, [max(0.0, layer.parts.get(name, 0.0)) for name in names], time_of(layer.seconds))
                for layer in part
            ]
            longest, shortest = (pick(layer.seconds for layer in part) for pick in (max, min))
            as_shares = longest > 20 * shortest  # else the short ones would be nothing but a line
            text = f"{condition.capitalize()}. {part[0].how}"
            text += " Bars have one length: their times differ too much." if as_shares else ""
            title = f"A layer's {what} by phases, {condition}, {file.device}"
            yield Figure("layer", title, text, plot.stacked(title, shown, names, as_shares), [file], first=index == 0)


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
