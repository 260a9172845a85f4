#!/usr/bin/env python3
"""Checks that each given file stands in the README, word for word, as a fenced block.

usage: check_readme.py README FILE...
"""
import re
import sys
from pathlib import Path


def main():
    readme, *files = map(Path, sys.argv[1:])
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)
    missing = [file.name for file in files if file.read_text() not in blocks]
    if missing:
        sys.exit(f"{readme.name} does not print these files as they are: {', '.join(missing)}")
    print(f"{readme.name} prints {len(files)} examples as they are")


if __name__ == "__main__":
    main()
