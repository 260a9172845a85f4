"""Reads result files of every benchmark into rows of one form. Those without schema 2 are read by programs.py."""

import json
import math
import re
from pathlib import Path

from . import programs
from .rows import ResultFile, Row

KNOWN = (
    "schema 2 (cadre bench --json, cadre compare --json, bench/rivals/*.py --json, cadre schedule --json)",
    f"--json of {', '.join(programs.NAMES)}",
)
_PASSES = {"forward": "forward", "layer forward": "forward", "layer training step": "step"}
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class UnknownResults(ValueError):
    """A file that can't be read or is of another kind."""

    def __init__(self, path, received):
        super().__init__(f"{path}: {received}, expected one of: {'; '.join(KNOWN)}")


def read(name):
    """The rows of a result file. UnknownResults says what else would have been read."""
    try:
        document = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownResults(name, error.strerror or str(error)) from None
    except ValueError as error:
        raise UnknownResults(name, f"not JSON ({error})") from None
    return of_document(name, document)


def of_document(name, document):
    """The same for what a result file holds."""
    results = document.get("results", document.get("rows")) if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise UnknownResults(name, 'no list "results"')
    program = programs.of(results)
    if program is None and document.get("schema") != 2:
        raise UnknownResults(name, f"schema {document.get('schema', 'is missing')}")
    try:
        file = _file_of(str(name), document, results, program)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnknownResults(name, f"a row that can't be read ({type(error).__name__}: {error})") from None
    if not (file.rows or file.layers or file.schedules):
        raise UnknownResults(name, "no row that a figure could show")
    return file


def _file_of(name, document, results, program):
    device = _device(document)
    notes = [note for note in (document.get("note"),) if note] + list(document.get("notes", ()))
    if isinstance(document.get("left_out"), dict):
        notes += [f"Not measured, {what}: {reason}." for what, reason in document["left_out"].items()]
    file = ResultFile(name, document.get("command", "not recorded"), device, notes, [], [], [])
    file.answers += [str(answer) for answer in document.get("answers", ())]
    if program:
        for row in results:
            program.add(file, document, row)
        return file
    for row in results:
        if row.get("case") == "machine":
            file.copy_tb_per_s = row.get("copy_tb_per_s")
        elif row.get("case") == "tile schedule":
            file.schedules.append(_schedule(row))
        elif "median_s" in row and row.get("case") != "host cost":
            file.rows.append(_row(name, device, row))
    return file


def _device(document):
    machine = document.get("machine", {})
    if not machine and document.get("device") not in ("cpu", "cuda", None):
        machine = document["device"]
    if isinstance(machine, str):
        return machine.split(",")[0]
    if machine.get("devices"):
        return machine["devices"][0]["name"]
    model = machine.get("device") or machine.get("model") or "unknown machine"
    cpus = machine.get("logical_cpus") or machine.get("cpus")
    # A GPU's name says all; a CPU's needs the number of its threads.
    return model if document.get("device") == "cuda" or re.search("NVIDIA|GPU", model) else f"{model}, {cpus} CPUs"


def _row(name, device, row):
    tokens = row.get("tokens")  # of a layer
    m = row.get("m", tokens * row["top_k"] if tokens and "top_k" in row else None)
    gflops = row.get("gflops") or (row["tflops"] * 1e3 if row.get("tflops") else None)
    shape = row.get("shape") or row.get("label") or (f"{row['rows_per_group']} rows" if "rows_per_group" in row else "")
    condition = row.get("condition") or ("in turn" if row.get("machine_limits") or "CPUs" in device else "mixed")
    front = f", {row['front']}" if "front" in row else ""
    rivals = row.get("rivals") or {}
    return Row(
        file=name,
        device=device,
        op=row["op"],
        case=row.get("case", row["op"]) + front,
        shape=shape,
        dtype=_SHORT.get(row.get("dtype", ""), row.get("dtype", "")),
        condition=condition,
        seconds=programs.seconds_of(row),
        m=m,
        k=row.get("k", row.get("hidden")),
        n=row.get("n", row.get("intermediate")),
        tokens=tokens,
        layer_pass=_PASSES.get(row.get("case"), "") if row["op"] == "layer" and "hidden" in row else "",
        groups=row.get("num_groups"),
        skew=row.get("skew", _skew_of(shape)),
        threads=row.get("threads") or row.get("torch_threads") or (row.get("machine_limits") or {}).get("threads"),
        gflops=gflops,
        of_dense=row.get("of_dense"),
        dense_gflops=row.get("dense_gflops"),
        weights_tb_per_s=row.get("weights_tb_per_s"),
        limits=row.get("machine_limits"),
        kernel=row.get("kernel", ""),
        rivals={rival: programs.seconds_of(entry) for rival, entry in rivals.items()},
        estimated=frozenset(name for name, entry in rivals.items() if isinstance(entry, dict) and entry.get("estimated")),
    )


def _skew_of(label):
    """The ladder's labels say how rows are spread: "qwen3-30b-w13 skewed", "... 90% in one"."""
    return 1.0 if label.endswith(" skewed") else None


def _schedule(row):
    missing = {"source", "how", "time_unit", "shape", "m", "k", "n", "num_groups", "sms", "tile", "tiles"} - row.keys()
    if missing:
        raise ValueError(f"a tile schedule without {', '.join(sorted(missing))}")
    for tile in row["tiles"]:
        sm, group, start, end, *warpgroup = tile
        whole = all(isinstance(value, int) and value >= 0 for value in (sm, group, *warpgroup))
        if not whole or len(warpgroup) > 1 or not 0 <= start <= end < math.inf:
            raise ValueError(f"tile {tile!r}, expected [sm, group, start, end] or [sm, group, start, end, warpgroup]")
    if not row["tiles"]:
        raise ValueError("a tile schedule without tiles")
    return row
