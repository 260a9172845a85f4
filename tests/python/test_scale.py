"""python -m cadre.scale: the worked example of docs/expert-parallel.md, the committed measurements, bad input."""

import json
import re
from pathlib import Path

import pytest
from cadre import scale
from cadre._compare.models import named

ROOT = Path(__file__).resolve().parents[2]
LAYER = named("16,2,1000,500")
CLUSTER = scale.Cluster(100e9, 50e9, 10e-6, 2)
COMMAND = ["16,2,1000,500", "--nvlink", "100", "--network", "50", "--latency", "10", "--tokens", "500", "--node", "2"]


def products(case, rows, gflops, **changed):
    row = {"condition": "sustained", "dtype": "bf16", "case": case, "m": rows * 4, "num_groups": 4, "gflops": gflops}
    return {**row, **changed}


@pytest.fixture
def folder(tmp_path):
    """Made-up measurements whose arithmetic can be followed; those that must not count are far off."""
    results = [
        {"case": "machine", "copy_tb_per_s": 4.0},
        products("forward", 100, 100e3), products("forward", 625, 200e3),
        products("decode dgrad", 100, 100e3), products("dgrad", 625, 100e3), products("wgrad", 250, 300e3),
        products("forward", 250, 1.0, condition="rested"), products("forward", 250, 1.0, dtype="f16"),
        products("f32 out", 250, 1.0),
    ]  # fmt: skip
    (tmp_path / "cuda.json").write_text(json.dumps({"results": results}))
    (tmp_path / "row_ops.txt").write_text(
        "the command\na  route  4.0 us\nb  route  10.0 us\n"
        "a  permute  111.2 us, 1.00 TB/s\nb  permute  111.2 us, 3.00 TB/s\na  combine  119.4 us, 3.00 TB/s\n"
    )
    return tmp_path


def test_the_worked_example_of_the_page(folder):
    found = scale.estimate(LAYER, CLUSTER, scale.load(folder), 4, 500)
    microseconds = {
        "gather": 2.0, "travel": 30.0, "experts": 22.0, "sum": 1.0, "forward": 115.0, "forward in two chunks": 123.0,
        "backward": 108.58, "reduce": 0.0,
    }  # fmt: skip
    for name, expected in microseconds.items():
        assert found[name] * 1e6 == pytest.approx(expected), name
    assert (found["bytes NVLink"], found["bytes network"]) == (0.5e6, 1e6)
    assert (found["memory of parameters"], found["memory kept"]) == (108e6, 4e6)
    assert (found["group"], found["local experts"], found["rows of an expert"]) == (4, 4, 250)
    replicas = scale.estimate(LAYER, CLUSTER, scale.load(folder), 32, 500)
    assert (replicas["group"], replicas["replicas"]) == (16, 2)
    assert replicas["reduce"] * 1e6 == pytest.approx(120.0)
    # With a tenth of the latency, a chunk hides more than its own latency costs.
    quick = scale.estimate(LAYER, scale.Cluster(100e9, 50e9, 1e-6, 2), scale.load(folder), 4, 500)
    assert quick["forward"] * 1e6 == pytest.approx(88.0)
    assert quick["forward in two chunks"] * 1e6 == pytest.approx(75.74, abs=0.01)
    page = " ".join((ROOT / "docs/expert-parallel.md").read_text().split())
    assert all(f"{microseconds[name]:g} us" in page for name in ("forward", "backward", "forward in two chunks"))


def test_weights_are_read_once_and_one_rank_sends_nothing(folder):
    rates = scale.load(folder)
    # One row for each of 16 experts: 2 MB of weights each, at 4 TB/s, where the product alone would take 0.3 us.
    assert rates.product_s("forward", 16, 1000, 1000, 16) == pytest.approx(8e-6)
    alone = scale.estimate(LAYER, CLUSTER, rates, 1, 500)
    assert alone["travel"] == 0.0 and alone["bytes network"] == alone["bytes NVLink"] == 0.0
    # Rates outside what was measured are those at the end.
    assert rates.product_s("forward", 4 * 10**6, 1000, 1000, 4) == pytest.approx(2e6 * 4e6 / 200e12)


def test_the_committed_measurements_fill_the_table(capsys):
    results = str(ROOT / "bench/results/h200")
    options = ["qwen3-235b", "--nvlink", "370", "--network", "45", "--latency", "30", "--results", results]
    scale.main(options)
    header, *lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert re.split(r" {2,}", header.strip())[:2] == ["ranks", "group"]
    # With one rank it is the layer: within what the two measurements of its kernels differ by.
    layer = next(each for each in json.loads((ROOT / "bench/results/h200/layer.json").read_text())["results"]
                 if each["layer"] == "qwen3-235b")  # fmt: skip
    alone = scale.estimate(named("qwen3-235b"), CLUSTER, scale.load(results), 1, layer["tokens"])
    assert alone["forward"] == pytest.approx(layer["sustained"]["forward_s"], rel=0.2)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--results", "nowhere"], "--results = nowhere, expected a folder with cuda.json and row_ops.txt"),
        (["--tokens", "0"], "argument --tokens: 0, expected a number above 0"),
        (["--ranks", "-8"], "argument --ranks: -8|expected at least one argument"),
        (["--nvlink", "nan"], "argument --nvlink: nan, expected a number above 0"),
        (["--nvlink", "inf"], "argument --nvlink: inf, expected a number above 0"),
    ],
)
def test_bad_input_is_named(folder, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        scale.main([*COMMAND, "--results", str(folder), *options])
    assert ended.value.code == 2 and re.search(message, capsys.readouterr().err)


def test_an_unknown_model_and_missing_measurements_are_named(folder, capsys):
    with pytest.raises(SystemExit):
        scale.main(["gpt-9", *COMMAND[1:], "--results", str(folder)])
    assert "MODEL = gpt-9, expected one of mixtral-8x7b" in capsys.readouterr().err
    (folder / "row_ops.txt").write_text("nothing\n")
    with pytest.raises(ValueError, match="expected measurements of permute, combine, route, too"):
        scale.load(folder)
