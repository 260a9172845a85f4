"""The result file of the JAX benchmark: kept up to date beside an older one, which it replaces when the run is complete."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path

import cadre
import jax

_ENDING = ".partial"


def write(path, results):
    """What there is so far. Whoever reads it may end this process at any time."""
    device = jax.devices()[0]
    document = {
        "schema": 1,
        "machine": {
            "device": device.device_kind if device.platform == "gpu" else _cpu_name(),
            "platform": device.platform,
            "cpus": len(os.sched_getaffinity(0)),
            "jax": jax.__version__,
            "cadre": cadre.__version__,
        },
        "command": _command(),
        "results": results,
    }
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


def _command():
    """The one that was given, whatever the file is called."""
    words = ["python", "bench/rivals/jax_ragged_dot.py", *sys.argv[1:]]
    for before in range(len(words) - 1):
        if words[before] == "--json":
            words[before + 1] = "FILE"
    return shlex.join(words)


def _cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
