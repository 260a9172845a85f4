"""Figures as SVG and HTML: axes, points, lines, stacked bars. Colours are CSS classes, so that light and dark share them."""

import dataclasses
import math
from html import escape

WIDTH, HEIGHT = 680, 400
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 16, 52
COLOURS = 12


def number(value):
    """ "1.5k", "0.25", "12": three digits at most."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def rate(flops):
    """ "1.5 TFLOP/s" """
    shown = number(flops)
    return f"{shown[:-1]} {shown[-1]}FLOP/s" if shown[-1].isalpha() else f"{shown} FLOP/s"


@dataclasses.dataclass
class Axis:
    """One direction of a plot, linear or logarithmic."""

    title: str
    low: float
    high: float
    log: bool = False
    ticks: tuple = ()
    form: object = number

    def place(self, value):
        """0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self):
        if self.ticks:
            return [tick for tick in self.ticks if self.low <= tick <= self.high]
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        step = 10 ** math.floor(math.log10((self.high - self.low) or 1))
        step = next(step * f for f in (0.1, 0.2, 0.5, 1, 2) if (self.high - self.low) / (step * f) <= 6)
        count = math.floor((self.high - self.low) / step + 1e-9)
        return [self.low + i * step for i in range(count + 1)]


def log_axis(title, values, **options):
    """Whole powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return Axis(title, 10.0**low, 10.0 ** max(high, low + 1), log=True, **options)


class Plot:
    """A plot with two axes to which points and lines are added."""

    def __init__(self, label, x, y):
        self.label, self.x, self.y = label, x, y
        self._parts, self._notes, self._legend = [], [], []
        self._axes()

    def at(self, x, y):
        inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + inner_w * self.x.place(x), TOP + inner_h * (1 - self.y.place(y))

    def _axes(self):
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for tick in self.y.marks():
            _, top = self.at(self.x.low, tick)
            self._parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{top:.1f}" y2="{top:.1f}"/>')
            self._text(LEFT - 8, top + 4, self.y.form(tick), "end")
        for tick in self.x.marks():
            left, _ = self.at(tick, self.y.low)
            self._parts.append(f'<line class="grid" x1="{left:.1f}" x2="{left:.1f}" y1="{TOP}" y2="{bottom}"/>')
            self._text(left, bottom + 18, self.x.form(tick), "middle")
        self._parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        self._text((LEFT + right) / 2, HEIGHT - 10, self.x.title, "middle", "title")
        middle = (TOP + bottom) / 2
        self._parts.append(
            f'<text class="title" text-anchor="middle" transform="translate(14 {middle:.0f}) rotate(-90)">'
            f"{escape(self.y.title)}</text>"
        )

    def _text(self, x, y, text, anchor, kind="tick"):
        parts = self._notes if kind == "note" else self._parts  # notes over everything else
        parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def point(self, x, y, colour, title):
        left, top = self.at(x, y)
        self._parts.append(
            f'<circle class="c{colour % COLOURS}" cx="{left:.1f}" cy="{top:.1f}" r="4"><title>{escape(title)}</title></circle>'
        )

    def line(self, points, kind, title="", dots=False):
        """`kind` is a class: a colour ("c0"), "roof" or "rival c1"."""
        places = [self.at(*point) for point in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        self._parts.append(f'<path class="line {kind}" d="{path}"><title>{escape(title)}</title></path>')
        for (x, y), (left, top) in zip(points, places, strict=True) if dots else ():
            self._parts.append(
                f'<circle class="{kind.split()[-1]}" cx="{left:.1f}" cy="{top:.1f}" r="3.5">'
                f"<title>{escape(title)}: {number(x)}, {number(y)}</title></circle>"
            )

    def add(self, part):
        """An SVG element in the plot's own coordinates (`at`)."""
        self._parts.append(part)

    def note(self, x, y, text, anchor="end"):
        left, top = self.at(x, y)
        self._text(left, top - 5, text, anchor, "note")

    def legend(self, kind, text):
        self._legend.append((kind, text))

    def svg(self):
        legend = "".join(
            f'<li><span class="swatch {escape(kind)}"></span>{escape(text)}</li>' for kind, text in self._legend
        )
        return (
            f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(self.label)}, scrolls sideways">'
            f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.label)}">'
            + "".join(self._parts + self._notes)
            + f'</svg></div><ul class="legend">{legend}</ul>'
        )


def bars(label, rows, unit):
    """Horizontal bars: rows of (name, [(series, value, colour, title, what follows the value)]).

    They fit any width, so they are no SVG.
    """
    longest = max(value for _, series in rows for _, value, *_ in series)
    parts = [f'<div class="bars" role="img" aria-label="{escape(label)}">']
    for name, series in rows:
        parts.append(f'<div class="bar-row"><span class="bar-name">{escape(name)}</span><div class="bar-set">')
        for text, value, colour, title, after in series:
            parts.append(
                f'<div class="bar" title="{escape(title)}"><span class="track"><span class="fill c{colour % COLOURS}" '
                f'style="width:{100 * value / longest:.2f}%"></span></span>'
                f"<span class=\"bar-text\">{escape(text)} {number(value)}{unit}{escape(after)}</span></div>"
            )
        parts.append("</div></div>")
    return "".join(parts) + "</div>"


def stacked(label, rows, names, as_shares=False):
    """Bars cut into parts: rows of (name, [seconds of each part], what stands behind the bar).

    `as_shares`: every bar has the whole width.
    """
    longest = max(sum(values) for _, values, _ in rows)
    parts = [f'<div class="bars" role="img" aria-label="{escape(label)}">']
    for name, values, after in rows:
        whole = sum(values) if as_shares else longest
        parts.append(f'<div class="bar-row"><span class="bar-name">{escape(name)}</span><div class="bar"><span class="track stack">')
        for index, value in enumerate(values):
            title = f"{names[index]}: {value * 1e3:.3g} ms, {value / sum(values):.0%}"
            parts.append(
                f'<span class="fill c{index % COLOURS}" title="{escape(title)}" style="width:{100 * value / whole:.2f}%"></span>'
            )
        parts.append(f'</span><span class="bar-text">{escape(after)}</span></div></div>')
    legend = "".join(
        f'<li><span class="swatch c{index % COLOURS}"></span>{escape(name)}</li>' for index, name in enumerate(names)
    )
    return "".join(parts) + f'</div><ul class="legend">{legend}</ul>'
