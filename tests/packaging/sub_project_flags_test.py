#!/usr/bin/env python3
"""As a sub-project cadre is optimised unless its parent says otherwise, and its parent's own files are left alone.

usage: sub_project_flags_test.py SOURCE_DIR CXX_COMPILER        (configures three times, builds nothing)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "add_subdirectory"


def optimisation(source, cxx, *options):
    """The -O... options of (a file of the library, the parent's own file)."""
    with tempfile.TemporaryDirectory() as build:
        command = ["cmake", "-G", "Ninja", "-S", str(CONSUMER), "-B", build, f"-DCADRE_SOURCE_DIR={source}"]
        command += [f"-DCMAKE_CXX_COMPILER={cxx}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        entries = json.loads((Path(build) / "compile_commands.json").read_text())
    commands = {Path(entry["file"]).name: entry["command"].split() for entry in entries}
    return tuple([word for word in commands[name] if word.startswith("-O")] for name in ("gmm.cc", "consumer.cc"))


def main():
    source, cxx = sys.argv[1:]
    for options, expected in (
        ([], (["-O3"], [])),
        (["-DCMAKE_BUILD_TYPE=Debug"], ([], [])),
        (["-DCMAKE_CXX_FLAGS=-O1 -g"], (["-O1"], ["-O1"])),
    ):
        found = optimisation(source, cxx, *options)
        assert found == expected, f"{options or 'no options'}: {found}, expected {expected}"
        print(f"{options or 'no options'}: {found}")


if __name__ == "__main__":
    main()
