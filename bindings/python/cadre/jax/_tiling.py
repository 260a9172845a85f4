"""TPU tuning arguments of the drop-in modules: checked as their owners check them, then unused."""

from . import _arguments


def check(op, tiling, m, k, n):
    """A (tm, tk, tn) tuple, or a callable of (m, k, n); what gives None is the error it is there."""
    if callable(tiling):
        tiling = tiling(m, k, n)
    if tiling is None:
        raise ValueError(f"{op}: no tuned tiling found for (m, k, n) = ({m}, {k}, {n})")
    if not isinstance(tiling, (tuple, list)):
        raise TypeError(f"{op}: tiling = {tiling!r}, expected (tm, tk, tn) or a callable")
    if len(tiling) != 3:
        raise ValueError(f"{op}: tiling = {tiling}, expected (tm, tk, tn)")
    for position, size in enumerate(tiling):
        _arguments.positive(op, f"tiling[{position}]", size)
