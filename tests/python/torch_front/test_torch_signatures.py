"""What takes over another package's calls has that package's parameters: names, order and defaults."""

import inspect

import drop_in_signatures as originals
import pytest
from cadre.torch import GroupedLinear
from cadre.torch.compat import grouped_gemm, transformer_engine, transformer_engine_ops

# ours, the original's, and what ours takes beyond it (by keyword only).
FORMS = {
    "grouped_gemm.ops.gmm": (grouped_gemm.ops.gmm, originals.GROUPED_GEMM_OPS_GMM, []),
    "grouped_gemm.backend.gmm": (grouped_gemm.backend.gmm, originals.GROUPED_GEMM_BACKEND_GMM, []),
    "GroupedLinear": (GroupedLinear, originals.TE_GROUPED_LINEAR, ["dtype", "strict_splits", "recipe"]),
    "GroupedLinear.forward": (
        GroupedLinear.forward,
        originals.TE_GROUPED_LINEAR_FORWARD,
        ["scales"],
    ),
    "moe_permute": (transformer_engine.moe_permute, originals.TE_MOE_PERMUTE, []),
    "moe_permute_with_probs": (
        transformer_engine.moe_permute_with_probs,
        originals.TE_MOE_PERMUTE_WITH_PROBS,
        [],
    ),
    "moe_unpermute": (transformer_engine.moe_unpermute, originals.TE_MOE_UNPERMUTE, []),
    "general_grouped_gemm": (
        transformer_engine.general_grouped_gemm,
        originals.TE_GENERAL_GROUPED_GEMM,
        [],
    ),
    "general_grouped_gemm_for_grouped_tensor": (
        transformer_engine.general_grouped_gemm_for_grouped_tensor,
        originals.TE_GENERAL_GROUPED_GEMM_FOR_GROUPED_TENSOR,
        [],
    ),
    "te.ops.GroupedLinear": (
        transformer_engine_ops.GroupedLinear,
        originals.TE_OPS_GROUPED_LINEAR,
        [],
    ),
}


def parameters_of(function):
    """In the form of drop_in_signatures."""
    found, keyword_only = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            found.append("*")
            keyword_only = True
        default = parameter.default
        found.append(
            (parameter.name, originals.REQUIRED if default is parameter.empty else default)
        )
    return found


@pytest.mark.parametrize("name", FORMS)
def test_parameters_are_the_originals(name):
    function, original, beyond = FORMS[name]
    ours = parameters_of(function)
    assert ours[: len(original)] == original
    rest = ours[len(original) :]
    assert [entry[0] for entry in rest if entry != "*"] == beyond
    assert not rest or rest[0] == "*"


def test_te_ops_takes_its_inputs_and_buffers():
    forward = inspect.signature(transformer_engine_ops.GroupedLinear.forward)
    _, first, extra, *buffers = forward.parameters.values()
    assert (first.name, extra.kind) == ("input", extra.VAR_POSITIONAL)
    assert all(each.kind is each.KEYWORD_ONLY for each in buffers)
    assert [each.name for each in buffers] == originals.TE_OPS_GROUPED_LINEAR_BUFFERS


@pytest.mark.parametrize("method", originals.TE_METHODS)
def test_methods_that_megatron_calls_are_there(method):
    assert callable(getattr(GroupedLinear, method))
