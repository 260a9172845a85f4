"""cadre.torch.integrations.vllm: against the protocol of vLLM's experts (vllm_protocol.py), and inside vLLM where it is
installed, or its sources are on the path (vllm_cases.py). Its wheel brings another torch, so no suite installs it."""

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import vllm_protocol as protocol
from cadre.torch.integrations import vllm as integration

A = protocol.MoEActivation
E, K, N, TOKENS, TOP_K = 5, 12, 10, 9, 3


@pytest.fixture
def vllm(monkeypatch):
    """The stand-in's modules by their names, where the integration imports them from."""
    modules = protocol.modules()
    monkeypatch.setattr(integration, "_vllm", modules.__getitem__)
    integration.experts_classes.cache_clear()
    yield modules
    integration.experts_classes.cache_clear()


def configs(activation=A.SILU, bias=None, clamp=None, alpha=1.0, beta=0.0, **changed):
    """(moe_config, quant_config) with what of them is read."""
    parallel = SimpleNamespace(use_fi_nvl_two_sided_kernels=False, use_fi_nvl_one_sided_kernels=False)
    numbers = SimpleNamespace(clamp_limit=clamp, alpha=alpha, beta=beta)
    moe = {
        "activation": activation, "activation_config": numbers, "moe_parallel_config": parallel,
        "is_lora_enabled": False, "chosen": protocol.UnquantizedMoeBackend.TRITON,
    }  # fmt: skip
    w1_bias, w2_bias = bias or (None, None)
    return SimpleNamespace(**{**moe, **changed}), SimpleNamespace(w1_bias=w1_bias, w2_bias=w2_bias)


def weights_of(activation, dtype=torch.float64):
    columns = 2 * N if activation.is_gated else N
    return torch.randn(E, columns, K, dtype=dtype), torch.randn(E, K, N, dtype=dtype)


def gate_up(rows, interleaved=False):
    return (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, -1)


def oai(rows, alpha, limit, beta, interleaved):
    gate, up = gate_up(rows, interleaved)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


#: What vLLM's apply_moe_activation computes.
FUNCTIONS = {
    A.SILU: lambda h: F.silu(gate_up(h)[0]) * gate_up(h)[1],
    A.GELU: lambda h: F.gelu(gate_up(h)[0]) * gate_up(h)[1],
    A.GELU_TANH: lambda h: F.gelu(gate_up(h)[0], approximate="tanh") * gate_up(h)[1],
    A.SWIGLUOAI: lambda h: oai(h, 1.702, 7.0, 1.0, True),
    A.SWIGLUOAI_UNINTERLEAVE: lambda h: oai(h, 1.5, 2.0, 0.5, False),
    A.SILU_NO_MUL: F.silu,
    A.GELU_NO_MUL: F.gelu,
    A.GELU_TANH_NO_MUL: lambda h: F.gelu(h, approximate="tanh"),
    A.RELU2_NO_MUL: lambda h: F.relu(h).square(),
}


def expert(x, e, w1, w2, bias, function):
    b1, b2 = (each[e] for each in bias) if bias else (None, None)
    return F.linear(function(F.linear(x, w1[e], b1)), w2[e], b2)


@torch.inference_mode()  # as vLLM runs its models
def call(layer, output, x, w1, w2, weights, ids, activation, meta=None, expert_map=None, on_input=False, scale=None):
    sizes = layer.workspace_shapes(x.shape[-2], w1.shape[1], K, TOP_K, E, E, meta, activation)
    assert sizes[2] == tuple(output.shape)
    workspaces = [torch.full(size, float("nan"), dtype=x.dtype) for size in sizes[:2]]
    layer.apply(output, x, w1, w2, weights, ids, activation, E, expert_map, scale, None, *workspaces, meta, on_input)


@pytest.mark.parametrize("activation", FUNCTIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("mapped", [False, True], ids=["", "two experts elsewhere"])
def test_tokens_get_the_weighted_sum_of_their_experts(vllm, activation, mapped):
    w1, w2 = weights_of(activation)
    bias = torch.randn(w1.shape[:2], dtype=w1.dtype), torch.randn(E, K, dtype=w1.dtype)
    clamp = {"clamp": 2.0, "alpha": 1.5, "beta": 0.5} if activation == A.SWIGLUOAI_UNINTERLEAVE else {}
    layer = integration.experts_classes()[0](*configs(activation, bias=bias, **clamp))
    x = torch.randn(TOKENS, K, dtype=w1.dtype)
    ids = torch.randint(-1, E + 2 * mapped, (TOKENS, TOP_K), dtype=torch.int32)
    weights = torch.rand(TOKENS, TOP_K)
    # Experts 1 and 3 of seven are on another rank.
    places = torch.tensor([0, -1, 1, -1, 2, 3, 4], dtype=torch.int32) if mapped else None
    output = torch.full((TOKENS, K), float("nan"), dtype=w1.dtype)
    call(layer, output, x, w1, w2, weights, ids, activation, expert_map=places)
    expected = torch.zeros_like(output)
    for t in range(TOKENS):
        for slot in range(TOP_K):
            e = int(ids[t, slot])
            e = int(places[e]) if mapped and e >= 0 else e
            if e >= 0:
                expected[t] += weights[t, slot] * expert(x[t], e, w1, w2, bias, FUNCTIONS[activation])
    torch.testing.assert_close(output, expected)


def test_a_clamped_silu_and_weights_that_were_applied_before(vllm):
    w1, w2 = weights_of(A.SILU)
    layer = integration.experts_classes()[0](*configs(clamp=0.7, alpha=3.0, beta=3.0))
    x, ids = torch.randn(TOKENS, K, dtype=w1.dtype), torch.randint(E, (TOKENS, 1))
    output = torch.full((TOKENS, K), float("nan"), dtype=w1.dtype)
    call(layer, output, x, w1, w2, torch.rand(TOKENS, 1), ids, A.SILU, on_input=True)
    rows = [expert(x[t], int(ids[t]), w1, w2, None, lambda h: oai(h, 1.0, 0.7, 0.0, False)) for t in range(TOKENS)]
    torch.testing.assert_close(output, torch.stack(rows))


def test_a_token_has_the_same_bits_in_every_batch(vllm):
    w1, w2 = weights_of(A.SILU, torch.bfloat16)
    layer = integration.experts_classes()[0](*configs())
    x, ids = torch.randn(200, K, dtype=torch.bfloat16), torch.randint(E, (200, TOP_K))
    weights = torch.rand(200, TOP_K)

    def result(rows):
        output = torch.full((len(x[rows]), K), float("nan"), dtype=torch.bfloat16)
        call(layer, output, x[rows], w1, w2, weights[rows], ids[rows], A.SILU)
        return output

    whole = result(slice(None))
    for rows in (slice(0, 1), slice(7, 70), slice(133, 200)):
        assert torch.equal(result(rows), whole[rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_masked_rows_of_each_expert_are_computed_and_no_others(vllm, dtype):
    w1, w2 = weights_of(A.SILU, dtype)
    most, dispatchers = 7, 2
    layer = integration.experts_classes()[1](*configs(), max_num_tokens=most, num_dispatchers=dispatchers)
    counts = torch.tensor([3, 0, 14, 1, 6], dtype=torch.int32)
    x = torch.full((E, most * dispatchers, K), float("nan"), dtype=dtype)
    for e in range(E):
        x[e, : counts[e]] = torch.randn(int(counts[e]), K, dtype=dtype)
    output = torch.full_like(x, 77.0)
    meta = SimpleNamespace(expert_num_tokens=counts, expert_num_tokens_cpu=None)
    call(layer, output, x, w1, w2, None, None, A.SILU, meta=meta)
    for e in range(E):
        rows = int(counts[e])
        expected = expert(x[e, :rows], e, w1, w2, None, FUNCTIONS[A.SILU])
        # In bf16 both round the product, the activation and the result, and add in another order.
        options = {"rtol": 0, "atol": 8 * 2**-8 * float(expected.abs().max())} if rows and dtype != torch.float64 else {}
        torch.testing.assert_close(output[e, :rows], expected, **options)
        assert (output[e, rows:] == 77.0).all(), "rows that nobody sent stay"


def test_the_methods_have_the_signatures_of_vllm(vllm):
    for ours in integration.experts_classes():
        for name in ("apply", "workspace_shapes", "finalize_weight_and_reduce_impl", "activation_format"):
            expected = inspect.signature(getattr(protocol.FusedMoEExpertsModular, name))
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(expected.parameters), name


def test_registering_replaces_triton_where_cadre_can_compute(vllm):
    integration.register()
    integration.register()
    ours, _ = integration.experts_classes()
    oracle, method = (vllm[f"{protocol.LAYERS}.{name}"] for name in ("oracle.unquantized", "unquantized_fused_moe_method"))
    backends = protocol.UnquantizedMoeBackend
    for module in (oracle, method):
        choose = module.select_unquantized_moe_backend
        assert choose(configs()[0]) == (backends.TRITON, ours)
        # vLLM's own stays: with LoRA, an activation that cadre hasn't, another backend.
        for changed in ({"is_lora_enabled": True}, {"activation": A.SWIGLUSTEP}, {"chosen": backends.FLASHINFER_CUTLASS}):
            assert choose(configs(**changed)[0])[1].__name__ == "Triton"


def test_the_entry_point_does_nothing_unless_it_is_asked_for(vllm, monkeypatch):
    from cadre import _vllm_plugin

    oracle = vllm[f"{protocol.LAYERS}.oracle.unquantized"]
    for named, changes in ((None, False), ("other", False), ("other,cadre", True)):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False) if named is None else monkeypatch.setenv("VLLM_PLUGINS", named)
        _vllm_plugin.plugin()
        assert hasattr(oracle.select_unquantized_moe_backend, "by_cadre") == changes


@pytest.mark.parametrize("masked", [False, True])
def test_what_it_cannot_do_is_refused_by_name(vllm, masked):
    w1, w2 = weights_of(A.SILU)
    options = {"max_num_tokens": 4, "num_dispatchers": 1} if masked else {}
    layer = integration.experts_classes()[masked](*configs(bias=(w1[..., 0], w2[..., 0])), **options)
    x = torch.randn(*((E, 4) if masked else (4,)), K, dtype=w1.dtype)
    rest = (torch.empty_like(x), x, w1, w2, torch.rand(4, 1), torch.zeros(4, 1).int(), A.SILU)
    with pytest.raises(ValueError, match="integrations.vllm: a1q_scale = given, expected None"):
        call(layer, *rest, scale=torch.ones(1))
    if masked:
        with pytest.raises(ValueError, match="w1_bias and w2_bias = given, expected None for batched"):
            call(layer, *rest)


VLLM = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(not VLLM, reason="vllm is not installed: with its sources and what they import on PYTHONPATH this runs")
@pytest.mark.parametrize("what", ["compute", "choose"])
def test_inside_vllm_it_is_chosen_and_computes(what):
    here = Path(__file__).resolve().parent
    code = f"import sys; sys.path.insert(0, {str(here)!r}); import vllm_cases; vllm_cases.{what}()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True,
                          env={**os.environ, "VLLM_TARGET_DEVICE": "cpu"})  # fmt: skip
    assert done.stdout.endswith("held\n"), done.stdout[-500:] + done.stderr[-3000:]


@pytest.mark.skipif(VLLM, reason="vllm is installed")
def test_without_vllm_the_error_says_what_to_install():
    integration.experts_classes.cache_clear()
    with pytest.raises(ImportError, match="integrations.vllm: .* is not here: pip install vllm"):
        integration.register()


@pytest.mark.skipif(VLLM, reason="vllm is installed")
def test_the_example_says_what_it_needs():
    example = Path(__file__).resolve().parents[3] / "examples/14_vllm.py"
    done = subprocess.run([sys.executable, str(example)], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "needs vLLM and a GPU" in done.stderr, done.stderr
