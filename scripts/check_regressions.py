#!/usr/bin/env python3
"""Checks docs/regressions.md: every bug of the table names a test that exists.

A row is `| number | bug | area | test |`. The last column holds, in backticks, one or more of
  `Suite.Name`                  a GoogleTest case (TEST, TEST_F, TEST_P or TYPED_TEST with these two names),
  `tests/python/test_x.py::test_name`   a pytest case (a class in between is allowed),
  `path/to/file`                for a bug about words: the place that was reviewed,
or it begins with `not yet:` (without backticks) and says what is missing. Rows are numbered 1, 2, 3 ... with no gap.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "regressions.md"
ROW = re.compile(r"^\|\s*(\d+)\s*\|(.*)\|\s*$")
GTEST = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)


def gtest_cases():
    cases = set()
    for suffix in ("*.cc", "*.cu"):
        for path in (ROOT / "tests").rglob(suffix):
            cases.update(".".join(names) for names in GTEST.findall(path.read_text()))
    return cases


def pytest_exists(name):
    file, *inner = name.split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    text = path.read_text()
    function = inner[-1].split("[")[0]
    classes_there = all(re.search(rf"^class {re.escape(outer)}\b", text, re.MULTILINE) for outer in inner[:-1])
    return classes_there and re.search(rf"^\s*def {re.escape(function)}\(", text, re.MULTILINE) is not None


def exists(name, cases):
    if "::" in name:
        return pytest_exists(name)
    return name in cases or (ROOT / name).is_file()


def main():
    if not TABLE.exists():
        print("check_regressions: no docs/regressions.md", file=sys.stderr)
        sys.exit(1)
    cases = gtest_cases()
    faults, pending, numbers = [], 0, []
    for line in TABLE.read_text().splitlines():
        row = ROW.match(line)
        if not row:
            continue
        number = int(row.group(1))
        numbers.append(number)
        tests = row.group(2).split("|")[-1].strip()
        names = re.findall(r"`([^`]+)`", tests)
        if tests.startswith("not yet:"):
            pending += 1
        elif not names:
            faults.append(f"row {number}: names no test: {tests!r}")
        else:
            faults += [f"row {number}: no such test or file: {name}" for name in names if not exists(name, cases)]
    if numbers != list(range(1, len(numbers) + 1)) or not numbers:
        faults.append(f"rows are not numbered 1, 2, 3 ...: {numbers}")
    for fault in faults:
        print(f"docs/regressions.md: {fault}")
    print(f"check_regressions: {len(numbers)} bugs, {pending} not yet tested, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
