"""lax.ragged_dot in a process of its own that can be ended: it may compile for minutes, and nothing stops a compilation."""

import contextlib
import subprocess
import sys
import tempfile

import result_file


def results(arguments, limit_s):
    """(shape, skew, case) -> row, for what a benchmark with these arguments measured of lax before its time was up or it died.

    The caller must not have used the GPU yet: JAX takes most of its memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/lax.json"
        command = [sys.executable, *arguments, "--only-lax", "--json", path]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, timeout=limit_s)
        rows = result_file.read_results(path)
    return {(row["shape"], row["skew"], row["case"]): row for row in rows}
