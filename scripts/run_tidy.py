#!/usr/bin/env python3
"""Runs clang-tidy over the library, the CLI and the benchmarks with the compile commands of a lint build folder.

usage: run_tidy.py [--jobs N] [file ...]     without files: every .cc that is compiled outside tests/ (src/cuda where
                                             there is nvcc)

A file that was clean is not checked again until its preprocessed text, its command or .clang-tidy changes; the record
is build/lint/tidy/. With CI set there is none: a fresh clone has nothing to look up.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "lint"
CHECKED = ("src", "verify", "cli", "bench", "examples")


def configure():
    """A folder of its own, so that everything is configured in; nothing is compiled in it."""
    command = ["cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja", "--log-level=NOTICE", "-DCMAKE_BUILD_TYPE=Release",
               "-DCADRE_BENCH=ON", "-DCADRE_TESTS=OFF", "-DCMAKE_CXX_COMPILER_LAUNCHER=",
               f"-DCADRE_CUDA={'ON' if shutil.which('nvcc') else 'OFF'}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return json.loads((BUILD / "compile_commands.json").read_text())


def fingerprint(entry):
    """Changes whenever clang-tidy's answer for this file could."""
    arguments = shlex.split(entry["command"])
    kept = []
    skip = False
    for argument in arguments:
        if skip or argument in ("-o", "-MT", "-MF"):
            skip = not skip
        elif argument not in ("-c", "-MD"):
            kept.append(argument)
    text = subprocess.run(kept + ["-E", "-P"], cwd=entry["directory"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(text)
    digest.update(entry["command"].encode())
    digest.update((ROOT / ".clang-tidy").read_bytes())
    return digest.hexdigest()


def warnings(path):
    """What clang-tidy says about a file: nothing if it is clean."""
    done = subprocess.run(["clang-tidy", "--quiet", "-p", str(BUILD), str(path), "--extra-arg=-Wno-unknown-warning-option"],
                          cwd=ROOT, capture_output=True, text=True)
    clean = done.returncode == 0 and not done.stdout.strip()
    return "" if clean else done.stdout or done.stderr


def check(entry):
    path = Path(entry["file"]).relative_to(ROOT)
    if os.environ.get("CI"):
        return path, warnings(path)
    record = BUILD / "tidy" / (str(path).replace("/", "_") + ".clean")
    try:
        mark = fingerprint(entry)
    except subprocess.CalledProcessError as error:
        return path, error.stderr.decode(errors="replace")
    if record.exists() and record.read_text() == mark:
        return path, ""
    text = warnings(path)
    if not text:
        record.write_text(mark)
    return path, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()

    entries = {}
    for entry in configure():
        path = Path(entry["file"])
        if path.suffix == ".cc" and path.is_relative_to(ROOT):
            entries[str(path.relative_to(ROOT))] = entry
    if options.files:
        chosen = [entries[str(Path(file).resolve().relative_to(ROOT))] for file in options.files]
    else:
        chosen = [entry for path, entry in entries.items() if path.split("/")[0] in CHECKED]

    (BUILD / "tidy").mkdir(exist_ok=True)
    warned = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done, (path, text) in enumerate(pool.map(check, chosen), start=1):
            if done % 10 == 0:
                print(f"{done} of {len(chosen)} files", flush=True)
            if text:
                warned += 1
                print(f"{path}:\n{text}", flush=True)
    print(f"clang-tidy: {len(chosen)} files, {warned} with warnings")
    sys.exit(1 if warned or not chosen else 0)


if __name__ == "__main__":
    main()
