#!/usr/bin/env python3
"""Checks built shared libraries: full RELRO, no executable stack, a stack protector, checked calls of libc.

usage: check_hardening.py [--shim] LIBRARY...    --shim: the library also exports nothing but cadre_*
"""
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def faults_of(library, shim):
    segments, dynamic = run("readelf", "-lW", library), run("readelf", "-dW", library)
    names = run("nm", "-D", library)
    if "GNU_RELRO" not in segments:
        yield "has no GNU_RELRO segment"
    if not re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic):
        yield "binds its functions lazily: RELRO is not full"
    if re.search(r"GNU_STACK.* RWE", segments):
        yield "asks for an executable stack"
    if "__stack_chk_fail" not in names:
        yield "has no stack protector"
    # The shims hardly call libc with a buffer of known size.
    if not shim and not re.search(r" U __\w+_chk\b", names.replace("__stack_chk_fail", "")):
        yield "calls no function that _FORTIFY_SOURCE checks"
    if not shim and not re.search(r"\(FLAGS_1\).*\bNODELETE\b", dynamic):
        yield "can be unloaded under its threads"
    if shim:
        exported = re.findall(r"^\w* +[A-TV-Zu-vx-z] (\S+)$", run("nm", "-D", "--defined-only", library), re.MULTILINE)
        foreign = [name for name in exported if not name.startswith("cadre_")]
        if foreign:
            yield f"exports {len(foreign)} symbols that are not cadre_*: {foreign[0]}"
        if not exported:
            yield "exports nothing"


def main():
    shim = "--shim" in sys.argv
    libraries = [word for word in sys.argv[1:] if word != "--shim"]
    faults = [f"{library}: {fault}" for library in libraries for fault in faults_of(library, shim)]
    for fault in faults:
        print(fault)
    print(f"{len(libraries)} libraries, {len(faults)} faults")
    sys.exit(1 if faults or not libraries else 0)


if __name__ == "__main__":
    main()
