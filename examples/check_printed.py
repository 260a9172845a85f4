#!/usr/bin/env python3
"""Checks that examples stand in the documents, word for word, as fenced blocks.

usage: check_printed.py DOCUMENT=FILE...
"""
import re
import sys
from pathlib import Path


def main():
    missing = []
    for pair in sys.argv[1:]:
        document, file = map(Path, pair.split("=", 1))
        blocks = re.findall(r"^```[a-z]*\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
        if file.read_text() not in blocks:
            missing.append(f"{document.name} does not print {file.name} as it is")
    if missing or len(sys.argv) < 2:
        sys.exit("\n".join(missing) or __doc__)
    print(f"{len(sys.argv) - 1} examples are printed as they are")


if __name__ == "__main__":
    main()
