#!/usr/bin/env python3
"""Checks the Markdown files: every relative link leads to a file, and so does every path in backticks that begins with
one of the project's folders."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+)")
FOLDERS = "bench|bindings|cli|cmake|docs|examples|include|requirements|scripts|src|tests|verify"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]+\.\w+)(?:::\w+)*`")


def dead_links(page):
    text = page.read_text()
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
            yield link
    for path in PATH.findall(text):
        if not (ROOT / path).exists():
            yield path


def main():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = 0
    for name in listed:
        for link in dead_links(ROOT / name):
            print(f"{name}: {link} does not exist")
            found += 1
    print(f"check_docs: {len(listed)} pages, {found} dead links")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
