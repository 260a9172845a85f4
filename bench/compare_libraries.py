#!/usr/bin/env python3
"""Compares two builds of libcadre.so in one process: equal bits on random cases, then times row by row, in turn.

usage: python bench/compare_libraries.py BEFORE.so AFTER.so [--device cpu] [--json FILE]

Rows come from a result file of `cadre bench` (--rows; by default the committed one of an H200, with --device cpu that of a
Zen 4). Each sample is a loop of calls of one library, at least --sample-ms long; the libraries take turns and change
places every round, so neither profits from a card that gets slower as it gets hot. A row's ratio is the median time of
AFTER over that of BEFORE: above 1 AFTER is slower. Exits with 1 if bits differ, the geometric mean is above --max-mean or
a row above --max-row, and with 2 on bad arguments. Where the two builds have different C structs, name each one's
bindings/python/cadre/_structs.py.
"""

import argparse
import ctypes
import dataclasses
import importlib.util
import json
import math
import statistics
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRUCTS = ROOT / "bindings/python/cadre/_structs.py"
ROWS = {"cuda": ROOT / "bench/results/h200/cuda.json", "cpu": ROOT / "bench/results/zen4/cpu.json"}
#: Kernels pinned in random cases on a GPU, so that every shape is compared; a refusal must be the same from both.
GMM_KERNELS = 5


@dataclasses.dataclass(frozen=True)
class Case:
    """One call. gmm: lhs [m, k] x rhs [g, k, n], or [g, n, k] with `transposed`; tgmm: [k, n] for each group."""

    name: str
    op: str  # "gmm" or "tgmm"
    dtype: str  # of lhs and rhs
    k: int
    n: int
    sizes: tuple
    tail_rows: int = 0
    transposed: bool = False
    out_dtype: str = ""  # that of lhs and rhs
    bias: bool = False
    scales: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    has_c: bool = False
    listed: str = ""  # "", "host" or "device": rhs (gmm) or out (tgmm) as a list of pointers
    kernel: int | str | None = None  # pinned: a name, or which of the library's Hopper kernels of gmm
    threads: int = 0
    pad: int = 0  # columns between the rows of out

    @property
    def m(self):
        return sum(self.sizes) + self.tail_rows


def geometric_mean(ratios):
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def summarise(rows, max_mean, max_row):
    """The figures of a comparison from rows of {"row", "before_s", "after_s"}; adds each row's ratio."""
    for row in rows:
        row["ratio"] = row["after_s"] / row["before_s"]
    worst = max(rows, key=lambda row: row["ratio"])
    mean = geometric_mean([row["ratio"] for row in rows])
    return {
        "rows": len(rows),
        "geometric_mean": mean,
        "worst": {"row": worst["row"], "ratio": worst["ratio"]},
        "holds": mean <= max_mean and worst["ratio"] <= max_row,
    }


def router_sizes(num_groups, m, skew, random):
    """As a router deals rows: each to a group with probability 1 / rank^skew."""
    share = (1.0 / (1 + random.permutation(num_groups))) ** skew
    return tuple(int(rows) for rows in random.multinomial(m, share / share.sum()))


def bench_cases(path, random, device):
    """The products of a result file, each once."""
    cases = {}
    for row in json.loads(Path(path).read_text())["results"]:
        name = row.get("case", "")
        if "m" not in row or "num_groups" not in row or name.startswith(("portable", "host")):
            continue
        if row["op"] not in ("gmm", "gmm_nt", "tgmm"):
            continue
        threads = row.get("threads", 0)
        label = " ".join(
            str(part)
            for part in (row["op"], row.get("shape", row.get("label", "")), name, row["dtype"])
            if part
        )
        label += f" skew {row['skew']:g}" if "skew" in row else ""
        label += f" {threads} threads" if threads else ""
        if label in cases:
            continue
        accumulates = "accumulate" in name
        cases[label] = Case(
            name=label,
            op="tgmm" if row["op"] == "tgmm" else "gmm",
            dtype=row["dtype"],
            out_dtype="f32" if "f32" in name else row.get("out_dtype", ""),
            k=row["k"],
            n=row["n"],
            sizes=router_sizes(row["num_groups"], row["m"], row.get("skew", 0.0), random),
            transposed=row["op"] == "gmm_nt",
            bias="bias" in name,
            scales="scales" in name,
            alpha=0.5 if "alpha" in name else 1.0,
            beta=0.5 if "beta" in name else 1.0 if accumulates else 0.0,
            has_c=" C" in name,
            listed="" if "list" not in name else "device" if "on device" in name else "host",
            threads=threads if device == "cpu" else 0,
        )
    return list(cases.values())


def random_case(index, random, device):
    def pick(*choices):
        return choices[random.integers(len(choices))]

    def flip(share=0.5):
        return bool(random.random() < share)

    op = pick("gmm", "gmm", "gmm", "tgmm")
    dtype = pick("bf16", "f16") if device == "cuda" else pick("bf16", "f16", "f32")
    groups = int(pick(1, 3, 8, 40))
    most = pick(3, 70, 600)
    sizes = [
        int(pick(0, 1, random.integers(1, most), random.integers(1, most))) for _ in range(groups)
    ]
    # Row strides that TMA takes, most of the time; n may end inside 16 bytes of a padded row.
    k, n = (int(random.integers(1, 60)) * 8 for _ in range(2))
    if flip(0.3):
        k = int(pick(16, 64, 512, 776))
    uneven = flip(0.2)
    n += int(random.integers(1, 8)) if uneven else 0
    accumulates = flip(0.4)
    return Case(
        name=f"random {index}",
        op=op,
        dtype=dtype,
        out_dtype=pick("", "f32"),
        k=k,
        n=n,
        sizes=tuple(sizes),
        tail_rows=int(pick(0, 0, 5, 200)),
        transposed=op == "gmm" and (uneven or flip()),
        bias=op == "gmm" and flip(0.4),
        scales=op == "gmm" and flip(0.3),
        alpha=float(pick(1.0, 1.0, -0.75)),
        beta=float(pick(1.0, 0.5)) if accumulates else 0.0,
        has_c=accumulates and flip(),
        listed=pick("", "", "host", "device") if device == "cuda" else pick("", "host"),
        kernel=pick(None, *range(GMM_KERNELS)) if op == "gmm" and device == "cuda" else None,
        pad=-n % 8 if uneven else 0,
    )


class Operands:
    """A case's tensors; out is made anew for each library and call."""

    def __init__(self, torch, case, device, seed):
        self.torch, self.case, self.device = torch, case, device
        self.dtypes = {
            "bf16": torch.bfloat16,
            "f16": torch.float16,
            "f32": torch.float32,
            "i8": torch.int8,
            "i32": torch.int32,
        }
        generator = torch.Generator(device=device).manual_seed(seed)

        def random(*shape, dtype=case.dtype):
            if dtype in ("i8", "i32"):
                return torch.randint(
                    -8, 8, shape, dtype=self.dtypes[dtype], device=device, generator=generator
                )
            values = torch.empty(shape, dtype=torch.float32, device=device).normal_(
                generator=generator
            )
            return values.to(self.dtypes[dtype])

        groups = len(case.sizes)
        self.lhs = random(case.m, case.k)
        if case.op == "tgmm":
            self.rhs = random(case.m, case.n)
        else:
            self.rhs = random(groups, *((case.n, case.k) if case.transposed else (case.k, case.n)))
        self.sizes = torch.tensor(case.sizes, dtype=torch.int32, device=device)
        self.bias = random(groups, case.n, dtype="f32") if case.bias else None
        self.row_scale = random(case.m, dtype="f32") if case.scales else None
        self.bias_scale = random(case.m, dtype="f32") if case.scales and case.bias else None
        self.first = random(
            *self.out_shape(), dtype=self.out_dtype()
        )  # what out, or C, holds before

    def out_dtype(self):
        return self.case.out_dtype or ("i32" if self.case.dtype == "i8" else self.case.dtype)

    def out_shape(self):
        case = self.case
        rows = (case.m,) if case.op == "gmm" else (len(case.sizes), case.k)
        return (*rows, case.n + case.pad)

    def new_out(self):
        """What a beta adds to, or poison that every result must replace."""
        if self.case.beta != 0.0 and not self.case.has_c:
            return self.first.clone()
        out = self.torch.empty_like(self.first)
        out.view(self.torch.uint8).fill_(0x7F)
        return out


class Library:
    """One build, through its C ABI."""

    def __init__(self, path, structs_path, torch, device):
        spec = importlib.util.spec_from_file_location(f"structs_{id(self)}", structs_path)
        self.structs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.structs)
        self.torch, self.device = torch, device
        self.library = ctypes.CDLL(str(path))
        s = self.structs
        for name, result, *arguments in (
            ("cadre_status_message", c_char_p),
            ("cadre_version", c_char_p),
            ("cadre_context_create", c_int32, POINTER(s.ContextOptions), POINTER(c_void_p)),
            ("cadre_grouped_from_tensor", s.GroupedTensor, POINTER(s.Tensor)),
            ("cadre_grouped_vectors", s.GroupedTensor, POINTER(s.Tensor)),
            (
                "cadre_grouped_list",
                s.GroupedTensor,
                POINTER(c_void_p),
                c_int64,
                POINTER(s.Tensor),
                s.Device,
            ),
            ("cadre_gmm", c_int32, c_void_p, POINTER(s.GmmArgs)),
            ("cadre_tgmm", c_int32, c_void_p, POINTER(s.TgmmArgs)),
        ):
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
        self.contexts = {}
        self.kernel_names = None

    def version(self):
        return self.library.cadre_version().decode()

    def message(self):
        return self.library.cadre_status_message().decode()

    def gmm_kernels(self):
        """Names of the Hopper kernels of gmm, which differ between builds: an unknown one is answered with all."""
        if self.kernel_names is None:
            case = Case("unknown kernel", "gmm", "f32", 8, 8, (1,), kernel="?")
            operands = Operands(self.torch, case, self.device, 0)
            self.prepare(operands, operands.new_out())()
            names = self.message().split("expected one of ")[1].split(", ")
            self.kernel_names = [name for name in names if name.startswith("sm90/gmm_")]
        return self.kernel_names

    def context(self, threads):
        if threads not in self.contexts:
            options = self.new(self.structs.ContextOptions)
            options.num_threads = threads
            handle = c_void_p()
            if self.library.cadre_context_create(byref(options), byref(handle)) != 0:
                raise RuntimeError(f"cadre_context_create: {self.message()}")
            self.contexts[threads] = handle
        return self.contexts[threads]

    def new(self, struct):
        result = struct()
        init = getattr(self.library, self.structs.C_NAMES[struct][1])
        init.restype, init.argtypes = None, [POINTER(struct), c_size_t]
        init(byref(result), ctypes.sizeof(struct))
        return result

    def place(self, tensor=None):
        cuda = self.device == "cuda" if tensor is None else tensor.is_cuda
        return self.structs.Device(self.structs.CUDA if cuda else self.structs.CPU, 0)

    def dtype(self, tensor):
        name = {
            "bfloat16": "BF16", "float16": "F16", "float32": "F32", "int8": "I8", "int32": "I32",
        }[str(tensor.dtype).removeprefix("torch.")]  # fmt: skip
        return getattr(self.structs, name)

    def tensor(self, tensor):
        view = self.structs.Tensor(
            data=tensor.data_ptr(), dtype=self.dtype(tensor), device=self.place(), rank=tensor.dim()
        )
        for i in range(tensor.dim()):
            view.shape[i], view.strides[i] = tensor.shape[i], tensor.stride(i)
        return view

    def grouped(self, tensor, listed, keep):
        """Rows (rank 2), a stacked tensor (rank 3), or a list of its matrices."""
        if not listed:
            return self.library.cadre_grouped_from_tensor(byref(self.tensor(tensor)))
        matrices = list(tensor)
        addresses = [matrix.data_ptr() for matrix in matrices]
        if listed == "device":
            table = self.torch.tensor(addresses, dtype=self.torch.int64, device=self.device)
            pointers = ctypes.cast(table.data_ptr(), POINTER(c_void_p))
            place = self.place()
        else:
            table = (c_void_p * len(addresses))(*addresses)
            pointers = ctypes.cast(table, POINTER(c_void_p))
            place = self.structs.Device(self.structs.CPU, 0)
        keep += [matrices, table]
        return self.library.cadre_grouped_list(
            pointers, len(addresses), byref(self.tensor(matrices[0])), place
        )

    def prepare(self, operands, out):
        """A function that runs the case into `out` and returns its status."""
        case, s, keep = operands.case, self.structs, []

        def kept(value):
            keep.append(value)
            return ctypes.pointer(value)

        is_gmm = case.op == "gmm"
        args = self.new(s.GmmArgs if is_gmm else s.TgmmArgs)
        valid = out[..., : case.n]
        listed_out = case.listed if not is_gmm else ""
        args.lhs = kept(self.tensor(operands.lhs))
        args.rhs = kept(
            self.grouped(operands.rhs, case.listed, keep) if is_gmm else self.tensor(operands.rhs)
        )
        args.out = kept(self.grouped(valid, listed_out, keep))
        args.group_sizes = s.Sizes(
            data=operands.sizes.data_ptr(), dtype=s.I32, device=self.place(), count=len(case.sizes)
        )
        args.alpha, args.beta = case.alpha, case.beta
        if case.has_c:
            args.c = kept(self.grouped(operands.first[..., : case.n], listed_out, keep))
        if is_gmm:
            args.transpose_rhs = case.transposed
            if operands.bias is not None:
                args.bias = kept(
                    self.library.cadre_grouped_vectors(byref(self.tensor(operands.bias)))
                )
            if operands.row_scale is not None:
                args.row_scale = kept(self.tensor(operands.row_scale))
            if operands.bias_scale is not None:
                args.bias_scale = kept(self.tensor(operands.bias_scale))
        options = self.new(s.CallOptions)
        if self.device == "cuda":
            options.stream = self.torch.cuda.current_stream().cuda_stream
        name = self.gmm_kernels()[case.kernel] if isinstance(case.kernel, int) else case.kernel
        options.config = None if name is None else name.encode()
        args.options = kept(options)
        function = self.library.cadre_gmm if is_gmm else self.library.cadre_tgmm
        context, pointer = self.context(case.threads), byref(args)
        keep.append(args)

        def run(keep=keep):
            return function(context, pointer)

        return run


def compare_bits(torch, libraries, cases, device):
    """Names of the cases whose results differ, and how many neither library takes."""
    different, refused = [], 0
    for seed, case in enumerate(cases):
        operands = Operands(torch, case, device, seed)
        results = []
        for library in libraries:
            out = operands.new_out()
            code = library.prepare(operands, out)()
            if device == "cuda":
                torch.cuda.synchronize()
            results.append((code, out, library.message() if code else ""))
        (code, out, said), (other_code, other_out, other_said) = results
        if code != other_code:
            different.append(f"{case}: status {code} {said!r}, then {other_code} {other_said!r}")
        elif code != 0:
            refused += 1
        elif not torch.equal(out.view(torch.uint8), other_out.view(torch.uint8)):
            different.append(f"{case}: other bits")
    return different, refused


class Clock:
    """Times a loop of calls, in seconds for each."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device

    def loop(self, run, calls):
        if self.device == "cpu":
            start = time.perf_counter()
            for _ in range(calls):
                run()
            return (time.perf_counter() - start) / calls
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1000 / calls


def time_case(torch, libraries, case, device, rounds, sample_s):
    """Median seconds of a call of each library; None if one of them refuses the case."""
    operands = Operands(torch, case, device, seed=1)
    out = operands.new_out()
    runs = [library.prepare(operands, out) for library in libraries]
    clock = Clock(torch, device)
    for run in runs:
        if run() != 0:
            return None
    calls = max(1, math.ceil(sample_s / max(clock.loop(runs[0], 2), 1e-7)))
    for run in runs:
        clock.loop(run, calls)  # a warm card for both
    samples = [[], []]
    for round_number in range(rounds):
        for which in (0, 1) if round_number % 2 == 0 else (1, 0):
            samples[which].append(clock.loop(runs[which], calls))
    return [statistics.median(each) for each in samples]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--before-structs", type=Path, default=STRUCTS, metavar="FILE")
    parser.add_argument("--after-structs", type=Path, default=STRUCTS, metavar="FILE")
    parser.add_argument(
        "--cases", type=int, default=400, help="random cases whose bits are compared"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="a result file of cadre bench")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="time only rows whose name contains it"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="samples of each library and row; 0: no times"
    )
    parser.add_argument("--sample-ms", type=float, default=5.0, help="least length of a sample")
    parser.add_argument("--max-mean", type=float, default=1.01)
    parser.add_argument("--max-row", type=float, default=1.04)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    options.rows = options.rows or ROWS[options.device]
    for path in (
        options.before,
        options.after,
        options.before_structs,
        options.after_structs,
        options.rows,
    ):
        if not path.is_file():
            parser.error(f"{path} is not a file")
    if options.cases < 0 or options.rounds < 0 or options.sample_ms <= 0:
        parser.error("--cases and --rounds must be at least 0, --sample-ms above 0")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    import numpy
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "compare_libraries: no GPU here; --device cpu compares CPU libraries", file=sys.stderr
        )
        return 2
    libraries = [
        Library(options.before.resolve(), options.before_structs, torch, options.device),
        Library(options.after.resolve(), options.after_structs, torch, options.device),
    ]
    random = numpy.random.default_rng(options.seed)
    cases = [random_case(index, random, options.device) for index in range(options.cases)]
    different, refused = compare_bits(torch, libraries, cases, options.device)
    print(f"bits: {len(cases)} cases, {len(different)} differ, {refused} refused by both")
    for line in different[:20]:
        print(f"  {line}")
    report = {
        "before": libraries[0].version(),
        "after": libraries[1].version(),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "cases": len(cases),
        "different": len(different),
        "refused": refused,
    }
    holds = not different
    rows = []
    for case in bench_cases(options.rows, random, options.device) if options.rounds else []:
        if options.only not in case.name:
            continue
        times = time_case(
            torch, libraries, case, options.device, options.rounds, options.sample_ms / 1000
        )
        if times is None:
            print(f"{case.name}: refused")
            continue
        rows.append({"row": case.name, "before_s": times[0], "after_s": times[1]})
        print(
            f"{case.name}: {times[0] * 1e6:.1f} us, {times[1] * 1e6:.1f} us, {times[1] / times[0]:.3f}",
            flush=True,
        )
    if rows:
        summary = summarise(rows, options.max_mean, options.max_row)
        holds = holds and summary["holds"]
        worst = summary["worst"]
        print(
            f"{summary['rows']} rows: geometric mean {summary['geometric_mean']:.4f}, "
            f"worst {worst['ratio']:.3f} ({worst['row']})"
        )
        report |= {"summary": summary, "times": rows}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
