"""torch.library.opcheck on every operator: schema, autograd registration, fake results, AOT dispatch with dynamic shapes."""

import cadre.torch
import pytest
import torch
from cadre import _structs
from cadre.torch import _operators
from cadre.torch._schema import Operator
from torch.library import opcheck
from torch_oracle import random

SIZES = torch.tensor([3, 0, 4])
M, K, N, G = 9, 3, 5, 3


def wanted(*shape):
    return random(*shape, requires_grad=True)


def lists(*shape):
    return [wanted(*shape) for _ in range(G)]


def groups(**arguments):
    return {"group_sizes": SIZES, **arguments}


def stacked(role, *shape):
    tensors = [random(*shape)]
    return {role: tensors, f"{role}_form": [_structs.STACKED, *shape]}


IDS = torch.stack([torch.randperm(G)[:2] for _ in range(M)])


def routed():
    routing = cadre.torch.route(IDS, G)
    return {"source_row": routing.source_row, "slot_row": routing.slot_row}


def experts(make):
    return {
        "x": make(M, K),
        "w13": [make(G, 2 * N, K)],
        "w2": [make(G, K, N)],
        "weights": make(M, 2),
        **cadre.torch.route(IDS, G)._asdict(),
        "activation": _structs.SWIGLU,
        "clamp": [1.0, 1.0, 1.0],
    }


PACKED_SIZES = torch.tensor([2, 3])

#: The arguments of each operator that aren't left out.
CALLS = {
    "gmm": lambda: groups(
        lhs=wanted(M, K),
        rhs=wanted(G, N, K),
        alpha=wanted(G),
        bias=wanted(G, N),
        bias_scale=wanted(M),
        row_scale=wanted(M),
        transpose_rhs=True,
    ),
    "gmm_list": lambda: groups(
        lhs=wanted(M, K),
        rhs=lists(N, K),
        alpha=wanted(G),
        bias=lists(N),
        bias_scale=wanted(M),
        row_scale=wanted(M),
        transpose_rhs=True,
    ),
    "gmm_out": lambda: groups(
        lhs=random(M, K),
        rhs=[random(G, K, N)],
        c=[random(M, N)],
        beta_value=0.5,
        out=[random(M, N)],
    ),
    "tgmm": lambda: groups(lhs=wanted(M, K), rhs=wanted(M, N), alpha=wanted(G), num_groups=G),
    "gmm_activated": lambda: groups(
        lhs=wanted(M, K),
        rhs=lists(2 * N, K),
        alpha=wanted(G),
        bias=lists(2 * N),
        row_scale=wanted(M),
        transpose_rhs=True,
        activation=_structs.CLAMPED_SWIGLU,
        interleaved=True,
        clamp=[1.7, 0.9, 1.0],
        keeps_preact=True,
    ),
    # Only ever called below autograd.
    "gmm_plain": lambda: groups(lhs=random(M, K), rhs=random(G, N, K), transpose_rhs=True),
    "tgmm_plain": lambda: groups(lhs=random(M, K), rhs=random(M, N), num_groups=G),
    "tgmm_out": lambda: groups(
        lhs=random(M, K),
        rhs=random(M, N),
        beta_value=1.0,
        out=[random(K, N) for _ in range(G)],
    ),
    "bias_grad": lambda: groups(dy=wanted(M, N), bias_scale=wanted(M), num_groups=G),
    "bias_grad_out": lambda: groups(
        dy=random(M, N), bias_scale=random(M), accumulate=True, out=[random(G, N)]
    ),
    "bias_scale_grad": lambda: groups(dy=wanted(M, N), bias=lists(N)),
    "grouped_gemm": lambda: {
        "a": [wanted(6)],
        "a_rows": PACKED_SIZES,
        "a_form": [_structs.PACKED, 2, -1, 1, 0, 0, 6],
        "b": [wanted(2, 1, N)],
        "b_form": [_structs.STACKED, 2, 1, N],
        "d_rows": PACKED_SIZES,
        "d_form": [_structs.PACKED, 2, -1, N, 0, 0, 5 * N],
        "alpha": wanted(2),
        "out_dtype": torch.float64,
    },
    "grouped_gemm_out": lambda: {
        **stacked("a", G, 2, K),
        **stacked("b", G, K, N),
        **stacked("d", G, 2, N),
        "beta_value": 1.0,
    },
    "select_experts": lambda: {
        "logits": wanted(M, G),
        "top_k": 2,
        "normalize": True,
        "score": 0,
        "scale": 1.0,
        "num_groups": 1,
        "top_groups": 1,
        "group_score": 1,
        "ids_dtype": torch.int64,
    },
    "select_experts_grad": lambda: {
        "logits": random(M, G),
        "expert_ids": IDS,
        "dweights": random(M, 2),
        "normalize": True,
        "score": 0,
        "scale": 1.0,
    },
    "route": lambda: {"expert_ids": IDS, "num_experts": G, "dtype": torch.int32},
    "permute": lambda: {"x": wanted(M, K), **routed()},
    "combine": lambda: {
        "y": wanted(2 * M, K),
        "weights": wanted(M, 2),
        "shared": wanted(M, K),
        "residual": wanted(M, K),
        **routed(),
    },
    "combine_grad": lambda: {
        "dout": wanted(M, K),
        "weights": wanted(M, 2),
        "y": wanted(2 * M, K),
        "dy_dtype": torch.float64,
        "dweights_dtype": torch.float64,
        **routed(),
    },
    "moe_mlp": lambda: {**experts(wanted), "shared": wanted(M, K), "keeps_preact": True},
    "moe_mlp_grad": lambda: {
        **experts(random),
        "preact": random(2 * M, 2 * N),
        "dout": random(M, K),
        "wanted": [True] * 4 + [False] * 2,
    },
    "moe_mlp_grad_into": lambda: {
        **experts(random),
        "preact": random(2 * M, 2 * N),
        "dout": random(M, K),
        "dw_beta": 1.0,
        "phase": 0,
        "dx": [random(M, K)],
        "dweights": [random(M, 2)],
        "dw13": [random(G, 2 * N, K)],
        "dw2": [random(G, K, N)],
        **{name: [] for name in ("dbias13", "dbias2", "d_preact", "activated")},
    },
    "amax": lambda: {"x": torch.randn(M, K), "group_sizes": SIZES, "mode": ROW},
    "weighted_activate_grad": lambda: {
        "preact": random(M, 2 * N),
        "grad": random(M, N),
        "row_scale": random(M),
        "activation": _structs.SWIGLU,
        "wants_row_dot": True,
    },
    "check": lambda: {"like": random(1)},
}
ENDS = {"group_sizes": torch.tensor([3, 3, 7]), "ends": True}


def check(name, **others):
    check_call(name, {**CALLS[name](), **others})


def check_call(name, given, **options):
    operator = Operator(name)
    arguments = {**operator.defaults, **given}
    opcheck(operator.overload, tuple(arguments[name] for name in operator.names), **options)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    check(name)


@pytest.mark.parametrize("name", [name for name in CALLS if "ends" in Operator(name).names])
def test_opcheck_with_ends(name):
    check(name, **ENDS)


def indexed():
    rows = routed()
    return {"lhs_rows": rows["source_row"], "slot_row": rows["slot_row"]}


@pytest.mark.parametrize("name", ["gmm", "gmm_list", "gmm_activated", "tgmm"])
def test_opcheck_with_rows_by_index(name):
    of_slots = {"row_scale": wanted(2 * M), "bias_scale": wanted(2 * M), "rhs": wanted(2 * M, N)}
    given = {**CALLS[name](), **indexed()}
    replaced = ["rhs"] if name == "tgmm" else ["row_scale", "bias_scale"]
    check_call(name, {**given, **{each: of_slots[each] for each in replaced}})


def fp8(*shape):
    return random(*shape).to(torch.float8_e4m3fn)


ROW = _structs.SCALE_MODES["row"]
TENSOR = _structs.SCALE_MODES["tensor"]
ONE = {"lhs_scales": torch.ones(1), "lhs_mode": TENSOR, "rhs_scales": torch.ones(1), "rhs_mode": TENSOR}
SCALED_CALLS = {
    # One group: room that no group fills would hold what it held.
    "quantize": lambda: dict(
        group_sizes=torch.tensor([M]),
        x=torch.randn(M, K),
        dtype=torch.float8_e4m3fn,
        scale_dtype=torch.float32,
        mode=ROW,
        wants_rows=True,
        wants_columns=True,
    ),
    "dequantize": lambda: groups(
        x=fp8(M, K), scales=torch.rand(M), mode=ROW, out_dtype=torch.bfloat16
    ),
    "gmm": lambda: groups(
        lhs=fp8(M, K),
        rhs=fp8(G, K, N),
        lhs_scales=torch.rand(M),
        lhs_mode=ROW,
        rhs_scales=torch.rand(G, N),
        rhs_mode=ROW,
    ),
    "gmm_list": lambda: groups(
        lhs=fp8(M, K),
        rhs=[fp8(K, N) for _ in range(G)],
        lhs_scales=torch.rand(M),
        lhs_mode=ROW,
        rhs_scales=[torch.rand(N) for _ in range(G)],
        rhs_mode=ROW,
    ),
    "tgmm": lambda: groups(lhs=fp8(K, 128), rhs=fp8(M, N), num_groups=G, lhs_columns=True, **ONE),
    "grouped_gemm": lambda: {
        "a": [fp8(G, 2, K)],
        "a_form": [_structs.STACKED, G, 2, K],
        "a_scales": [torch.rand(G, 2)],
        "a_mode": ROW,
        "b": [fp8(G, K, N)],
        "b_form": [_structs.STACKED, G, K, N],
        "b_scales": [torch.rand(G)],
        "b_mode": TENSOR,
        "d_form": [_structs.STACKED, G, 2, N],
        "out_dtype": torch.bfloat16,
    },
}


@pytest.mark.parametrize("name", SCALED_CALLS)
def test_opcheck_with_scales(name):
    # Not test_schema: it compares inputs by allclose, which torch has not for FP8.
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    check_call(name, SCALED_CALLS[name](), test_utils=utils)


def test_every_operator_is_checked():
    prefix = "cadre::"
    names = {
        schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith(prefix)
    }
    assert {name.removeprefix(prefix) for name in names} == set(CALLS) | set(SCALED_CALLS)


def test_a_call_leaves_out_what_has_a_default_and_nothing_else():
    lhs, rhs = random(M, K), random(G, K, N)
    whole = torch.ops.cadre.gmm(
        *(lhs, rhs, SIZES, False, None, None, None, None, None, None, None, 0, False, 1.0, 0, 0),
        *(None, 0, None, 0, False, 0, None),
    )
    assert torch.equal(_operators.gmm.call(lhs=lhs, rhs=rhs, group_sizes=SIZES), whole)
    assert torch.equal(_operators.gmm.call_plain(lhs=lhs, rhs=rhs, group_sizes=SIZES), whole)
    with pytest.raises(TypeError, match="rhs"):
        _operators.gmm.call(lhs=lhs, group_sizes=SIZES)
    with pytest.raises(TypeError, match="num_groups"):
        _operators.tgmm.call(lhs=lhs, rhs=lhs, group_sizes=SIZES)
    with pytest.raises(TypeError, match="positional"):
        _operators.gmm.call(lhs, rhs, SIZES)


@pytest.mark.parametrize("operator", [_operators.gmm, _operators.tgmm], ids=lambda each: each.op)
def test_a_plain_form_has_arguments_of_its_operator_with_their_types(operator):
    types = {each.name: str(each.type) for each in operator.overload._schema.arguments}
    plain = {each.name: str(each.type) for each in operator.plain.overload._schema.arguments}
    assert plain.items() <= types.items()
    assert set(types) - set(plain) <= set(operator.defaults)


def test_ends_are_sizes_in_every_op():
    lhs, rhs, other, scale = wanted(M, K), wanted(G, K, N), wanted(M, N), wanted(M)
    sizes = {"group_sizes": SIZES, "group_offset": 0}
    for call in (
        lambda **groups: _operators.gmm.call(lhs=lhs, rhs=rhs, row_scale=scale, **groups),
        lambda **groups: _operators.gmm_list.call(lhs=lhs, rhs=list(rhs), **groups),
        lambda **groups: _operators.tgmm.call(lhs=lhs, rhs=other, num_groups=G, **groups),
        lambda **groups: _operators.bias_grad.call(
            dy=other, bias_scale=scale, num_groups=G, **groups
        ),
        lambda **groups: _operators.bias_scale_grad.call(dy=other, bias=list(rhs[:, 0]), **groups),
    ):
        results = [call(**sizes), call(**{**sizes, **ENDS})]
        assert torch.equal(*results)
        inputs = [each for each in (lhs, rhs, other, scale)]
        gradients = [
            torch.autograd.grad(result.sum(), inputs, allow_unused=True) for result in results
        ]
        for first, second in zip(*gradients, strict=True):
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first, second)
