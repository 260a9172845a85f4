#!/usr/bin/env python3
"""Counts every test case in folders of result files and names those that failed or were skipped.

usage: test_summary.py [--count] FOLDER...     --count: skipped cases are counted, not named

A folder holds one *.xml for each GoogleTest program and for pytest, and `ctest-junit`, ctest's own report. A ctest test
with no *.xml of its own (a program that isn't GoogleTest, or one that crashed before it could write) counts as one case.
The last line is `N passed, N failed, N skipped`; the exit status is 1 when a case failed or none passed.
"""
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "failed" if case.get("status") == "fail" else "passed"


def cases(path):
    """Yields (name, outcome, reason) for each case of one JUnit file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        reason = "" if skipped is None else (skipped.get("message") or skipped.text or "").strip().split("\n")[-1]
        yield name, outcome(case), reason


def collect(folder):
    detailed = {}
    for path in sorted(folder.glob("*.xml")):
        try:
            detailed[path.stem] = list(cases(path))
        except ElementTree.ParseError:
            pass  # Cut short by a crash: ctest's own entry for the program counts.
    ctest_report = folder / "ctest-junit"
    if ctest_report.exists():
        for case in ElementTree.parse(ctest_report).getroot().iter("testcase"):
            name, result = case.get("name"), outcome(case)
            known = detailed.get(name)
            if known is None:
                detailed[name] = [(name, result, "")]
            elif result == "failed" and all(found != "failed" for _, found, _ in known):
                known.append((f"{name} (the program itself)", "failed", ""))
    return [case for program in detailed.values() for case in program]


def main():
    folders = [argument for argument in sys.argv[1:] if argument != "--count"]
    if not folders:
        sys.exit(__doc__)
    found = [case for folder in folders for case in collect(Path(folder))]
    count = Counter(result for _, result, _ in found)
    print("== Summary")
    for kind in ("failed",) if "--count" in sys.argv else ("skipped", "failed"):
        for name, result, reason in found:
            if result == kind:
                print(f"  {kind}: {name}" + (f" ({reason})" if reason else ""))
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if count["failed"] or not count["passed"] else 0)


if __name__ == "__main__":
    main()
