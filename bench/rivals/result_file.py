"""The result file of a benchmark: kept up to date beside an older one, which it replaces when the run is complete."""

import json
import os
import platform
import shlex
from pathlib import Path

_ENDING = ".partial"
#: Variables that change what is measured: names, or beginnings of names.
_VARIABLES = (
    *("CADRE_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUBLAS_", "XLA_", "JAX_"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"),
)
#: Where things lie is another matter on every machine.
_PLACES = ("CADRE_LIBRARY", "CADRE_CUBLAS")


def write(path, command, machine, results):
    """What there is so far. Whoever reads it may end this process at any time."""
    document = {
        "schema": 2,
        "machine": machine,
        "command": command,
        "environment": environment(),
        "results": results,
    }
    Path(f"{path}.new").write_text(text_of(document))
    os.replace(f"{path}.new", f"{path}{_ENDING}")


def text_of(document):
    """A line for each field, and for each row of its "results", as `cadre bench --json` writes it."""
    fields = []
    for name, value in document.items():
        shown = json.dumps(value)
        if name == "results":
            shown = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if value else "[]"
        fields.append(f" {json.dumps(name)}: {shown}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def complete(path):
    os.replace(f"{path}{_ENDING}", path)


def read_results(path):
    """The rows, of an unfinished run too."""
    for candidate in (Path(path), Path(f"{path}{_ENDING}")):
        if candidate.exists():
            return json.loads(candidate.read_text())["results"]
    return []


def environment():
    """The variables that were set and change what is measured."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and name not in _PLACES
    }


def command_of(script, arguments):
    """What to type to repeat the run, whatever the file is called: variables and the command that was given."""
    variables = [f"{name}={value}" for name, value in environment().items()]
    words = [*variables, "python", f"bench/rivals/{script}", *arguments]
    for before in range(len(words) - 1):
        if words[before] in ("--json", "--bench", "--marks"):
            words[before + 1] = "FILE"
    return shlex.join(words)


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
