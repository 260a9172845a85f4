"""Reads rows of the programs in bench/ whose files have no schema 2: each has a form of its own."""

import math
import re

from .._compare.models import LAYERS
from .rows import LayerTime, Row

_CONDITIONS = ("sustained", "rested")
#: bench/layer.py's names for SonicMoE's shapes: tokens, hidden, intermediate, experts, top_k.
_SONIC = re.compile(r"sonic (\d+),(\d+)/(\d+),(\d+),(\d+)")
_PASSES = {"forward": "layer forward", "step": "layer training step"}
_CPU_RIVALS = {"packed": "cadre, weights packed ahead", "grouped": "torch's grouped_mm", "loop": "torch's loop"}
_ROWS_APART = "Each op was timed alone, in turn with the whole layer."
_KERNELS = "The time from one kernel's end to the next one's, by torch.profiler."


def seconds_of(entry):
    seconds = entry["median_s"] if isinstance(entry, dict) else entry
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ValueError(f"median_s = {seconds!r}, expected a number of seconds")
    return float(seconds)


def _layer_numbers(name, row):
    """m, k, n, groups and tokens of a layer that a row names, as far as they are known."""
    if {"experts", "top_k", "hidden", "intermediate"} <= row.keys():
        experts, top_k, hidden, intermediate = (row[key] for key in ("experts", "top_k", "hidden", "intermediate"))
    elif found := _SONIC.fullmatch(name):
        _, hidden, intermediate, experts, top_k = map(int, found.groups())
    elif name in LAYERS:
        layer = LAYERS[name]
        experts, top_k, hidden, intermediate = layer.experts, layer.top_k, layer.hidden, layer.intermediate
    else:
        return {"tokens": row["tokens"]}
    numbers = {"m": row["tokens"] * top_k, "k": hidden, "n": intermediate}
    return numbers | {"groups": experts, "tokens": row["tokens"]}


class _Program:
    """`needs`: keys that its rows have, and no other program's."""

    def add(self, file, document, row):
        """Appends what the row holds to a ResultFile."""
        raise NotImplementedError


class _Layer(_Program):
    name, needs = "bench/layer.py", {"layer", "tokens", "error"}

    def add(self, file, document, row):
        numbers = _layer_numbers(row["layer"], row)
        for condition in _CONDITIONS:
            times = row.get(condition)
            if not times:
                continue
            for key, what in _PASSES.items():
                rival = times.get(f"torch_{key}_s")
                file.rows.append(
                    Row(
                        file=file.name, device=file.device, op="layer", case=what, shape=row["layer"], dtype="bf16",
                        condition=condition, seconds=seconds_of(times[f"{key}_s"]), layer_pass=key,
                        of_dense=times["of_dense"] if key == "forward" else None,
                        rivals={"torch": seconds_of(rival)} if rival else {}, **numbers,
                    )
                )  # fmt: skip
            file.layers.append(self._parts(row["layer"], condition, times))

    @staticmethod
    def _parts(name, condition, times):
        step = seconds_of(times["step_s"])
        if times.get("phases"):
            return LayerTime(name, "training step", condition, dict(times["phases"]), step, True, _KERNELS)
        parts = {
            "two dense products": times["dense_s"],
            "around them, forward": times["forward_s"] - times["dense_s"],
            "backward": step - times["forward_s"],
        }
        how = "The file has no phases: forward is cut into its two dense products, timed alone, and the rest."
        return LayerTime(name, "training step", condition, parts, step, False, how)


class _LayerCpu(_Program):
    name, needs = "bench/layer_cpu.py", {"layer", "seconds", "times_the_layer"}

    def add(self, file, document, row):
        seconds = {name: seconds_of(each) for name, each in row["seconds"].items()}
        shape, whole = f"{row['layer']}, {row['tokens']} token{'s' if row['tokens'] > 1 else ''}", seconds["layer"]
        file.rows.append(
            Row(
                file=file.name, device=file.device, op="layer", case="layer forward", shape=shape,
                dtype=row["dtype"], condition="in turn", seconds=whole, threads=document.get("threads"),
                layer_pass="forward", **_layer_numbers(row["layer"], row),
                rivals={name: whole * row["times_the_layer"][key] for key, name in _CPU_RIVALS.items() if key in seconds},
            )
        )  # fmt: skip
        if row.get("phases"):
            parts, how = dict(row["phases"]), _ROWS_APART
        else:
            parts = {"two products": seconds["products"], "around them": whole - seconds["products"]}
            how = "The file has no phases: the two products were timed alone."
        what = f"forward pass, {row['dtype']}"
        file.layers.append(LayerTime(shape, what, "in turn", parts, whole, bool(row.get("phases")), how))


class _Fp8Gmm(_Program):
    name, needs = "bench/fp8_gmm.py", {"shape", "m", "k", "n", "experts", "error"}

    def add(self, file, document, row):
        weights = row.get("pass") == "weights" or "--pass weights" in file.command
        for condition in _CONDITIONS:
            times = row.get(condition) or {}
            dense = times.get("dense", {}).get("tflops")
            for mode, each in times.items():
                if mode == "dense":
                    continue
                file.rows.append(
                    Row(
                        file=file.name, device=file.device, op="tgmm" if weights else "gmm_nt",
                        case=f"{'wgrad' if weights else 'forward'} {mode.replace('-fast', ' fast accumulation')}",
                        shape=row["shape"], dtype="e4m3", condition=condition, seconds=seconds_of(each["us"] / 1e6),
                        m=row["m"], k=row["k"], n=row["n"], groups=row["experts"], skew=row.get("skew"),
                        gflops=each["tflops"] * 1e3, of_dense=each["of_dense"], dense_gflops=dense and dense * 1e3,
                        weights_tb_per_s=each.get("weights_tb_s"),
                    )
                )  # fmt: skip


class _GroupedGemm(_Program):
    name, needs = "bench/grouped_gemm.py", {"layer", "pass"}

    def add(self, file, document, row):
        for condition in _CONDITIONS:
            if row.get(condition):
                rival = "cadre's tgmm" if row["pass"] == "weight gradient" else "cadre's gmm"
                file.rows.append(
                    Row(
                        file=file.name, device=file.device, op="grouped_gemm", case=f"grouped_gemm {row['pass']}",
                        shape=row["layer"], dtype="bf16", condition=condition,
                        seconds=seconds_of(row[condition]["grouped us"] / 1e6),
                        rivals={rival: seconds_of(row[condition]["gmm us"] / 1e6)},
                    )
                )  # fmt: skip


class _ExpertParallel(_Program):
    name, needs = "bench/expert_parallel.py", {"shape", "tokens", "exchange", "alone ms", "exchange ms"}

    def add(self, file, document, row):
        file.rows.append(
            Row(
                file=file.name, device=file.device, op="layer", case=f"{_PASSES[row['what']]}, one rank exchanging",
                shape=f"{row['shape']}, {row['exchange']}", dtype="bf16", condition="sustained",
                seconds=seconds_of(row["exchange ms"] / 1e3), layer_pass=row["what"],
                rivals={"the layer alone": seconds_of(row["alone ms"] / 1e3)}, **_layer_numbers(row["shape"], row),
            )
        )  # fmt: skip


class _Fp8Weights(_Program):
    name, needs = "bench/fp8_weights_cpu.py", {"rows", "k", "n", "experts", "bf16", "e4m3 block_128"}

    def add(self, file, document, row):
        mine = seconds_of(row["e4m3 block_128"]["median_ms"] / 1e3)
        threads = re.search(r"CADRE_NUM_THREADS=(\d+)", file.command)
        rows = f"{row['rows']} row{'s' if row['rows'] > 1 else ''}"
        file.rows.append(
            Row(
                file=file.name, device=file.device, op="gmm_nt", case="forward, e4m3 weights", shape=rows, dtype="e4m3",
                condition="in turn", seconds=mine, m=row["rows"] * row["experts"], k=row["k"], n=row["n"],
                groups=row["experts"], threads=threads and int(threads[1]),
                rivals={"bf16 weights": seconds_of(row["bf16"]["median_ms"] / 1e3)},
            )
        )  # fmt: skip


_PROGRAMS = (_GroupedGemm(), _Layer(), _LayerCpu(), _Fp8Gmm(), _ExpertParallel(), _Fp8Weights())
NAMES = tuple(program.name for program in _PROGRAMS)


def of(results):
    """The program that wrote these rows, or None."""
    for program in _PROGRAMS:
        if results and all(isinstance(row, dict) and program.needs <= row.keys() for row in results):
            return program
    return None
