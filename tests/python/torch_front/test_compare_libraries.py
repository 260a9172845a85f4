"""bench/compare_libraries.py: its arguments, its arithmetic, and a comparison of a library with itself."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[3] / "bench/compare_libraries.py"
_spec = importlib.util.spec_from_file_location("compare_libraries", SCRIPT)
compare_libraries = importlib.util.module_from_spec(_spec)
sys.modules["compare_libraries"] = compare_libraries
_spec.loader.exec_module(compare_libraries)


def rows_of(*times):
    return [
        {"row": f"row {i}", "before_s": before, "after_s": after}
        for i, (before, after) in enumerate(times)
    ]


def test_ratios_are_after_over_before():
    rows = rows_of((1.0, 1.02), (2.0, 1.0), (4.0, 4.0))
    summary = compare_libraries.summarise(rows, max_mean=1.01, max_row=1.04)
    assert [row["ratio"] for row in rows] == [1.02, 0.5, 1.0]
    assert summary["worst"] == {"row": "row 0", "ratio": 1.02}
    assert summary["geometric_mean"] == pytest.approx((1.02 * 0.5) ** (1 / 3))
    assert summary["holds"]


@pytest.mark.parametrize(
    "times, holds",
    [
        ([(1.0, 1.039), (1.0, 0.98)], True),
        ([(1.0, 1.041), (1.0, 0.9)], False),  # one row
        ([(1.0, 1.02), (1.0, 1.02)], False),  # the mean
    ],
)
def test_limits_apply_to_the_mean_and_to_each_row(times, holds):
    assert compare_libraries.summarise(rows_of(*times), 1.01, 1.04)["holds"] is holds


def test_rows_of_a_result_file_become_cases_once():
    cases = compare_libraries.bench_cases(
        compare_libraries.ROWS["cuda"], numpy.random.default_rng(1), "cuda"
    )
    names = [case.name for case in cases]
    assert len(names) == len(set(names)) > 100
    by_name = dict(zip(names, cases, strict=True))
    wgrad = by_name["tgmm qwen3-30b-w13 wgrad f32 accumulate bf16 skew 0"]
    assert (wgrad.op, wgrad.out_dtype, wgrad.beta, wgrad.listed) == ("tgmm", "f32", 1.0, "")
    assert (wgrad.m, wgrad.k, wgrad.n, len(wgrad.sizes)) == (65536, 2048, 1536, 128)
    listed = by_name["gmm_nt qwen3-30b-w13 list of weights on device bf16 skew 0"]
    assert listed.transposed and listed.listed == "device"
    with_c = by_name["gmm_nt qwen3-30b-w13 alpha, beta and C bf16 skew 0"]
    assert with_c.has_c and with_c.alpha != 1.0 and with_c.beta != 0.0


def test_random_cases_cover_what_the_kernels_tell_apart():
    random = numpy.random.default_rng(1)
    cases = [compare_libraries.random_case(i, random, "cuda") for i in range(400)]
    gmm = [case for case in cases if case.op == "gmm"]
    tgmm = [case for case in cases if case.op == "tgmm"]
    assert {case.transposed for case in gmm} == {False, True}
    assert {case.kernel for case in gmm} == {None, *range(compare_libraries.GMM_KERNELS)}
    for some in (gmm, tgmm):
        assert {case.dtype for case in some} == {"bf16", "f16"}
        assert {case.out_dtype for case in some} == {"", "f32"}
        assert {case.listed for case in some} == {"", "host", "device"}
        assert {case.beta for case in some} == {0.0, 0.5, 1.0}
        assert {0, 1} <= {size for case in some for size in case.sizes}
        assert any(case.has_c for case in some) and any(case.n % 8 for case in some)
    assert any(case.bias and case.scales for case in gmm)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["missing.so", "missing.so"], "missing.so is not a file"),
        ([str(SCRIPT), str(SCRIPT), "--rounds", "-1"], "at least 0"),
        ([str(SCRIPT), str(SCRIPT), "--device", "tpu"], "invalid choice"),
        ([str(SCRIPT)], "after"),
    ],
)
def test_bad_arguments_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare_libraries.parse_arguments(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_help_says_what_is_compared():
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True
    )
    assert "equal bits on random cases" in shown.stdout


def test_a_library_equals_itself(tmp_path):
    library, output = os.environ.get("CADRE_LIBRARY"), tmp_path / "out.json"
    if library is None:
        from cadre import _library

        library = str(_library.path)
    arguments = [
        library,
        library,
        "--device",
        "cpu",
        "--cases",
        "60",
        "--rounds",
        "2",
        "--sample-ms",
        "0.1",
    ]
    arguments += ["--only", "gmm 16 rows f32 2 threads", "--max-row", "100", "--max-mean", "100"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--json", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert (report["cases"], report["different"]) == (60, 0)
    assert report["refused"] < 30
    assert report["summary"]["rows"] == len(report["times"]) >= 1


class FixedLibrary:
    """Writes one value into every result, or refuses."""

    def __init__(self, value, code=0):
        self.value, self.code = value, code

    def prepare(self, operands, out):
        def run():
            out.fill_(self.value)
            return self.code

        return run

    def message(self):
        return "no"


@pytest.mark.parametrize(
    "before, after, different, refused",
    [
        (FixedLibrary(1.0), FixedLibrary(1.0), 0, 0),
        (FixedLibrary(0.0), FixedLibrary(-0.0), 1, 0),  # bits, not values
        (FixedLibrary(1.0), FixedLibrary(1.0, code=2), 1, 0),
        (FixedLibrary(1.0, code=2), FixedLibrary(1.0, code=2), 0, 1),
    ],
)
def test_other_bits_and_other_refusals_are_differences(before, after, different, refused):
    case = compare_libraries.Case(name="one", op="gmm", dtype="bf16", k=8, n=8, sizes=(3, 0, 1))
    found = compare_libraries.compare_bits(torch, [before, after], [case], "cpu")
    assert (len(found[0]), found[1]) == (different, refused)
