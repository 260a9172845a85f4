"""Reads result files of every benchmark into rows of one form."""

import dataclasses
import json
import math
import re
from pathlib import Path

KNOWN = (
    "schema 2 (cadre bench --json, cadre compare --json, bench/rivals/*.py --json, cadre schedule --json)",
    "layers (bench/layer.py --json)",
)
_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i8": 1, "i32": 4, "e4m3": 1, "e5m2": 1}
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class UnknownResults(ValueError):
    """A file that can't be read or is of another kind."""

    def __init__(self, path, received):
        super().__init__(f"{path}: {received}, expected one of: {'; '.join(KNOWN)}")


@dataclasses.dataclass
class Row:
    """One measured case. `seconds` is cadre's; `rivals` maps names to theirs; None is what a file doesn't say."""

    file: str
    device: str
    op: str
    case: str
    shape: str
    dtype: str
    condition: str
    seconds: float
    m: int | None = None
    k: int | None = None
    n: int | None = None
    groups: int | None = None
    skew: float | None = None
    threads: int | None = None
    gflops: float | None = None
    of_dense: float | None = None
    dense_gflops: float | None = None
    weights_tb_per_s: float | None = None
    limits: dict | None = None
    kernel: str = ""
    rivals: dict = dataclasses.field(default_factory=dict)
    estimated: frozenset = frozenset()  # rivals whose time was not measured whole

    @property
    def rows_per_group(self):
        return self.m / self.groups if self.m and self.groups else None

    @property
    def intensity(self):
        """FLOP for each byte that has to be moved once: rows, weights of experts that have rows, results."""
        if not (self.m and self.k and self.n and self.groups and self.dtype in _BYTES):
            return None
        size = _BYTES[self.dtype]
        weights = self.groups * self.k * self.n * size
        if self.weights_tb_per_s and self.op != "tgmm":
            weights = self.weights_tb_per_s * 1e12 * self.seconds
        return 2 * self.m * self.k * self.n / (weights + size * self.m * (self.k + self.n))

    @property
    def best_rival(self):
        """(name, seconds) of the fastest, or None."""
        return min(self.rivals.items(), key=lambda item: item[1]) if self.rivals else None


@dataclasses.dataclass
class ResultFile:
    name: str
    command: str
    device: str
    notes: list  # sentences about the whole file
    rows: list
    layers: list  # rows of bench/layer.py as they are
    schedules: list  # what cadre schedule writes
    answers: list = dataclasses.field(default_factory=list)  # cadre compare's, in sentences
    copy_tb_per_s: float | None = None


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
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise UnknownResults(name, 'no list "results"')
    results = document["results"]
    is_layers = bool(results) and all(isinstance(row, dict) and "layer" in row for row in results)
    if not is_layers and document.get("schema") != 2:
        raise UnknownResults(name, f"schema {document.get('schema', 'is missing')}")
    try:
        file = _file_of(str(name), document, results, is_layers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnknownResults(name, f"a row that can't be read ({type(error).__name__}: {error})") from None
    if not (file.rows or file.layers or file.schedules):
        raise UnknownResults(name, "no row that a figure could show")
    return file


def _file_of(name, document, results, is_layers):
    device = _device(document)
    notes = [note for note in (document.get("note"), *document.get("notes", ())) if note]
    if isinstance(document.get("left_out"), dict):
        notes += [f"Not measured, {what}: {reason}." for what, reason in document["left_out"].items()]
    file = ResultFile(name, document.get("command", "not recorded"), device, notes, [], [], [])
    file.answers += [str(answer) for answer in document.get("answers", ())]
    for row in results:
        if is_layers:
            file.layers.append(row)
            file.rows += _layer_rows(name, device, row)
        elif row.get("case") == "machine":
            file.copy_tb_per_s = row.get("copy_tb_per_s")
        elif row.get("case") == "tile schedule":
            file.schedules.append(_schedule(row))
        elif "median_s" in row and row.get("case") != "host cost":
            file.rows.append(_row(name, device, row))
    return file


def _device(document):
    machine = document.get("machine", {})
    if isinstance(machine, str):
        return machine.split(",")[0]
    if machine.get("devices"):
        return machine["devices"][0]["name"]
    model = machine.get("device") or machine.get("model") or "unknown machine"
    cpus = machine.get("logical_cpus") or machine.get("cpus")
    # A GPU's name says all; a CPU's needs the number of its threads.
    return model if document.get("device") == "cuda" or re.search("NVIDIA|GPU", model) else f"{model}, {cpus} CPUs"


def _seconds(entry):
    seconds = entry["median_s"] if isinstance(entry, dict) else entry
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ValueError(f"median_s = {seconds!r}, expected a number of seconds")
    return float(seconds)


def _row(name, device, row):
    tokens = row.get("tokens")
    m = row.get("m", tokens * row["top_k"] if tokens and "top_k" in row else None)
    gflops = row.get("gflops") or (row["tflops"] * 1e3 if row.get("tflops") else None)
    if gflops is None and m and row.get("k") and row.get("n"):
        gflops = 2 * m * row["k"] * row["n"] / row["median_s"] / 1e9
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
        seconds=_seconds(row),
        m=m,
        k=row.get("k"),
        n=row.get("n"),
        groups=row.get("num_groups"),
        skew=row.get("skew", _skew_of(shape)),
        threads=row.get("threads") or row.get("torch_threads") or (row.get("machine_limits") or {}).get("threads"),
        gflops=gflops,
        of_dense=row.get("of_dense"),
        dense_gflops=row.get("dense_gflops"),
        weights_tb_per_s=row.get("weights_tb_per_s"),
        limits=row.get("machine_limits"),
        kernel=row.get("kernel", ""),
        rivals={rival: _seconds(entry) for rival, entry in rivals.items()},
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


def _layer_rows(name, device, row):
    for condition in ("sustained", "rested"):
        times = row.get(condition)
        for case in ("forward", "step") if times else ():
            rival = times.get(f"torch_{case}_s")
            yield Row(
                file=name,
                device=device,
                op="layer",
                case="layer " + ("forward" if case == "forward" else "training step"),
                shape=row["layer"],
                dtype="bf16",
                condition=condition,
                seconds=times[f"{case}_s"],
                m=row["tokens"],
                of_dense=times["of_dense"] if case == "forward" else None,
                gflops=times["step_tflops"] * 1e3 if case == "step" else None,
                rivals={"torch": rival} if rival else {},
            )
