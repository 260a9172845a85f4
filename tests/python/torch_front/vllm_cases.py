"""What tests of cadre.torch.integrations.vllm do inside vLLM's own Python, on a CPU and without its compiled operators."""

import sys

import torch
import torch.nn.functional as F
import vllm.model_executor.layers.fused_moe.modular_kernel as kernel
import vllm.platforms
from cadre.torch.integrations import vllm as integration
from vllm.model_executor.layers.fused_moe import config, unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.activation import MoEActivation as A
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular
from vllm.v1.worker.workspace import init_workspace_manager

E, K, N, TOKENS, TOP_K, MOST = 8, 32, 24, 17, 2, 18


def layer(activation=A.SILU, **changed):
    parallel = config.FusedMoEParallelConfig(
        tp_size=1, pcp_size=1, dp_size=1, ep_size=1, tp_rank=0, pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=1,
        use_ep=False, all2all_backend="naive", enable_eplb=False,
    )  # fmt: skip
    return config.FusedMoEConfig(
        num_experts=E, experts_per_token=TOP_K, hidden_dim=K, intermediate_size=N, num_local_experts=E,
        num_logical_experts=E, activation=activation, device="cpu", moe_parallel_config=parallel,
        routing_method=next(iter(config.RoutingMethodType)), in_dtype=torch.bfloat16, **changed,
    )  # fmt: skip


def expert(rows, w1, w2):
    gate, up = (rows.float() @ w1.float().T).chunk(2, -1)
    return (F.silu(gate) * up).bfloat16().float() @ w2.float().T


def close(found, expected):
    """Rounded to bf16 before and after the sum over choices, and between the products."""
    return not expected.numel() or (found.float() - expected).abs().max() <= 2**-6 * expected.abs().max()


@torch.inference_mode()
def compute():
    """Both classes: tokens through vLLM's own FusedMoEKernel, and the masked form with its activation by torch."""
    torch.manual_seed(0)
    torch.accelerator.empty_cache = lambda: None  # there is no accelerator
    init_workspace_manager(torch.device("cpu"))
    standard, batched = integration.experts_classes()
    w1, w2 = torch.randn(E, 2 * N, K).bfloat16(), torch.randn(E, K, N).bfloat16()
    x, weights = torch.randn(TOKENS, K).bfloat16(), torch.rand(TOKENS, TOP_K)
    ids = torch.stack([torch.randperm(E)[:TOP_K] for _ in range(TOKENS)]).int()
    experts = standard(layer(), config.FUSED_MOE_UNQUANTIZED_CONFIG)
    whole = kernel.FusedMoEKernel(MoEPrepareAndFinalizeNoDPEPModular(), experts)
    out = whole.apply(x, w1, w2, weights, ids, A.SILU, E, None, False)
    rows = [[w * expert(x[t], w1[e], w2[e]) for w, e in zip(weights[t], ids[t].tolist(), strict=True)] for t in range(TOKENS)]
    assert close(out, torch.stack([sum(each) for each in rows]))

    experts = batched(layer(), config.FUSED_MOE_UNQUANTIZED_CONFIG, max_num_tokens=MOST // 2, num_dispatchers=2)
    experts.activation = lambda _, out, hidden: out.copy_(F.silu(hidden[:, :N]) * hidden[:, N:])
    rows, counts = torch.randn(E, MOST, K).bfloat16(), torch.randint(0, MOST + 1, (E,)).int()
    sizes = experts.workspace_shapes(MOST, 2 * N, K, TOP_K, E, E, None, A.SILU)
    spaces = [torch.full(size, float("nan"), dtype=torch.bfloat16) for size in sizes[:2]]
    out = torch.full(sizes[2], 77.0).bfloat16()
    meta = kernel.ExpertTokensMetadata(counts, None)
    experts.apply(out, rows, w1, w2, None, None, A.SILU, E, None, None, None, *spaces, meta, False)
    for e, count in enumerate(counts.tolist()):
        assert close(out[e, :count], expert(rows[e, :count], w1[e], w2[e])) and (out[e, count:] == 77.0).all()
    print("held")


def choose():
    """vLLM's own choice on what it takes for an H200, before and after."""
    platform = vllm.platforms.current_platform
    answers = {"is_cuda": True, "is_cpu": False, "is_cuda_alike": True, "has_device_capability": True,
               "is_device_capability": True, "is_device_capability_family": True}  # fmt: skip
    hopper = type("Hopper", (type(platform),), {name: lambda *_, _answer=each, **__: _answer for name, each in answers.items()})()
    for module in [each for name, each in sys.modules.items() if name.startswith("vllm")]:
        if getattr(module, "current_platform", None) is platform:
            module.current_platform = hopper
    vllm.platforms.current_platform = hopper

    def chosen(**changed):
        backend, experts = unquantized_fused_moe_method.select_unquantized_moe_backend(layer(**changed))
        return backend.name, experts.__name__

    assert chosen() == ("TRITON", "TritonExperts")
    integration.register()
    assert chosen() == ("TRITON", "CadreExperts")
    assert chosen(moe_backend="batched_triton") == ("BATCHED_TRITON", "CadreBatchedExperts")
    assert chosen(activation=A.SWIGLUSTEP)[1] == chosen(is_lora_enabled=True)[1] == "TritonExperts"
    print("held")
