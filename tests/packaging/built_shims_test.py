#!/usr/bin/env python3
"""Shims that CMake builds into a wheel, where torch and jax can be seen, are hardened and export cadre_* alone.

usage: built_shims_test.py SOURCE_DIR WORK_DIR PYTHON [CMAKE_OPTION...]
PYTHON: an interpreter with torch and jax installed. Without either there is nothing to build, and the test says so
(exit status 77: skipped).
"""

import subprocess
import sys
from pathlib import Path


def main():
    source, work, python, *options = sys.argv[1:]
    off = [f"-DCADRE_{part}=OFF" for part in ("TESTS", "CLI", "EXAMPLES", "INSTALL")]
    configure = ["cmake", "-S", source, "-B", work, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSKBUILD=ON"]
    subprocess.run([*configure, f"-DPython3_EXECUTABLE={python}", *off, *options], check=True)
    listed = subprocess.run(["ninja", "-C", work, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    targets = [name for name in ("cadre_jax.so", "cadre_torch.so") if f"/{name}: " in listed.stdout]
    if not targets:
        print("neither torch nor jax in the interpreter: no shim to build")
        sys.exit(77)
    subprocess.run(["cmake", "--build", work, "--target", *(name[:-3] for name in targets)], check=True)
    built = [str(path) for name in targets for path in Path(work).rglob(name)]
    check = Path(__file__).with_name("check_hardening.py")
    sys.exit(subprocess.run([sys.executable, str(check), "--shim", *built], check=False).returncode)


if __name__ == "__main__":
    main()
