#!/usr/bin/env python3
"""Installs a wheel into fresh virtual environments, one for each Python that is found, and uses it as the documents say.

usage: test_wheel.py VENV WHEEL

Everywhere: cadre verify, cadre compare, the report of what it said, and the documents' Python that needs NumPy alone. With the
Python of VENV also the documents' PyTorch and JAX: that environment's packages stand for those of a user. Other Pythons get no
framework, which is said.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
PAGES = ("README.md", "docs/numpy.md", "docs/jax.md", "docs/jax-fp8.md")


def version(python):
    """(major, minor) of a Python that can make environments, else None."""
    code = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def pythons(first):
    """{(major, minor): path}: that of `first`, those on PATH and pyenv's."""
    candidates = [first, *(shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20))]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], check=True, capture_output=True, text=True).stdout.strip()
        candidates += sorted(glob.glob(f"{root}/versions/3.*/bin/python3"))
    found = {}
    for candidate in filter(None, candidates):
        which = version(candidate)
        if which and which >= OLDEST:
            found.setdefault(which, candidate)
    return found


def blocks():
    """(page, code) of every Python block."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for code in re.findall(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            yield page, textwrap.dedent(code)


def run(command, folder, **options):
    """Runs in a folder that has nothing of the sources; ends this program if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CADRE_", "PYTHON"))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=kept, **options)
    if done.returncode:
        sys.exit(f"test_wheel: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def use(python, wheel, folder, packages):
    run([python, "-m", "venv", folder / "venv"], folder)
    own = folder / "venv" / "bin" / "python"
    if packages:
        purelib = run([own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder)
        (Path(purelib) / "packages-of-a-user.pth").write_text(f"{packages}\n")
    pip = [own, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index" if packages else "--prefer-binary"]
    run([*pip, *(["--no-deps"] if packages else []), wheel], folder)
    cadre = own.with_name("cadre")
    print("  ", run([cadre, "verify", "--cases", "50"], folder))
    said = run([cadre, "compare", "8,2,64,48", "--tokens", "32", "--seconds", "2", "--json"], folder)
    (folder / "mine.json").write_text(said)
    print("  ", run([own, "-m", "cadre.report", "mine.json", "-o", "report.html"], folder))
    ran, left = 0, []
    for page, code in blocks():
        missing = [name for name in ("torch", "jax") if f"import {name}" in code and not packages]
        if missing:
            left.append(missing[0])
            continue
        run([own, "-c", code], folder)
        ran += 1
    print(f"   {ran} blocks of {', '.join(PAGES)} ran;", f"{len(left)} need torch or jax, not run here" if left else "none left out")
    assert ran and (left or packages)


def main():
    if len(sys.argv) != 3:
        print("usage: test_wheel.py VENV WHEEL", file=sys.stderr)
        sys.exit(2)
    environment, wheel = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    if not wheel.is_file():
        sys.exit(f"test_wheel: {wheel} is no file: make wheel")
    (packages,) = environment.glob("lib/python3*/site-packages")
    first = str(environment / "bin" / "python")
    found = pythons(first)
    for which, python in found.items():
        print(f"Python {'.'.join(map(str, which))}, {wheel.name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            use(python, wheel, Path(folder), packages if python == first else None)
    print(f"{wheel.name} works on {len(found)} Pythons")


if __name__ == "__main__":
    main()
