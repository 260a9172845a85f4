"""What is timed beside the C++ benchmark is what that one times: the same sizes, values and products."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
SHAPE = (3, 12, 5, 4)  # groups, m, k, n
SIZES = jnp.array([3, 0, 7], jnp.int32)


@pytest.fixture
def beside(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench/rivals"))
    import jax_beside_bench

    return jax_beside_bench


def test_the_router_draws_what_the_cpp_router_draws(beside):
    engine = beside.router.Mt19937_64()
    drawn = [engine() for _ in range(10000)]
    assert drawn[-1] == 9981545732273789042  # the value that the C++ standard asks for
    # Of router_group_sizes in bench/shapes/shapes.cc.
    even = [8245, 8100, 8272, 8050, 8075, 8383, 8230, 8181]
    assert beside.router.group_sizes(8, 65536, 0) == even
    skewed = [3052, 4911, 3463, 7976, 23878, 6033, 12211, 4012]
    assert beside.router.group_sizes(8, 65536, 1) == skewed


@pytest.mark.parametrize("case", ["forward", "dlhs", "drhs"])
def test_each_case_is_one_call_that_makes_the_product_of_its_row(beside, case):
    (lhs, rhs, out), (op, _) = beside.kinds_of(SHAPE, case), beside.CASES[case]
    lhs, rhs = oracle.normal(1, *lhs, dtype="float32"), oracle.normal(2, *rhs, dtype="float32")
    expected = {
        "gmm_nt": lambda: oracle.gmm(lhs, jnp.swapaxes(rhs, 1, 2), SIZES),
        "gmm": lambda: oracle.gmm(lhs, rhs, SIZES),
        "tgmm": lambda: oracle.tgmm(lhs, rhs, SIZES),
    }[op]()
    program = jax.jit(beside.product_of(case)).lower(lhs, rhs, SIZES).compile()
    oracle.close(program(lhs, rhs, SIZES), expected, 1e-5)
    assert expected.shape == out
    calls = [line for line in program.as_text().splitlines() if "custom-call(" in line]
    assert len(calls) == 1 and f"cadre_{'tgmm' if op == 'tgmm' else 'gmm'}" in calls[0]


def test_the_operands_are_random_with_the_deviation_asked_for(beside):
    values = np.asarray(jax.jit(lambda: beside.random_values((300, 400), 2, 0.25))(), np.float32)
    assert abs(values.std() - 0.25) < 0.002 and abs(values.mean()) < 0.002
    # By hand, of the element at index 1 with seed 2.
    x = 2654435761 ^ 2
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * factor & 0xFFFFFFFF
    x ^= x >> 16
    assert math.isclose(
        values[0, 1], ((x & 0xFFFF) / 65536 + (x >> 16) / 65536 - 1) * 6**0.5 / 4, rel_tol=0.005
    )


def test_the_warm_up_ends_as_the_cpp_one(beside):
    assert not beside.warmed_up([1.0, 1.0], 9.0)
    assert not beside.warmed_up([1.0] * 6, 0.1)
    assert beside.warmed_up([1.0] * 6, 0.2)
    assert not beside.warmed_up([1.0, 1.0, 1.0, 1.0, 0.9, 0.9], 0.2)
    assert beside.warmed_up([1.0, 1.0, 1.0, 1.0, 0.9, 0.9], 0.4)


def test_every_case_finds_its_row_of_the_cpp_benchmark(beside):
    path = ROOT / "bench/results/h200/cuda.json"
    times = beside.bench_times(path)
    shapes = {shape for _, shape in times if not shape.startswith("decode")}
    assert shapes <= set(beside.layers.TRAINING) and len(shapes) >= 9
    rows = json.loads(path.read_text())["results"]
    for shape in shapes:
        for op, _ in beside.CASES.values():
            plain = ("forward", "dgrad", "wgrad")
            (row,) = [
                row
                for row in rows
                if (row.get("op"), row.get("shape"), row.get("skew")) == (op, shape, 0)
                and (row["dtype"], row["out_dtype"]) == ("bf16", "bf16")
                and row["case"] in plain
                and row.get("condition", "mixed") == "mixed"
            ]
            g, m, k, n = beside.layers.TRAINING[shape]
            assert (row["num_groups"], row["m"], row["k"], row["n"]) == (g, m, k, n)
            assert times[op, shape] == row["median_s"]
