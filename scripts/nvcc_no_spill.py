#!/usr/bin/env python3
"""Compiler launcher for nvcc: runs the rest of its command line and fails on a register spill or a serialised wgmma.

Needs -Xptxas=-v on that command line. ptxas's report on kernels that are fine is swallowed; CADRE_PTXAS=1 shows it.
"""
import os
import re
import subprocess
import sys

SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# C7508 to C7517: ptxas gave up overlapping wgmma with what surrounds it.
SERIALISED = re.compile(r"\(C75(?:0[89]|1[0-7])\)")
FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([\w$]+)'?")
REPORT = re.compile(r"^(ptxas info\s*:|\s+\d+ bytes stack frame)")


def faults(report):
    """Yields one message for each spill or serialisation in ptxas's report."""
    function = "?"
    for line in report.splitlines():
        if named := FUNCTION.search(line):
            function = named.group(1)
        spill = SPILL.search(line)
        if spill and spill.groups() != ("0", "0"):
            yield f"register spill in {function}: {line.strip()}"
        elif SERIALISED.search(line):
            yield line.strip()


def output_file(command):
    return command[command.index("-o") + 1] if "-o" in command else None


def main():
    command = sys.argv[1:]
    if not command:
        sys.exit("usage: nvcc_no_spill.py [ccache] nvcc arguments...")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    show_all = os.environ.get("CADRE_PTXAS") == "1"
    for line in done.stderr.splitlines():
        if show_all or not REPORT.match(line):
            print(line, file=sys.stderr)
    if done.returncode != 0:
        sys.exit(done.returncode)

    found = list(faults(done.stderr))
    for fault in found:
        print(f"error: {fault}", file=sys.stderr)
    if found:
        output = output_file(command)
        if output and os.path.exists(output):
            os.remove(output)
        sys.exit(1)


if __name__ == "__main__":
    main()
