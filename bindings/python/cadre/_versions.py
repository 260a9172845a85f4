"""What this installation is: versions, library, processor, GPUs, settings from the environment. For `cadre info` and bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from . import _library

_VARIABLES = ("CADRE_BACKEND", "CADRE_ISA", "CADRE_NUM_THREADS", "CADRE_CHECK", "CADRE_LIBRARY")
_PACKAGES = ("numpy", "ml_dtypes", "torch", "jax", "jaxlib")
_GPU_FIELDS = ("name", "compute_cap", "memory.total", "driver_version")


def _version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.machine()


def _chosen():
    """The kernel that a usual layer of experts gets in host memory, and what the tables of cadre tune say of it."""
    from ._command import problem

    arguments = problem.arguments("gmm", m=4096, k=2048, n=1536, groups=8, dtype="bf16")
    _, text = problem.explain(_library.context(), arguments)
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("Chosen ", "Tuning ")))
    return lines["Chosen"].split()[0], lines["Tuning"]


def _gpus():
    """What nvidia-smi says, in a process of its own: CUDA itself would be started here, which no later fork survives."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    names = ("name", "compute_capability", "memory", "driver")
    lines = (line.split(", ") for line in said.splitlines())
    return [dict(zip(names, fields)) for fields in lines if len(fields) == len(names)]


def collect() -> dict[str, Any]:
    """Everything that `cadre info --json` prints."""
    kernel, tuning = _chosen()
    return {
        "version": _library.version,
        "library": str(_library.path),
        "backends": _library.backends(),
        "cpu_kernel": kernel,
        "tuning": tuning,
        "cpu": _processor(),
        "logical_cpus": os.cpu_count(),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {package: _version_of(package) for package in _PACKAGES},
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
    }


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"cadre {found['version']}, {found['library']}", f"Python {found['python']} ({sys.executable})"]
    for package, version in found["packages"].items():
        lines.append(f"  {package:<18} {version or 'not installed'}")
    lines.append(f"System {found['system']}")
    lines.append(f"CPU {found['cpu']}, {found['logical_cpus']} logical CPUs, kernel {found['cpu_kernel']}")
    for gpu in found["gpus"]:
        capability, memory = gpu["compute_capability"], gpu["memory"]
        lines.append(f"GPU {gpu['name']}, compute capability {capability}, {memory}, driver {gpu['driver']}")
    if not found["gpus"]:
        lines.append("GPU none that nvidia-smi sees")
    lines.append(f"Backends, in the order they are tried: {', '.join(found['backends'])}")
    if "cuda" not in found["backends"]:
        lines.append("  without CUDA: pip install . -C cmake.define.CADRE_CUDA=ON builds it in")
    lines.append(f"Tables of cadre tune, for that kernel's layer: {found['tuning']}")
    lines.append("Environment")
    for name, value in found["environment"].items():
        lines.append(f"  {name:<18} {'unset' if value is None else value}")
    return "\n".join(lines)


def show_versions() -> None:
    """Prints versions, library, backends, processor, GPUs and settings from the environment: what a bug report needs.

    >>> cadre.show_versions()  # doctest: +ELLIPSIS
    cadre ..., ...libcadre.so...
    """
    print(text(collect()))
