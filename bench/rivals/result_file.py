"""The result file of a benchmark: kept up to date beside an older one, which it replaces when the run is complete."""

import json
import os
import platform
import shlex
from pathlib import Path

_ENDING = ".partial"


def write(path, command, machine, results):
    """What there is so far. Whoever reads it may end this process at any time."""
    document = {"schema": 1, "machine": machine, "command": command, "results": results}
    Path(f"{path}.new").write_text(json.dumps(document, indent=1) + "\n")
    os.replace(f"{path}.new", f"{path}{_ENDING}")


def complete(path):
    os.replace(f"{path}{_ENDING}", path)


def read_results(path):
    """The rows, of an unfinished run too."""
    for candidate in (Path(path), Path(f"{path}{_ENDING}")):
        if candidate.exists():
            return json.loads(candidate.read_text())["results"]
    return []


def command_of(script, arguments):
    """The command that was given, whatever the file is called."""
    words = ["python", f"bench/rivals/{script}", *arguments]
    for before in range(len(words) - 1):
        if words[before] == "--json":
            words[before + 1] = "FILE"
    return shlex.join(words)


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
