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


@pytest.mark.parametrize("title, code", ALL, ids=[title for title, _ in ALL])
def test_block_runs(tmp_path, title, code):
    script = tmp_path / "block.py"
    command = [sys.executable]
    if "torch.distributed" in code:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        # One process in fifteen aborts in torch's own threads while the interpreter ends, with nn.Linear too.
        code += "import os\n\nos._exit(0)\n"
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, str(script)], check=False, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
