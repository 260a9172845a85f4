#!/usr/bin/env python3
"""Compiles and runs the C and C++ programs of the documents, with the documents' own commands, against an installed cadre.

usage: documents_test.py SOURCE_DIR PREFIX

program.cc is the README's C++ example, program.c the C example of docs/c-and-cpp.md. Every shell block of that page that runs
./program is run, with FOLDER = PREFIX, in a folder that holds these two.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def main():
    source, prefix = Path(sys.argv[1]), sys.argv[2]
    page = source / "docs" / "c-and-cpp.md"
    (cpp,) = blocks(source / "README.md", "cpp")
    (c,) = blocks(page, "c")
    commands = [block for block in blocks(page, "sh") if "./program" in block]
    for part in ("g++ ", "cc ", "pkg-config", "-rpath", "LD_LIBRARY_PATH"):
        assert any(part in block for block in commands), f"{page.name} has no command with {part}"
    for block in commands:
        print(block, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.cc").write_text(cpp)
            (Path(folder) / "program.c").write_text(c)
            script = re.sub(r"\b(g\+\+|cc) ", r"\1 -Wall -Wextra -Wpedantic -Werror ", block.replace("FOLDER", prefix))
            done = subprocess.run(["bash", "-euc", script], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout == "out[0][0] = 4\n", f"{done.stdout}{done.stderr}"


if __name__ == "__main__":
    main()
