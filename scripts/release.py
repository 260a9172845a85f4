#!/usr/bin/env python3
"""Checks that a release is complete, and writes its notes: version, changelog, artefacts in dist/, a clean working tree.

usage: release.py [--notes FILE]     (default dist/RELEASE_NOTES.md)

The version stands in CMakeLists.txt alone. Every problem is listed with what to do about it; exit status 1 if there is one.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

#: In a library that was compiled without nlohmann-json (src/backend/tuning_file.cc).
NO_TABLES = b"this build reads no tuning tables"
ROOT = Path(__file__).resolve().parent.parent


def version_of(cmake):
    found = re.search(r"project\(cadre\s+VERSION (\d+\.\d+\.\d+)", cmake)
    return found and found[1]


def sections(changelog):
    """{heading: text} of the changelog, newest first: "Unreleased" or "0.1.0"."""
    parts = re.split(r"^## \[([^\]]+)\](.*)$", changelog, flags=re.MULTILINE)
    return {name: (rest.strip(), text.strip()) for name, rest, text in zip(parts[1::3], parts[2::3], parts[3::3])}


def changelog_problems(found, version):
    if version not in found:
        yield f"CHANGELOG.md has no section [{version}]: rename [Unreleased] to [{version}] - YYYY-MM-DD and begin an empty one"
        return
    rest, text = found[version]
    if not re.fullmatch(r"- \d{4}-\d\d-\d\d", rest):
        yield f"CHANGELOG.md: the heading of [{version}] ends with {rest!r}, expected - YYYY-MM-DD"
    if not text:
        yield f"CHANGELOG.md: the section [{version}] is empty"
    if found.get("Unreleased", ("", ""))[1]:
        yield f"CHANGELOG.md: [Unreleased] is not empty: what is in it belongs to [{version}], or the version is too low"


def wheel_problems(path, version):
    library = "cadre/lib/libcadre.so"
    with zipfile.ZipFile(path) as files:
        names = files.namelist()
        binary = files.read(library) if library in names else b""
        metadata = files.read(f"cadre_gmm-{version}.dist-info/METADATA").decode()
    if "-manylinux_" not in path.name:
        yield f"{path.name}: its tag names no glibc: make wheel, which asks auditwheel"
    if f"Version: {version}" not in metadata.splitlines():
        yield f"{path.name}: its METADATA is not of version {version}"
    if NO_TABLES in binary:
        yield f"{path.name}: its library reads no tuning tables: install nlohmann-json (Debian: nlohmann-json3-dev), then make wheel"
    for name in (library, "cadre/py.typed", f"cadre_gmm-{version}.dist-info/licenses/LICENSE"):
        if name not in names:
            yield f"{path.name}: {name} is missing"


def sdist_problems(path, version):
    with tarfile.open(path) as files:
        names = files.getnames()
    for name in ("CMakeLists.txt", "PKG-INFO", "LICENSE", "include/cadre/cadre.h"):
        if f"cadre_gmm-{version}/{name}" not in names:
            yield f"{path.name}: {name} is missing"


def artefact_problems(dist, version):
    kinds = ((f"cadre_gmm-{version}-*.whl", wheel_problems, "make wheel"), (f"cadre_gmm-{version}.tar.gz", sdist_problems, "make sdist"))
    for pattern, check, command in kinds:
        found = sorted(dist.glob(pattern))
        if not found:
            yield f"dist/{pattern} is missing: {command}"
        for path in found:
            try:
                yield from check(path, version)
            except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
                yield f"{path.name} can't be read as an artefact of {version}: {error}"
    for path in sorted([*dist.glob("cadre_gmm-*.whl"), *dist.glob("cadre_gmm-*.tar.gz")]):
        if not path.name.startswith((f"cadre_gmm-{version}-", f"cadre_gmm-{version}.tar.gz")):
            yield f"dist/{path.name} is of another version: remove it"


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip()


def tree_problems(version):
    if git("status", "--porcelain", "--untracked-files=no"):
        yield "the working tree has changes that are not committed: commit them, and make the artefacts again"
    tagged = git("rev-list", "-n", "1", f"v{version}")
    if tagged and tagged != git("rev-parse", "HEAD"):
        yield f"v{version} is released already, from another commit: raise the version in CMakeLists.txt"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=Path, default=ROOT / "dist" / "RELEASE_NOTES.md")
    options = parser.parse_args()
    version = version_of((ROOT / "CMakeLists.txt").read_text())
    if version is None:
        print("release: CMakeLists.txt has no line project(cadre VERSION X.Y.Z", file=sys.stderr)
        sys.exit(1)
    found = sections((ROOT / "CHANGELOG.md").read_text())
    problems = [
        *changelog_problems(found, version),
        *artefact_problems(ROOT / "dist", version),
        *tree_problems(version),
    ]
    for problem in problems:
        print(f"release {version}: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    options.notes.parent.mkdir(parents=True, exist_ok=True)
    options.notes.write_text(f"# cadre {version}\n\n{found[version][1]}\n")
    print(f"release {version} is complete; notes in {options.notes}. Next: git tag v{version}, and upload dist/cadre_gmm-*")


if __name__ == "__main__":
    main()
