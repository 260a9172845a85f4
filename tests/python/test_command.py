"""`python -m cadre`: exit codes, help, and that verify finds a wrong result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import cadre
import pytest
from cadre.__main__ import main
from cadre._command import verify

PROBLEM = ["explain", "--m", "300", "--k", "64", "--n", "96", "--groups", "8"]


def run(capsys, *arguments):
    """(exit code, stdout, stderr); argparse leaves by SystemExit."""
    try:
        code = main(list(arguments))
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_help_lists_the_commands_and_exit_codes(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "exit codes: 0 ok" in out
    for command in ("info", "verify", "explain"):
        assert command in out
        code, text, _ = run(capsys, command, "--help")
        assert code == 0 and f"example: cadre {command}" in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["info", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["verify", "--cases", "0"], "whole number from 1 on"),
        (["verify", "--seed", "-5"], "argument --seed: invalid whole number from 0 on value: '-5'"),
        (["verify", "--op", "gnn"], "invalid choice: 'gnn'"),
        (["explain", "--k", "4", "--n", "4", "--groups", "1"], "required: --m"),
        (["explain", "--m", "4", "--n", "4", "--groups", "1"], "--k is missing"),
        ([*PROBLEM, "--m", "-1"], "whole number from 0"),
        ([*PROBLEM, "--m", "many"], "whole number from 0"),
        ([*PROBLEM, "--dtype", "q4"], "--dtype = q4, expected one of f64, f32"),
        ([*PROBLEM, "--dtype", "i32"], "--dtype = i32, expected f64, f32, bf16, f16, i8, e4m3 or e5m2"),
        ([*PROBLEM, "--device", "tpu"], "--device = tpu, expected cpu, cuda"),
        ([*PROBLEM, "--backend", "quantum"], "expected one of"),
        ([*PROBLEM, "--op", "bias_grad"], "--k is given"),
        ([*PROBLEM, "--op", "tgmm", "--bias"], "--op tgmm has no such option"),
        ([*PROBLEM, "--groups", "2000000"], "--groups = 2000000, expected at most"),
    ],
)
def test_bad_usage_is_two_and_says_what_is_wrong(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and message in err


def test_info_names_version_library_and_backends(capsys):
    code, out, _ = run(capsys, "info", "--json")
    found = json.loads(out)
    assert code == 0 and found["version"] == cadre.__version__
    assert tuple(found["backends"]) == cadre.backends()
    assert found["cpu_kernel"].startswith("cpu/")
    code, out, _ = run(capsys, "info")
    assert code == 0 and out.startswith(f"cadre {cadre.__version__}, ")
    cadre.show_versions()
    assert capsys.readouterr().out == out
    for line in ("Python ", "System ", "CPU ", "GPU ", "Backends, ", "Environment"):
        assert f"\n{line}" in out


def test_info_shows_what_nvidia_smi_says(capsys, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771 MiB, 580.65.06'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _, out, _ = run(capsys, "info")
    assert "\nGPU NVIDIA H200, compute capability 9.0, 143771 MiB, driver 580.65.06\n" in out
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    _, out, _ = run(capsys, "info")
    assert "\nGPU none" in out


@pytest.mark.parametrize("op", verify.OPS)
def test_explain_names_the_kernel_of_every_op(capsys, op):
    arguments = [*PROBLEM[:3], "--n", "96", "--groups", "8", "--dtype", "f32", "--op", op]
    arguments += [] if op == "bias_grad" else ["--k", "64"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0 and f"Problem   {op} m=" in out and "Chosen    cpu/" in out


def test_explain_pins_a_kernel_and_says_when_none_takes_it(capsys):
    code, out, _ = run(capsys, *PROBLEM, "--kernel", "reference")
    assert code == 0 and "Chosen    reference" in out
    code, out, _ = run(capsys, *PROBLEM, "--device", "cuda", "--backend", "reference")
    assert code == 4 and "Chosen    none: every kernel refuses" in out


@pytest.mark.parametrize("op", verify.OPS)
def test_verify_passes(capsys, op):
    code, out, _ = run(capsys, "verify", "--cases", "60", "--op", op)
    assert (code, out) == (0, "pass 60 cases from seed 1, 0 failed\n")


@pytest.mark.parametrize("op", verify.OPS)
def test_verify_finds_a_result_that_is_a_little_wrong(capsys, monkeypatch, op):
    right = getattr(cadre, op)

    def wrong(*arguments, **options):
        result = right(*arguments, **options)
        for array in result if isinstance(result, list) else [result]:
            array[..., -1:] *= 1.05
        return result

    monkeypatch.setattr(cadre, op, wrong)
    code, out, _ = run(capsys, "verify", "--cases", "20", "--op", op, "--seed", "3")
    assert code == 1 and f"FAIL {op} " in out and "cadre verify --cases 1 --seed " in out
    assert out.splitlines()[-1].startswith("FAIL 20 cases from seed 3, ")


def test_it_runs_as_a_module_without_a_framework():
    code = "import sys; sys.argv = ['cadre', 'info']; import cadre.__main__ as m; m.main(); print({'torch', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    done = subprocess.run([sys.executable, "-m", "cadre"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage: cadre" in done.stderr


@pytest.mark.parametrize("script", [False, True])
def test_a_missing_library_is_one_line_and_four(tmp_path, script):
    command = [sys.executable, "-m", "cadre"]
    if script:  # as pip writes it
        (tmp_path / "cadre").write_text("from cadre.__main__ import main\nraise SystemExit(main())\n")
        command = [sys.executable, str(tmp_path / "cadre")]
    package = Path(cadre.__file__).parents[1]
    environment = {**os.environ, "CADRE_LIBRARY": "/nonexistent.so", "PYTHONPATH": str(package)}
    done = subprocess.run(
        [*command, "info"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.startswith("cadre: CADRE_LIBRARY = '/nonexistent.so' is not a file")
    assert len(done.stderr.splitlines()) == 1
