"""What `cadre bench` writes to a terminal, and that a pipe gets plain lines."""

import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ARGUMENTS = "bench --device cpu --op gmm --dtype i8 --rows 2,3 --threads 1 --seconds 0.01 --repeats 1".split()
ROW = re.compile(r"^gmm +i8 +(\d) rows +1 +[\d.]+ (us|ms|s) ", re.MULTILINE)


def _tool():
    """The C++ tool that was built beside the library under test."""
    library = os.environ.get("CADRE_LIBRARY", "")
    tool = Path(library).parent / "cadre"
    if not library or not shutil.which(str(tool)):
        pytest.skip("no command line tool beside CADRE_LIBRARY")
    return str(tool)


def _on_terminal(environment):
    """All bytes that the tool writes to a terminal that is its stdin, stdout and stderr."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(_tool(), ["cadre", *ARGUMENTS], {**os.environ, **environment})
    written = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, written
    return written.decode()


def _screen(written):
    """The lines that stand on a terminal at the end: \\r, \\n, "up one" and "clear from here" are what is used."""
    lines, row = [""], 0
    for part in re.split(r"(\r\n|\r|\n|\x1b\[1A|\x1b\[[JK]|\x1b\[\d+m)", written):
        if part == "\r\n" or part == "\n":
            row += 1
            lines[row:] = lines[row:] or [""]
        elif part == "\x1b[1A":
            row -= 1
        elif part in ("\x1b[J", "\x1b[K"):
            lines[row:] = [""]
        elif not part.startswith("\x1b") and part != "\r":
            lines[row] += part
    return "\n".join(lines)


def test_the_live_row_and_the_bar_leave_the_finished_table_behind():
    written = _on_terminal({"NO_COLOR": ""})
    assert "[------------------------] 0/2  --:-- left  gmm i8 2 rows" in written
    assert re.search(r"\[############-{12}\] 1/2  \d+:\d\d left  gmm i8 3 rows", written)
    assert written.count("\x1b[1A\x1b[J") == 2, "the two live lines were not taken back once for each case"
    assert "\x1b[32mpass\x1b[0m" in written
    screen = _screen(written)
    assert [match[1] for match in ROW.finditer(screen)] == ["2", "3"]
    assert " left  " not in screen and "[---" not in screen
    assert "Summary: 2 cases" in screen


def test_no_color_leaves_out_colours_alone():
    written = _on_terminal({"NO_COLOR": "1"})
    assert "\x1b[32m" not in written and " pass" in written
    assert "[############------------] 1/2" in written


def test_a_pipe_gets_plain_lines():
    run = subprocess.run([_tool(), *ARGUMENTS], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert "\x1b" not in run.stdout and "\r" not in run.stdout
    assert [match[1] for match in ROW.finditer(run.stdout)] == ["2", "3"]
