#!/usr/bin/env python3
"""Compiles and runs every complete C and C++ program in the README against an installed cadre.

usage: readme_test.py README PREFIX CXX_COMPILER

A program is a fenced block marked c or cpp that has a main. The README must hold at least one of each language.
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```(c|cpp)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def build_and_run(language, code, prefix, cxx):
    libdir = next(prefix.rglob("libcadre.so")).parent
    # A C program is compiled as C (-x c) by the same driver; the linker finds libstdc++ through libcadre itself.
    standard = ["-x", "c", "-std=c11"] if language == "c" else ["-x", "c++", "-std=c++20"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "example", Path(folder) / "program"
        source.write_text(code)
        subprocess.run([cxx, *standard, *WARNINGS, f"-I{prefix}/include", str(source), "-x", "none", "-o", str(program),
                        f"-L{libdir}", "-lcadre"], check=True)
        subprocess.run([str(program)], check=True, env={**os.environ, "LD_LIBRARY_PATH": str(libdir)})


def main():
    readme, prefix, cxx = sys.argv[1:]
    programs = [(language, code) for language, code in BLOCK.findall(Path(readme).read_text()) if " main(" in code]
    for language, code in programs:
        print(f"-- {language}: {len(code.splitlines())} lines", flush=True)
        build_and_run(language, code, Path(prefix), cxx)
    missing = {"c", "cpp"} - {language for language, _ in programs}
    if missing:
        sys.exit(f"{readme}: no complete example in {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
