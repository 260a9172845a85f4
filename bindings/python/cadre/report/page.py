"""The page itself: figures and the table in one HTML file that loads nothing."""

from pathlib import Path

import jinja2

from .figures import figures
from .plot import number

#: (key, title, whether it is a number)
COLUMNS = (
    ("device", "machine", False),
    ("op", "op", False),
    ("case", "case", False),
    ("shape", "shape", False),
    ("dtype", "type", False),
    ("condition", "condition", False),
    ("skew", "skew", True),
    ("threads", "threads", True),
    ("rows_per_group", "rows per expert", True),
    ("milliseconds", "ms", True),
    ("gflops", "FLOP/s", True),
    ("of_dense", "of dense", True),
    ("best", "best rival", False),
    ("over", "rival over ours", True),
    ("kernel", "kernel", False),
    ("source", "file", False),
)
SECTIONS = (
    ("roofline", "Rooflines"),
    ("rivals", "Beside rivals"),
    ("rows", "Rows per expert"),
    ("skew", "Skew"),
    ("layer", "The layer by phases"),
    ("schedule", "Tile schedule"),
)


def _milliseconds(value):
    """Three digits that count, and no unit behind them: the column has it."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _cells(row, columns, several_files):
    """[(shown, what it is sorted by)]"""
    best = row.best_rival
    values = {
        "milliseconds": row.seconds * 1e3,
        "best": best[0] if best else "",
        "over": best[1] / row.seconds if best else None,
        "gflops": row.gflops * 1e9 if row.gflops else None,
        "source": "/".join(Path(row.file).parts[-2:]) if several_files else "",
    }
    cells = []
    for key, _, is_number in columns:
        value = values[key] if key in values else getattr(row, key)
        if not is_number:
            cells.append((value, str(value).lower()))
        elif value is None:
            cells.append(("", ""))
        else:
            forms = {"of_dense": "{:.3f}".format, "over": "{:.3f}".format, "milliseconds": _milliseconds}
            shown = forms.get(key, number)(value)
            cells.append((shown, repr(float(value))))
    return cells


def page(files, title="cadre: measured", skipped=None, generator="cadre.report"):
    """The HTML of the page for what read() gave."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cadre.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    found = figures(files)
    rows = [row for file in files for row in file.rows]
    several = len(files) > 1
    every = [_cells(row, COLUMNS, several) for row in rows]
    columns = [column for i, column in enumerate(COLUMNS) if any(cells[i][1] for cells in every)]  # none that is empty
    return environment.get_template("page.html").render(
        title=title,
        generator=generator,
        sections=[(key, name, [f for f in found if f.kind == key]) for key, name in SECTIONS],
        columns=columns,
        rows=[(row, _cells(row, columns, several)) for row in rows],
        choices={key: sorted({getattr(row, key) for row in rows}) for key in ("device", "op", "dtype", "condition")},
        files=files,
        skipped=skipped or {},
        style=environment.get_template("page.css").render(),
        script=environment.get_template("page.js").render(),
    )
