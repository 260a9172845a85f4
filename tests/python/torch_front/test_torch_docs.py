"""The Python blocks of docs/torch.md, docs/grouped-linear.md, docs/expert-parallel.md and docs/fp8.md run as they are printed; those that use torch.distributed, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sections(page):
    """(title, code) of each block of the page."""
    return [
        (section.partition("\n")[0], code)
        for section in (DOCS / page).read_text().split("\n## ")[1:]
        for code in BLOCK.findall(section)
    ]


SECTIONS = sections("torch.md")
PAGES = ("grouped-linear.md", "expert-parallel.md", "fp8.md")
ALL = SECTIONS + [each for page in PAGES for each in sections(page)]


def test_the_page_shows_what_it_speaks_of():
    titles = [title for title, _ in SECTIONS]
    assert titles == [
        "A layer of its ops",
        "Autocast",
        "Activation checkpointing",
        "DistributedDataParallel",
        "FSDP2",
        "torch.func and forward mode",
        "Profiling",
    ]


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, command)], check=False, env=environment, capture_output=True, text=True
    )


def is_distributed(code):
    return "torch.distributed" in code


#: (title, code) of the blocks of one process, by page; expert-parallel.md has none.
ALONE = {
    page: [(title, code) for title, code in sections(page) if not is_distributed(code)] for page in ("torch.md", *PAGES)
}


@pytest.mark.parametrize("page", [page for page, blocks in ALONE.items() if blocks])
def test_blocks_run(tmp_path, page):
    """In one process, which imports torch once, each with names of its own."""
    scripts = []
    for number, (title, code) in enumerate(ALONE[page]):
        scripts.append(tmp_path / f"{number} {title.replace('/', ' ')}.py")
        scripts[-1].write_text(code)
    program = "import runpy, sys\nfor path in sys.argv[1:]:\n    print(path, flush=True)\n    runpy.run_path(path, run_name='__main__')"
    result = run("-c", program, *scripts)
    assert result.returncode == 0, f"{result.stdout[-1000:]}\n{result.stderr[-4000:]}"


DISTRIBUTED = [(title, code) for title, code in ALL if is_distributed(code)]


@pytest.mark.parametrize("title, code", DISTRIBUTED, ids=[title for title, _ in DISTRIBUTED])
def test_block_runs_in_two_processes(tmp_path, title, code):
    script = tmp_path / "block.py"
    # One process in fifteen aborts in torch's own threads while the interpreter ends, with nn.Linear too.
    script.write_text(code + "import os\n\nos._exit(0)\n")
    result = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    assert result.returncode == 0, result.stderr[-4000:]
