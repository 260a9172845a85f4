#!/usr/bin/env python3
"""Checks objects compiled for one instruction set: none may define a weak symbol that other code could end up calling.

usage: check_isa_objects.py ISA... OBJECT...

An inline function or template instantiation is weak, and the linker keeps any one copy of it. Were that the copy from
gemm_avx512.cc, a machine without AVX-512 would fault in code that has nothing to do with kernels. A name with the
instruction set in it (a namespace or function of the file's own) is safe.
"""
import re
import subprocess
import sys


def weak_symbols(path):
    listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind in "WVu":
            yield name


def main():
    # CMake may hand lists over joined by semicolons or as one argument an element.
    words = ";".join(sys.argv[1:]).split(";")
    objects = [word for word in words if word.endswith(".o")]
    names = [word for word in words if not word.endswith(".o")]
    checked, faults = 0, []
    for path in objects:
        own = [isa for isa in names if re.search(rf"_{isa}\.cc\.o$", path)]
        if own:
            checked += 1
            faults += [f"{path}: {name}" for name in weak_symbols(path) if own[0] not in name.lower()]
    for fault in faults:
        print(fault)
    print(f"{checked} objects, {len(faults)} weak symbols that other code could call")
    sys.exit(1 if faults or checked < len(names) else 0)


if __name__ == "__main__":
    main()
