#!/usr/bin/env python3
"""Checks that includes point downward only, and that a third-party header stays in the rooms it belongs to.

The rooms, from the top: bindings, capi, cli, tests ... -> ops -> backend -> cpu | cuda -> plan -> core -> include/cadre.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# room -> rooms whose headers it may include, besides its own and the public ones.
BELOW = {
    "include/cadre": set(),
    "src/core": set(),
    "src/plan": {"src/core"},
    "src/cpu": {"src/plan", "src/core"},
    "src/cuda": {"src/plan", "src/core"},
    "src/backend": {"src/cpu", "src/cuda", "src/plan", "src/core"},
    "src/ops": {"src/backend", "src/plan", "src/core"},
    "src/capi": {"src/ops", "src/backend", "src/plan", "src/core"},
}

# header prefix -> rooms (folders, or a file) that may include it.
THIRD_PARTY = {
    "torch/": ("bindings/torch",),
    "ATen/": (),
    "c10/": (),
    "xla/": ("bindings/jax", "bench/rivals"),
    "Python.h": (),
    "CLI/": ("cli", "tests", "bench"),
    "nlohmann/": ("cli", "tests", "bench", "src/backend/tuning_file.cc"),
    "gtest/": ("tests",),
    "gmock/": ("tests",),
    "fmt/": ("cli", "tests"),
    "cuda": ("src/cuda", "tests/gpu", "bench", "bindings", "cli"),
    "cublas": ("bench",),
    "cblas": ("bench",),
    "oneapi/": ("bench",),
    "dnnl": ("bench",),
    "cutlass/": (),
    "immintrin.h": ("src/cpu", "bench", "tests"),
}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".hpp", ".cuh", ".c", ".cc", ".cpp", ".cu", ".inc"}
TOP_FOLDERS = ("include", "src", "verify", "cli", "bench", "tests", "examples", "bindings")


def room_of(path):
    parts = path.parts
    if parts[0] in ("include", "src") and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def resolve(source, quoted, header):
    """The project file an include names, relative to ROOT, or None for a header of someone else."""
    candidates = [source.parent / header] if quoted else []
    candidates += [Path("include") / header, Path("src") / header, Path(header)]
    for candidate in candidates:
        if (ROOT / candidate).is_file():
            return (ROOT / candidate).resolve().relative_to(ROOT)
    return None


def fault(source, quoted, header):
    """What is wrong with one include, or None."""
    room = room_of(source)
    target = resolve(source, quoted, header)
    if target is not None:
        below = BELOW.get(room)
        target_room = room_of(target)
        if below is None and room != "examples":
            return None  # Programs above the library may include any of it.
        if target_room in (room, "include/cadre"):
            return None
        if room == "examples":
            return "examples use the public headers alone"
        return None if target_room in below else f"{room} must not include {target_room}"
    for prefix, rooms in THIRD_PARTY.items():
        if header.startswith(prefix):
            path = source.as_posix()
            allowed = any(path == room or path.startswith(room + "/") for room in rooms)
            return None if allowed else f"<{prefix}...> belongs to {', '.join(rooms) or 'no room'}"
    return None


def main():
    found = 0
    files = sorted(p for top in TOP_FOLDERS for p in (ROOT / top).rglob("*") if p.suffix in SUFFIXES)
    for path in files:
        source = path.relative_to(ROOT)
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if match := INCLUDE.match(line):
                problem = fault(source, match.group(1) == '"', match.group(2))
                if problem:
                    print(f"{source}:{number}: {match.group(2)}: {problem}")
                    found += 1
    print(f"check_includes: {len(files)} files, {found} wrong includes")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
