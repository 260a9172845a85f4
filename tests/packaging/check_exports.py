#!/usr/bin/env python3
"""Checks a built libcadre.so: it exports the C ABI and the C++ API and nothing else, and needs only system libraries.

usage: check_exports.py LIBRARY C_HEADER
"""
import pathlib
import re
import subprocess
import sys

EXPORTED = re.compile(r"^(?:cadre_\w+$|(?:(?:vtable|typeinfo|typeinfo name) for )?cadre::)")
# Compiler runtimes and libc; the sanitizer runtimes in builds that ask for them.
NEEDED = re.compile(r"^(?:ld-linux-|lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+|asan|ubsan|tsan)\.so)")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    library, header = sys.argv[1:]
    names = [line.split(maxsplit=2)[2] for line in run("nm", "-DC", "--defined-only", library).splitlines()]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library))

    faults = [f"exports {name}" for name in names if not EXPORTED.match(name)]
    faults += [f"needs {name}" for name in needed if not NEEDED.match(name)]
    declared = re.findall(r"^CADRE_API[^(]*?(\w+)\(", pathlib.Path(header).read_text(), re.MULTILINE)
    faults += [f"does not export {name}, declared in {header}" for name in declared if name not in names]
    if not declared or not any(name.startswith("cadre::") for name in names):
        faults.append("exports nothing of the C or C++ API")
    for fault in faults:
        print(f"{library}: {fault}")
    print(f"{len(names)} exported symbols, {len(needed)} needed libraries, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
