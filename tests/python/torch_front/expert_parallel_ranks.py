"""What one rank of a test of expert parallelism runs: python expert_parallel_ranks.py RANK RANKS FOLDER CASE...

Each case is a function of a Here, and runs on all ranks at once. What went wrong on a rank is written to FOLDER/RANK.json.
Cases are in the modules beside this one that MODULES has; the processes are started by run_ranks().
"""

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

LIMIT_S = 240
MODULES = ("cases", "overlap", "refusals", "scaled", "stand_ins", "training")
#: Cases that are no part of a suite: tests of their own run them.
APART = ("a_rank_that_raises", "save_a_checkpoint", "load_the_checkpoint_of_other_ranks")


class Here:
    """This rank, and random tensors that all ranks draw alike."""

    def __init__(self, rank, ranks, folder):
        self.rank, self.ranks, self.folder = rank, ranks, Path(folder)

    def parts(self, tokens):
        """The slice of each rank's tokens: `tokens` has their numbers, or one number for all."""
        counts = [tokens] * self.ranks if isinstance(tokens, int) else list(tokens)[: self.ranks]
        ends = [sum(counts[: i + 1]) for i in range(self.ranks)]
        return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]


def cases():
    """name -> function, of all modules."""
    modules = (importlib.import_module(f"expert_parallel_{name}") for name in MODULES)
    return {name: case for module in modules for name, case in module.CASES.items()}


def run_ranks(ranks, names, folder, limit_s=LIMIT_S):
    """Runs the cases on so many processes. Returns {case: {rank: what went wrong}}, and what processes said that failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CADRE_NUM_THREADS": "1"}
    started = time.monotonic()
    processes = []
    for rank in range(ranks):
        log = (folder / f"{rank}.log").open("w")
        command = [sys.executable, __file__, str(rank), str(ranks), str(folder), *names]
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    failures, ended = {}, []
    for rank, process in enumerate(processes):
        try:
            process.wait(max(1.0, limit_s - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended.append(f"rank {rank} was still running after {limit_s} s")
        report = folder / f"{rank}.json"
        found = json.loads(report.read_text()) if report.exists() else {}
        for name in names:
            if name not in found and ended + list(failures) and found:
                continue  # never begun, because another one failed
            if name not in found:
                failures.setdefault(name, {})[rank] = (folder / f"{rank}.log").read_text()[-3000:]
            elif found[name]:
                failures.setdefault(name, {})[rank] = found[name]
    return failures, ended


def main(rank, ranks, folder, *names):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    here, found = Here(rank, ranks, folder), {}
    for name in names:
        torch.manual_seed(len(name))
        try:
            cases()[name](here)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
            Path(folder, f"{rank}.json").write_text(json.dumps(found))
            if name == "a_rank_that_raises":
                os._exit(1)
        # A case that went wrong on one rank alone must not let the others run into the next one.
        wrong = [None] * ranks
        try:
            dist.all_gather_object(wrong, found[name])
        except RuntimeError as error:
            found[name] = found[name] or f"another rank is gone: {error}"
        Path(folder, f"{rank}.json").write_text(json.dumps(found))
        if any(wrong):
            break  # and what comes next has no result
    # Past the interpreter's end: torch's threads abort there now and then.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
