"""Show the versions, this machine, its kernel, and settings from the environment."""

import importlib.metadata
import json
import os
import platform
import sys

import cadre

from .. import _library
from . import problem

EXAMPLE = "cadre info --json"
_VARIABLES = ("CADRE_BACKEND", "CADRE_ISA", "CADRE_NUM_THREADS", "CADRE_CHECK", "CADRE_LIBRARY")
_PACKAGES = ("numpy", "ml_dtypes", "torch", "jax")


def add_arguments(parser):
    parser.add_argument("--json", action="store_true", help="print one JSON object")


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


def _kernel():
    """The kernel that a usual layer of experts gets in host memory."""
    arguments = problem.arguments("gmm", m=4096, k=2048, n=1536, groups=8, dtype="bf16")
    _, text = problem.explain(_library.context(), arguments)
    return text.split("Chosen ", 1)[1].split()[0]


def collect():
    return {
        "version": cadre.__version__,
        "library": str(_library.path),
        "backends": cadre.backends(),
        "cpu_kernel": _kernel(),
        "cpu": _processor(),
        "logical_cpus": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {package: _version_of(package) for package in _PACKAGES},
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
    }


def run(options):
    found = collect()
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"cadre {found['version']}, {found['library']}")
    print(f"Python {found['python']} ({sys.executable})")
    for package, version in found["packages"].items():
        print(f"  {package:<18} {version or 'not installed'}")
    print(f"CPU {found['cpu']}, {found['logical_cpus']} logical CPUs, kernel {found['cpu_kernel']}")
    print(f"Backends, in the order they are tried: {', '.join(found['backends'])}")
    if "cuda" not in found["backends"]:
        print("  without CUDA: pip install . -C cmake.define.CADRE_CUDA=ON builds it in")
    print("Environment")
    for name, value in found["environment"].items():
        print(f"  {name:<18} {'unset' if value is None else value}")
    return 0
