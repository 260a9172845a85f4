"""The Python blocks of docs/torch.md run as they are printed; those that use torch.distributed, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "torch.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTIONS = [
    (section.partition("\n")[0], code)
    for section in PAGE.read_text().split("\n## ")[1:]
    for code in BLOCK.findall(section)
]


def test_the_page_shows_what_it_speaks_of():
    titles = [title for title, _ in SECTIONS]
    assert titles == [
        "Autocast",
        "Activation checkpointing",
        "DistributedDataParallel",
        "FSDP2",
        "torch.func and forward mode",
    ]


@pytest.mark.parametrize("title, code", SECTIONS, ids=[title for title, _ in SECTIONS])
def test_block_runs(tmp_path, title, code):
    script = tmp_path / "block.py"
    script.write_text(code)
    command = [sys.executable]
    if "torch.distributed" in code:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, str(script)], check=False, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
