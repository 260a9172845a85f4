"""`python -m cadre.report`: a page of the committed results that parses, loads nothing, and holds every figure; bad files.

tests/browser opens the same page in a real browser.
"""

import importlib.util
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed; to run this: pip install jinja2")

from cadre import report
from cadre.report.__main__ import main
from cadre.report.figures import geometric_mean
from cadre.report.plot import Axis, log_axis, number, rate

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "bench" / "results").glob("*/*.json"))
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Checks that elements close in order, and keeps what the tests ask about."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.ids, self.links = [], [], [], []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"

    def of(self, tag, kind=None):
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and (kind is None or kind in attributes.get("class", "").split())
        ]


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main([*COMMITTED, "-o", str(path), "--skip-unknown"]) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_of_the_committed_results_holds_every_kind_of_figure(committed):
    page = Page(committed)
    for kind in ("roofline", "rivals", "rows", "skew", "layer", "schedule", "table", "files"):
        assert kind in page.ids, kind
    assert len(page.of("svg", "plot")) >= 5 and len(page.of("div", "bars")) >= 10
    for machine in ("NVIDIA H200", "Intel(R) Xeon(R) Processor", "AMD EPYC"):
        assert f"Roofline: {machine}" in committed
    assert "128 experts, recorded" in committed  # the schedule


def test_the_page_loads_nothing(committed):
    page = Page(committed)
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "http://" not in committed and "https://" not in committed and "@import" not in committed


def test_links_and_labels_lead_somewhere(committed):
    page = Page(committed)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    for tag in ("svg", "form", "nav"):
        assert all(attributes.get("aria-label") for attributes in page.of(tag)), tag
    assert all("aria-label" in attributes for attributes in page.of("div", "bars"))
    assert len(page.of("th")) == len(page.of("th", None)) and all("aria-sort" in a for a in page.of("th"))


def test_every_row_of_the_files_is_in_the_table(committed):
    page = Page(committed)
    rows = sum(len(report.read(ROOT / name).rows) for name in COMMITTED if _is_known(name))
    assert rows > 500 and len([a for a in page.of("tr") if "data-op" in a]) == rows


def _is_known(name):
    try:
        report.read(ROOT / name)
    except report.UnknownResults:
        return False
    return True


def test_text_of_a_file_is_not_markup(tmp_path):
    row = {"op": "gmm", "shape": "<script>alert(1)</script>", "dtype": "bf16", "m": 64, "k": 8, "n": 8, "num_groups": 2}
    row |= {"median_s": 1e-3, "rivals": {"<b>rival</b>": {"median_s": 2e-3}}}
    document = {"schema": 2, "machine": {"model": "<i>cpu</i>", "logical_cpus": 2}, "command": "<u>", "results": [row]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    text = report.page([report.read(tmp_path / "a.json")])
    assert "<script>alert" not in text and "<b>rival" not in text and "<i>cpu" not in text and "<u>" not in text
    Page(text)


def schedule(tiles, **more):
    """What `cadre schedule` writes."""
    row = {
        "case": "tile schedule", "recorded": False, "source": "computed, not recorded", "how": "by hand.",
        "time_unit": "tokens", "shape": "four experts, skew 0", "m": 64, "k": 8, "n": 8, "num_groups": 4, "sms": 2,
        "tile": "256 x 192", "tiles": tiles,
    }  # fmt: skip
    return row | more


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[1]", 'no list "results"'),
        ('{"schema": 2}', 'no list "results"'),
        ('{"schema": 7, "results": []}', "schema 7"),
        ('{"results": [{}]}', "schema is missing"),
        ('{"schema": 2, "results": [{"median_s": 1.0}]}', "a row that can't be read"),
        ('{"schema": 2, "results": [{"op": "gmm", "median_s": "1 ms"}]}', "median_s = '1 ms', expected a number"),
        ('{"schema": 2, "results": [{"op": "gmm", "median_s": 1, "rivals": {"a": NaN}}]}', "median_s = nan, expected"),
        ('{"schema": 2, "results": [{}]}', "no row that a figure could show"),
        ('{"schema": 2, "results": [{"case": "tile schedule"}]}', "a tile schedule without how, k, m, n, num_groups"),
        (json.dumps({"schema": 2, "results": [schedule([[0, 0, 5, 4]])]}), "tile [0, 0, 5, 4], expected [sm, group,"),
        (json.dumps({"schema": 2, "results": [schedule([])]}), "a tile schedule without tiles"),
    ],
)
def test_a_file_of_another_kind_is_two_and_lists_what_is_known(tmp_path, capsys, content, message):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    target = tmp_path / "report.html"
    target.write_text("older")
    assert main([str(path), "-o", str(target)]) == 2
    err = capsys.readouterr().err
    assert message in err and "expected one of: schema 2 (cadre bench --json" in err
    assert target.read_text() == "older" and sorted(tmp_path.iterdir()) == sorted({target, *tmp_path.glob("*.json")})


def test_a_result_of_compare_is_drawn(tmp_path):
    row = {
        "op": "layer", "case": "forward", "shape": "qwen3-30b", "front": "torch", "dtype": "bf16", "tokens": 512,
        "num_groups": 128, "top_k": 8, "median_s": 0.1, "gflops": 380.0, "condition": "in turn",
        "rivals": {"torch's grouped_mm": {"median_s": 0.25}},
    }  # fmt: skip
    document = {"schema": 2, "device": "cpu", "machine": {"model": "cpu", "logical_cpus": 2}, "results": [row]}
    (tmp_path / "mine.json").write_text(json.dumps(document))
    file = report.read(tmp_path / "mine.json")
    assert file.rows[0].m == 4096 and file.rows[0].rows_per_group == 32
    text = report.page([file])
    assert "forward, torch bf16: time over cadre" in text and "torch&#x27;s grouped_mm 2.5×, 250 ms" in text
    assert "1 measured case of 1 result file." in text and "Geometric means" not in text
    page = Page(text)
    assert "hidden" in page.of("form")[0], "one row needs no filter"
    assert not re.search("<button[^>]*>(skew|of dense|kernel)</button>", text), "columns without a value are left out"
    assert 'class="answer"' not in text


def _written(tmp_path, name, results, **head):
    """The file that report.read makes of a program's rows."""
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({"command": name, **head, "results": results}))
    return report.read(path)


def test_a_layer_is_cut_into_the_phases_of_its_file(tmp_path):
    phases = {"route": 0.0001, "w13": 0.0015, "w2": 0.001, "combine": 0.0004}
    times = {"forward_s": 0.001, "step_s": 0.003, "dense_s": 0.0008, "of_dense": 0.8}
    gpu = {"layer": "qwen3-30b", "tokens": 8192, "error": 0.001, "sustained": {**times, "phases": phases}, "rested": times}
    seconds = {"layer": 0.003, "products": 0.002, "loop": 0.006}
    cpu = {"layer": "qwen3-30b", "tokens": 16, "dtype": "f32", "seconds": seconds, "times_the_layer": {"loop": 2.0}}
    files = [
        _written(tmp_path, "gpu", [gpu], machine="NVIDIA H200, torch 2.11"),
        _written(tmp_path, "cpu", [{**cpu, "phases": phases}], machine="cpu"),
        _written(tmp_path, "older", [cpu], machine="cpu"),
    ]
    text = report.page(files)
    Page(text)
    assert text.count('title="w13: 1.5 ms, 50%" style="width:50.00%"') == 2
    assert "A layer&#x27;s training step by phases, sustained, NVIDIA H200" in text and "by torch.profiler" in text
    assert "A layer&#x27;s forward pass, f32 by phases, in turn, cpu" in text and "Each op was timed alone" in text
    for condition in ("rested", "in turn"):  # without phases of their own
        assert f"by phases, {condition}" in text
    assert 'title="around them: 1 ms, 33%"' in text and "The file has no phases: the two products" in text
    (row,) = files[1].rows
    assert row.rivals == {"torch's loop": pytest.approx(0.006)} and row.rows_per_group == 1
    assert row.gflops == pytest.approx(6 * 128 * 2048 * 768 / 0.003 / 1e9)


def test_bars_of_very_different_layers_have_one_length(tmp_path):
    seconds = {"layer": 1.0, "products": 0.75}
    rows = [
        {"layer": "a", "tokens": t, "dtype": "f32", "seconds": {k: v * s for k, v in seconds.items()}, "times_the_layer": {}}
        for t, s in ((1, 0.001), (1024, 1.0))
    ]
    text = report.page([_written(tmp_path, "layer", rows, machine="cpu")])
    assert text.count('style="width:75.00%"') == 2 and "Bars have one length" in text and ">1 ms<" in text and ">1 s<" in text


def test_results_of_every_program_are_in_the_table(committed):
    for case in (
        "forward row fast accumulation", "grouped_gemm weight gradient", "layer training step, one rank exchanging",
        "forward, e4m3 weights", "layer forward",
    ):  # fmt: skip
        assert f"<td>{case}</td>" in committed, case
    assert "Share of dense by rows per expert, e4m3, NVIDIA H200" in committed
    exchanges = json.loads((ROOT / "bench/results/h200/expert_parallel.json").read_text())["results"]
    row = next(each for each in exchanges if each["shape"] == "qwen3-30b")
    assert f"the layer alone {row['alone ms'] / row['exchange ms']:.3f}×" in committed and "cadre&#x27;s gmm" in committed
    known = [name for name in COMMITTED if _is_known(name)]
    for program in ("fp8_gmm", "fp8_gmm_by_rows", "fp8_wgrad", "grouped_gemm", "expert_parallel", "layer", "layer_gradient"):
        assert f"bench/results/h200/{program}.json" in known, program
    assert {"bench/results/zen4/layer.json", "bench/results/zen4/fp8_weights.json"} <= set(known)


def test_every_case_of_a_machine_is_on_one_roofline(committed):
    page = Page(committed)
    titles = [a["aria-label"] for a in page.of("svg", "plot") if a["aria-label"].startswith("Roofline of ")]
    machines = [title.split(":")[0] for title in titles]
    assert len(machines) == len(set(machines)) >= 3
    files = [report.read(ROOT / name) for name in COMMITTED if _is_known(name)]
    of_h200 = [row for file in files if file.device == "NVIDIA H200" for row in file.rows if row.intensity and row.gflops]
    assert f"Roofline of NVIDIA H200: {len(of_h200)} cases" in titles
    assert {"gmm_nt", "gmm", "tgmm", "layer", "ragged_dot"} <= {row.op for row in of_h200}
    drawn = sum(any(row.intensity and row.gflops for row in file.rows) for file in files if file.device == "NVIDIA H200")
    assert "best dense e4m3 product: 1.57 PFLOP/s" in committed and f"{drawn} files and their commands" in committed


def test_a_layers_operations_and_bytes(tmp_path):
    row = {"layer": "qwen3-30b", "tokens": 8192, "error": 0.001}
    row["sustained"] = {"forward_s": 0.001, "step_s": 0.004, "dense_s": 0.0008, "of_dense": 0.8}
    forward, step = _written(tmp_path, "gpu", [row], machine="NVIDIA H200").rows
    product = 8192 * 8 * 2048 * 768
    assert forward.gflops == pytest.approx(6 * product / 0.001 / 1e9) and step.gflops == pytest.approx(18 * product / 0.004 / 1e9)
    weights, rows = 3 * 128 * 2048 * 768, 8192 * 2048
    assert forward.intensity == pytest.approx(6 * product / 2 / (weights + 2 * rows))
    assert step.intensity == pytest.approx(18 * product / 2 / (3 * weights + 4 * rows))


def _bench(name):
    source = ROOT / "bench" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"bench_{name}", source)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _kernel(name, start, end):
    return {"cat": "kernel", "name": f"void cadre::{name}<bf16>(Arguments)", "ts": start, "dur": end - start}


def test_kernels_of_a_training_step_are_cut_into_phases():
    phases = _bench("kernel_phases")
    step = [
        _kernel("route_kernel", 0, 10), _kernel("permute_kernel", 8, 30),  # begins while route runs
        _kernel("sm90::gmm_kernel", 30, 130), _kernel("sm90::turn_kernel", 130, 190), _kernel("combine_stream_kernel", 190, 200),
        {"cat": "kernel", "name": "void at::native::permute_kernel()", "ts": 200, "dur": 5},
        _kernel("sm90::gmm_kernel", 215, 275), _kernel("activate_grad_kernel", 275, 285),
        _kernel("sm90::turn_kernel", 285, 345), _kernel("sm90::gmm_kernel", 345, 445), _kernel("combine_kernel", 445, 455),
        _kernel("sm90::turn_kernel", 455, 555), {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1000},
    ]  # fmt: skip
    later = [{**each, "ts": each["ts"] + 555} for each in step]
    found = phases.phases(phases.kernels_of({"traceEvents": later + step}), 2)
    microseconds = {name: round(seconds * 1e6, 6) for name, seconds in found.items()}
    assert microseconds == {
        "route": 10, "gather": 20, "w13": 100, "w2": 60, "combine": 20, "the rest": 5, "between kernels": 10,
        "w2, input gradient": 60, "activation": 10, "w2, weight gradient": 60, "w13, input gradient": 100,
        "w13, weight gradient": 100,
    }  # fmt: skip
    assert sum(microseconds.values()) == 555
    odd = phases.phases(phases.kernels_of({"traceEvents": step[:3]}), 1)
    assert odd["products"] == pytest.approx(100e-6), "one product of a pass: whose it is can't be told"


def test_the_cpu_layers_phases_are_its_ops(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    bench = _bench("layer_cpu")
    weights = bench.Weights(torch, torch.float32, 4, 24, 16)
    layer = bench.Layer(torch, weights, 10, 4, 2, 24, 16)
    ops = dict(layer.phases())
    inner = ops["gather, w13 and activation"]()
    y = layer.cadre.gmm(inner, layer.w2, layer.routing.group_sizes, transpose_rhs=True)
    torch.testing.assert_close(layer.cadre.combine(y, layer.routing, weights=layer.weights), layer.layer())
    row = bench.measure(layer, 0.0, time.perf_counter, phases=True)
    assert list(row["phases"]) == ["route", "gather, w13 and activation", "w2", "combine"]
    assert all(0 < seconds < 1 for seconds in row["phases"].values()) and "route" not in row["seconds"]
    file = _written(tmp_path, "layer", [{"layer": "own", "dtype": "f32", "tokens": 10, **row}], machine="cpu")
    assert file.layers[0].measured and file.layers[0].parts == row["phases"]


def test_the_answer_of_compare_stands_first_with_what_makes_it_doubtful(tmp_path):
    row = {
        "op": "layer", "case": "forward", "shape": "qwen3-30b", "front": "jax", "dtype": "bf16", "tokens": 512,
        "num_groups": 128, "top_k": 8, "median_s": 0.984, "rivals": {"lax": {"median_s": 575.0, "estimated": True}},
    }  # fmt: skip
    document = {
        "schema": 2, "machine": {"model": "cpu", "logical_cpus": 2}, "results": [row, row | {"front": "torch"}],
        "answers": ["A layer takes <1 s."], "notes": ["Busy."], "left_out": {"numpy": "not installed"},
    }  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(document))
    text = report.page([report.read(tmp_path / "mine.json")])
    start = text.index('<p class="answer">A layer takes &lt;1 s.</p>')
    assert start < text.index("<p>Busy.</p>") < text.index("<p>Not measured, numpy: not installed.</p>") < text.index("<figure>")
    assert "lax 584×, about 575 s" in text and ">984</td>" in text
    assert "<details>" not in text, "every front is open"
    Page(text)


def test_a_recorded_schedule_is_drawn_as_one(tmp_path):
    # Two SMs; of the first both warpgroups have tiles at the same time, and it idles from 30 to 40 of 40 µs.
    tiles = [[0, 0, 0.0, 20.0, 0], [1, 1, 0.0, 40.0, 0], [0, 2, 10.0, 30.0, 1]]
    recorded = schedule(
        tiles, recorded=True, source="recorded on NVIDIA H200", time_unit="µs", op="gmm_nt", dtype="bf16", kernel="turn"
    )
    document = {"schema": 2, "command": "cadre schedule --record", "machine": {"device": "NVIDIA H200"}}
    for name, rows in (("recorded", [recorded]), ("computed", [schedule([tile[:4] for tile in tiles])])):
        (tmp_path / f"{name}.json").write_text(json.dumps(document | {"results": rows}))
    text = report.page([report.read(tmp_path / "recorded.json")])
    page = Page(text)
    assert "four experts, skew 0, gmm_nt, 64 x 8 x 8, 4 experts, recorded" in text
    assert "Recorded on NVIDIA H200: by hand. 3 tiles" in text and "2 SMs, which are busy 88% of the time" in text
    assert "Two warpgroups of an SM" in text and ">µs</text>" in text
    # Each half of an SM's quarter of the plot; three experts in three colours.
    heights = [_height(attributes["d"]) for attributes in page.of("path", "tiles")]
    assert len(heights) == 3 and max(heights) < 332 / 4 < 1.02 * min(heights)
    text = report.page([report.read(tmp_path / "computed.json")])
    assert "4 experts, computed" in text and "Two warpgroups" not in text
    assert all(332 / 4 < _height(attributes["d"]) for attributes in Page(text).of("path", "tiles"))


def _height(path):
    """Of a box as SVG's M x y H x V y H x Z."""
    top, bottom = path.split("H")[0].split()[1], path.split("V")[1].split("H")[0]
    return float(bottom) - float(top)


def test_scales_and_numbers():
    assert [rate(value) for value in (2.5, 8.16e14)] == ["2.5 FLOP/s", "816 TFLOP/s"]
    assert [number(value) for value in (0.25, 12, 1500, 2.5e9)] == ["0.25", "12", "1.5k", "2.5G"]
    axis = log_axis("x", [3, 400])
    assert (axis.low, axis.high) == (1, 1000) and axis.place(1) == 0 and abs(axis.place(31.6227766) - 0.5) < 1e-6
    assert Axis("y", 0, 1.2).marks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2])
    assert geometric_mean([1, 4]) == pytest.approx(2)
