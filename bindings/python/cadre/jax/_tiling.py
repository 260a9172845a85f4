"""TPU tuning arguments of the drop-in modules: checked as their owners check them, then unused."""


def check(op, tiling, m, k, n):
    """A (tm, tk, tn) tuple, or a callable of (m, k, n); what gives None is the error it is there."""
    if callable(tiling):
        tiling = tiling(m, k, n)
    if tiling is None:
        raise ValueError(f"{op}: no tuned tiling found for (m, k, n) = ({m}, {k}, {n})")
