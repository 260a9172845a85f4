"""`cadre compare`: known layers, what it prints, that it checks before it times, and what a bad word gives."""

import importlib.util
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import cadre
import numpy
import pytest
from cadre.__main__ import main
from cadre._command import compare, picture
from cadre._command.progress import Progress
from cadre._compare import case as cases
from cadre._compare import clock, models, onednn
from cadre._compare.contender import Contender

if importlib.util.find_spec("jax"):
    import jax  # noqa: F401  (sets variables that no test may set)

SMALL = ["compare", "6,2,48,40", "--tokens", "24", "--seconds", "1", "--device", "cpu"]
INSTALLED = [
    name for name in ("torch", "jax", "numpy") if importlib.util.find_spec(name) is not None
]


def run(capsys, *arguments):
    try:
        code = main(list(arguments))
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("front", INSTALLED)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_front_gives_right_results_and_times(capsys, front, dtype):
    code, out, _ = run(capsys, *SMALL, "--front", front, "--dtype", dtype, "--json")
    document = json.loads(out)
    (row,) = document["results"]
    assert code == 0 and document["schema"] == 2 and document["checks_passed"]
    assert row["front"] == front and row["dtype"] == dtype and 0 < row["median_s"] < 10
    assert 0 < row["error"] <= cases.TOLERANCE[dtype]
    if (front, dtype) != ("numpy", "bf16"):
        assert row["rivals"] and all(rival["median_s"] > 0 for rival in row["rivals"].values())


@pytest.mark.parametrize("front", INSTALLED)
def test_a_layer_with_biases_and_the_clamped_activation_is_right(capsys, monkeypatch, front):
    layer = models.Layer("tiny-oss", 5, 2, 40, 24, clamped=True)
    monkeypatch.setitem(models.LAYERS, "tiny-oss", layer)
    options = ["--tokens", "33", "--seconds", "1", "--device", "cpu", "--dtype", "f32"]
    code, out, _ = run(capsys, "compare", "tiny-oss", *options, "--front", front, "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0 and row["error"] < 1e-5 and row["rivals"]
    assert set(row["left_out"]) <= {onednn.RIVAL}, "the one that may be missing on a machine"


def test_the_answer_is_a_sentence_and_a_table(capsys):
    code, out, err = run(capsys, *SMALL, "--front", "numpy")
    assert code == 0 and out.startswith("On this machine a layer of 6 experts (6,2,48,40) and 24 tokens (f32, NumPy) takes ")
    assert " with cadre, " in out.splitlines()[0] and " with a loop of numpy's @" in out.splitlines()[0]
    assert "over cadre" in out and "█" in out
    assert err == "6,2,48,40, 24 tokens, NumPy ...\n"  # plain lines where there is no terminal


def test_the_sentence_says_who_is_faster():
    row = {"shape": "qwen3-30b", "tokens": 512, "dtype": "bf16", "median_s": 0.0031, "rivals": {"torch": {"median_s": 0.0056}}}
    start = "On this machine a qwen3-30b layer of 512 tokens (bf16, PyTorch) takes 3.1 ms with cadre, "
    assert compare.sentence(row, "PyTorch") == start + "5.6 ms with torch: 1.81 times as long."
    row["rivals"]["torch"]["median_s"] = 0.00155
    assert compare.sentence(row, "PyTorch") == start + "1.55 ms with torch: cadre takes 2 times as long."
    row["rivals"]["torch"]["median_s"] = 0.00312
    assert compare.sentence(row, "PyTorch").endswith(": no difference.")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["mixtral"], "MODEL = mixtral, expected one of mixtral-8x7b, qwen3-30b"),
        (["8,2,64"], "EXPERTS,TOP_K,HIDDEN,INTERMEDIATE"),
        (["8,0,64,64"], "EXPERTS,TOP_K,HIDDEN,INTERMEDIATE"),
        (["4,8,64,64"], "expected TOP_K at most EXPERTS = 4"),
        (["--dtype", "q4"], "--dtype = q4, expected one of bf16, f16, f32"),
        (["--device", "tpu"], "--device = tpu, expected one of cpu, cuda"),
        (["--front", "mxnet"], "--front = mxnet, expected one of torch, jax, numpy"),
        (["--tokens", "0"], "whole number from 1 on"),
        (["--seconds", "nan"], "number from 1 on"),
    ],
)
def test_bad_words_are_two_and_list_what_is_known(capsys, arguments, message):
    code, out, err = run(capsys, "compare", *arguments)
    assert (code, out) == (2, "") and message in err


def test_a_wrong_result_of_cadre_is_one_and_no_time(capsys, monkeypatch):
    right = cadre.gmm

    def wrong(*arguments, **options):
        out = right(*arguments, **options)
        out[:, -1] *= 1.5
        return out

    monkeypatch.setattr(cadre, "gmm", wrong)
    code, out, err = run(capsys, *SMALL, "--front", "numpy")
    assert (code, out) == (1, "") and "cadre: its result is off by " in err


def _contender(name, result, **options):
    return Contender(name, lambda: result, lambda: None, numpy.asarray, **options)


def test_a_wrong_or_failing_rival_is_left_out_with_its_reason():
    case = cases.Case(models.named("4,2,16,8"), cases.Cut(4, 10), "f32")
    right = numpy.zeros((10, 16))
    right[case.checked_tokens()] = case.expected()

    def fails():
        raise RuntimeError("no such kernel")

    left_out = {}
    timings = clock.first_calls(
        [
            _contender("cadre", right),
            _contender("poisoned", numpy.where(right == right[3], right, numpy.nan)),
            _contender("off", right * 1.01),
            Contender("fails", fails, lambda: None, numpy.asarray),
            _contender("slow", right, probe=lambda: 99.0),
        ],
        case,
        left_out,
        limit_s=5.0,
        step=lambda text: None,
    )
    assert [timing.contender.name for timing in timings] == ["cadre", "slow"]
    assert timings[1].estimated and timings[1].median_s == 99.0
    assert "off by inf" in left_out["poisoned"] and "off by 0.01" in left_out["off"]
    assert left_out["fails"] == "RuntimeError: no such kernel"


def test_a_layer_that_is_too_large_is_cut_with_its_rows_per_expert():
    layer = models.LAYERS["kimi-k2"]
    whole = cases.cut_to(layer, 512, 2, 1e12, 1)
    assert (whole.experts, whole.tokens, whole.reason) == (384, 512, "")
    cut = cases.cut_to(layer, 512, 2, 3e9, 1)
    assert layer.weight_elements(cut.experts) * 2 <= 3e9 < layer.weight_elements(2 * cut.experts) * 2
    assert cut.tokens * layer.experts == 512 * cut.experts
    assert cut.reason.startswith(f"{cut.experts} of 384 experts and {cut.tokens} of 512 tokens: ")
    with pytest.raises(MemoryError, match="8 experts need"):
        cases.cut_to(layer, 512, 2, 1e6, 1)


def test_experts_have_different_weights():
    case = cases.Case(models.named("3,2,16,8"), cases.Cut(3, 4), "f32")
    assert not numpy.array_equal(case.w13[0], case.w13[1]) and not numpy.array_equal(case.w2[1], case.w2[2])
    assert numpy.array_equal(numpy.sort(case.w13[0], None), numpy.sort(case.w13[2], None))


def test_layers_are_those_of_the_benchmarks():
    source = Path(__file__).parents[2] / "bench" / "layer.py"
    specification = importlib.util.spec_from_file_location("bench_layer", source)
    bench = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(bench)
    for name, (experts, top_k, hidden, intermediate, clamped) in bench.SHAPES.items():
        assert models.LAYERS[name] == models.Layer(name, experts, top_k, hidden, intermediate, clamped)


class Terminal:
    """A stream that says it is a terminal and keeps what is written."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_a_terminal_gets_a_bar_with_the_time_left():
    pytest.importorskip("rich", reason="rich is not installed; to run this: pip install rich")
    terminal = Terminal()
    with Progress(20.0, terminal) as progress:
        progress.phase("PyTorch")
        progress.step("check cadre")
    assert "PyTorch: check cadre" in terminal.text and re.search(r"0:(20|19) left", terminal.text)


def test_it_works_with_numpy_alone():
    """As in an environment where neither a framework nor rich is installed."""
    code = (
        "import sys\n"
        "import importlib.util\n"
        "for name in ('torch', 'jax', 'rich'): sys.modules[name] = None\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name in ('torch', 'jax') else real(name, *a)\n"
        f"from cadre.__main__ import main; sys.exit(main({SMALL!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(f32, NumPy) takes " in done.stdout
    assert "Not measured, torch: PyTorch is not installed." in done.stdout


@pytest.mark.parametrize("front", ["numpy", "torch"])
def test_a_trace_shows_every_turn_and_the_ops_of_one_call(capsys, tmp_path, front):
    if importlib.util.find_spec(front) is None:
        pytest.skip(f"{front} is not installed")
    path = tmp_path / "trace.json"
    code, out, _ = run(capsys, *SMALL, "--front", front, "--trace", str(path), "--json")
    row, trace = json.loads(out)["results"][0], json.loads(path.read_text())
    assert code == 0 and trace["otherData"]["cadre"] == cadre.__version__
    turns = [each for each in trace["traceEvents"] if each.get("cat") == "turn"]
    for name, seconds in {"cadre": row["median_s"], **{n: r["median_s"] for n, r in row["rivals"].items()}}.items():
        mine = [each for each in turns if each["name"].startswith(f"{name} x ")]
        assert len(mine) == row["rounds"]
        assert statistics.median(each["args"]["seconds_each"] for each in mine) == pytest.approx(seconds)
    ends = [(each["ts"], each["ts"] + each["dur"]) for each in sorted(turns, key=lambda each: each["ts"])]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends)), "one contender runs at a time"
    ops = [each for each in trace["traceEvents"] if str(each.get("name")).startswith("cadre::moe_mlp")]
    assert bool(ops) == (front == "torch")
    if ops:
        assert ops[0]["args"]["Input Dims"][0] == [row["tokens"], row["hidden"]] and ops[0]["ts"] > ends[0][0]


def test_onednn_is_a_rival_where_it_is_installed(capsys):
    if onednn.open_product()[0] is None:
        pytest.skip(onednn.open_product()[1])
    code, out, _ = run(capsys, *SMALL, "--front", "numpy", "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0 and row["rivals"][onednn.RIVAL]["median_s"] > 0 and not row["left_out"]
    a, b = numpy.float32(numpy.arange(6).reshape(2, 3)), numpy.float32(numpy.arange(12).reshape(4, 3))
    result = numpy.full((2, 4), numpy.nan, numpy.float32)
    onednn.open_product()[0](a, b, result)
    assert (result == a @ b.T).all()


@pytest.mark.parametrize(
    "found, reason",
    [(None, "libdnnl is not installed"), ("/nonexistent/libdnnl.so", "/nonexistent/libdnnl.so"), ("libm.so.6", "dnnl_sgemm")],
)
def test_a_missing_or_foreign_onednn_is_left_out_with_its_reason(capsys, monkeypatch, found, reason):
    monkeypatch.setattr(onednn, "_library", lambda: found)
    code, out, _ = run(capsys, *SMALL, "--front", "numpy", "--json")
    (row,) = json.loads(out)["results"]
    assert code == 0 and reason in row["left_out"][onednn.RIVAL] and onednn.RIVAL not in row["rivals"]


FAKE_JAX = """
import os

def default_backend():
    print(os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "unset"))
    return "cpu"
"""
LOOK_FOR_A_GPU = """
import argparse
from cadre._command import compare
print(compare._device(argparse.Namespace(device=None), ["cuda", "cpu"])[0])
"""


@pytest.mark.parametrize("users_own, seen", [({}, "false"), ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, "true")])
def test_looking_for_a_gpu_leaves_its_memory_to_pytorch(tmp_path, users_own, seen):
    """JAX's backend, once started, takes 75 % of it: so it is told not to before it starts, unless the user wants that."""
    (tmp_path / "jax.py").write_text(FAKE_JAX)
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    kept = {name: value for name, value in os.environ.items() if name != "XLA_PYTHON_CLIENT_PREALLOCATE"}
    path = os.pathsep.join([str(tmp_path), str(Path(cadre.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", LOOK_FOR_A_GPU], env={**kept, **users_own, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[0] == seen and words[-1] == "cpu", "the first call starts the backend"


def test_pytorchs_memory_goes_back_before_jax_is_measured(capsys, monkeypatch):
    order = []
    for name in INSTALLED:
        module = compare.FRONTS[name]
        monkeypatch.setattr(module, "contenders", _noted(order, name, module.contenders))
        monkeypatch.setattr(module, "release", lambda name=name: order.append(f"{name} released"))
    assert run(capsys, *SMALL, "--json")[0] == 0
    assert order == [word for name in INSTALLED for word in (name, f"{name} released")]


def _noted(order, name, function):
    def call(*arguments):
        order.append(name)
        return function(*arguments)

    return call


def test_a_trace_that_can_not_be_written_is_two_before_anything_runs(capsys, tmp_path):
    code, out, err = run(capsys, *SMALL, "--trace", str(tmp_path / "nowhere" / "trace.json"))
    assert (code, out) == (2, "") and "--trace = " in err and "a folder that exists" in err
    for option in ("--trace", "--report"):
        code, out, err = run(capsys, *SMALL, option, str(tmp_path))
        assert (code, out) == (2, "") and f"{option} = {tmp_path}, expected a file, and that is a folder" in err


def test_a_report_is_a_page_of_the_answer_beside_its_results(capsys, tmp_path):
    code, out, _ = run(capsys, *SMALL, "--front", "numpy", "--report", str(tmp_path / "mine.html"))
    row = json.loads((tmp_path / "mine.json").read_text())["results"][0]
    page = (tmp_path / "mine.html").read_text()
    assert code == 0 and f"To look at: {tmp_path / 'mine.html'}" in out
    assert "mine.json" in page and row["shape"] in page and page.count('class="bars"') == 1
    code, out, err = run(capsys, *SMALL, "--report", str(tmp_path / "nowhere" / "mine.html"))
    assert (code, out) == (2, "") and "--report = " in err
    code, out, err = run(capsys, *SMALL, "--report", str(tmp_path / "mine.html"), "--no-report")
    assert (code, out) == (2, "") and "beside --no-report" in err


@pytest.fixture
def on_a_terminal(capsys, monkeypatch, tmp_path):
    """Runs the command in a folder of its own with an output that says it is a terminal. Returns what it printed."""
    pytest.importorskip("jinja2", reason="jinja2 is not installed; to run this: pip install jinja2")
    monkeypatch.chdir(tmp_path)

    def call(*more):
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            code, out, err = run(capsys, *SMALL, "--front", "numpy", *more)
        assert code == 0, err
        return out

    return call


def test_on_a_terminal_the_answer_is_a_page_too(on_a_terminal, tmp_path):
    out = on_a_terminal()
    page = tmp_path / picture.PAGE
    assert out.endswith(f"\nTo look at: {page}\n") and list(tmp_path.iterdir()) == [page]
    assert "6,2,48,40" in page.read_text() and page.read_text().count('class="bars"') == 1
    before = page.read_text()
    assert "To look at: " in on_a_terminal() and page.read_text() != before, "its own page is written again"


def test_a_page_is_written_for_people_alone(on_a_terminal, capsys, tmp_path):
    on_a_terminal("--json")
    assert "To look at" not in on_a_terminal("--no-report")
    assert "To look at" not in run(capsys, *SMALL, "--front", "numpy")[1], "piped"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["text", "page", "folder", "link"])
def test_what_is_there_and_not_its_own_page_stays(on_a_terminal, tmp_path, kind):
    there = tmp_path / picture.PAGE
    if kind == "folder":
        there.mkdir()
    elif kind == "link":
        there.symlink_to(tmp_path / "nowhere")
    else:
        there.write_text("my own" if kind == "text" else '<meta name="generator" content="cadre.report">')
    before = there.lstat()[:7]  # all but its times
    out = on_a_terminal()
    assert f"No page to look at: {picture.PAGE} is there and not of cadre compare." in out and "█" in out
    assert there.lstat()[:7] == before and list(tmp_path.iterdir()) == [there]


def test_a_folder_that_can_not_be_written_to_costs_no_answer(on_a_terminal, monkeypatch):
    def fails(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(picture, "_replace", fails)
    out = on_a_terminal()
    assert out.startswith("On this machine") and f"No page to look at: {picture.PAGE}: Permission denied." in out


class Piped(Terminal):
    def isatty(self):
        return False


def test_bars_are_as_long_as_the_times_and_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for stream, columns in ((Terminal(), 100), (Piped(), 80)):
        bars = picture.Bars(stream, left=53)
        assert len(bars.bar(1.0)) == bars.width == columns - 54
        assert bars.bar(0.5) == "█" * (bars.width // 2) + ("▌" if bars.width % 2 else "")
        assert bars.bar(1e-9) == "▏", "never nothing"
    monkeypatch.setenv("COLUMNS", "20")
    assert picture.Bars(Terminal(), left=53).width == 8
    ascii_only = Piped()
    ascii_only.encoding = "ascii"
    assert picture.Bars(ascii_only, left=53).bar(1.0) == "#" * 26
