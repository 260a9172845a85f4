"""cadre.torch.integrations.torchtitan: torchtitan's experts over cadre beside its own (requirements/torchtitan.txt); without
torchtitan the same products in the form that it asks for, and what to install."""

import subprocess
import sys
from pathlib import Path

import cadre.torch
import pytest
import torch
import torch.nn.functional as F

try:
    import torchtitan
except ImportError:
    torchtitan = None
E, DIM, HIDDEN, EXAMPLE = 4, 24, 16, Path(__file__).resolve().parents[3] / "examples/13_torchtitan.py"
needs_torchtitan = pytest.mark.skipif(
    torchtitan is None, reason='torchtitan is not installed; to run this: make test FRONTS="torch jax torchtitan"'
)


def test_gate_and_up_apart_are_read_as_they_lie():
    """The calls of GroupedExperts.forward: transposed views of w1 and w3 [e, f, d] and w2 [e, d, f], ends of the groups."""
    shapes = ((E, HIDDEN, DIM), (E, HIDDEN, DIM), (E, DIM, HIDDEN))
    w1, w3, w2 = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    x, sizes = torch.randn(9, DIM, dtype=torch.float64), [3, 0, 4, 1]
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32)

    def product(rows, weight):
        return cadre.torch.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)

    out = product(F.silu(product(x, w1)) * product(x, w3), w2)
    parts = zip(x[:8].split(sizes), w1, w3, w2, strict=True)
    expected = torch.cat([F.linear(F.silu(F.linear(rows, a)) * F.linear(rows, b), c) for rows, a, b, c in parts])
    torch.testing.assert_close(out[:8], expected)
    assert (out[8:] == 0).all()
    dout = torch.randn(9, DIM, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, (w1, w3, w2), dy) for y, dy in ((out, dout), (expected, dout[:8])))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted)


def test_no_op_forward_or_backward_copies_gate_up_or_down():
    """The profiler sees what an operator calls inside, too: nothing is joined, packed or made contiguous by torch."""
    shapes = ((E, HIDDEN, DIM), (E, HIDDEN, DIM), (E, DIM, HIDDEN))
    w1, w3, w2 = (torch.randn(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    x = torch.randn(9, DIM, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([3, 3, 7, 9], dtype=torch.int32)

    def product(rows, weight):
        return cadre.torch.grouped_mm(rows, weight.transpose(-2, -1), offs=ends)

    with torch.profiler.profile() as profile:
        out = product(F.silu(product(x, w1)) * product(x, w3), w2)
        torch.autograd.grad(out, (x, w1, w3, w2), torch.ones_like(out))
    called = {event.name for event in profile.events()}
    assert {"cadre::gmm_plain", "cadre::tgmm_plain"} <= called, called
    copies = {"aten::cat", "aten::stack", "aten::clone", "aten::contiguous", "aten::copy_", "aten::_to_copy"}
    assert not copies & called, copies & called


@pytest.mark.skipif(torchtitan is not None, reason="torchtitan is installed")
def test_without_torchtitan_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="no torchtitan with overrides .*: pip install 'torchtitan>=0.3'"):
        import cadre.torch.integrations.torchtitan  # noqa: F401


def pair(kind, **options):
    """Experts of torchtitan's, and those that the override makes of the same configuration, with the same parameters."""
    from cadre.torch.integrations import torchtitan as integration

    config = kind.Config(dim=DIM, hidden_dim=HIDDEN, num_experts=E, **options)
    theirs, ours = config.build(), integration.grouped_experts(config).build()
    assert isinstance(ours, kind) and type(ours) is not kind
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def results(experts, x, sizes, dout):
    x = x.clone().requires_grad_()
    out = experts(x, sizes)
    experts.zero_grad()
    out.backward(dout)
    return [out.detach(), x.grad, *(each.grad for each in experts.parameters())]


@needs_torchtitan
@pytest.mark.parametrize("name", ["GroupedExperts", "GptOssGroupedExperts"])
def test_results_and_gradients_are_those_of_torchtitan(name):
    from torchtitan.models.common.moe import GroupedExperts
    from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

    theirs, ours = pair(GroupedExperts if name == "GroupedExperts" else GptOssGroupedExperts)
    x, dout, sizes = torch.randn(8, DIM), torch.randn(8, DIM), torch.tensor([3, 0, 4, 1])
    for found, expected in zip(results(ours, x, sizes, dout), results(theirs, x, sizes, dout), strict=True):
        # torchtitan computes in bf16; its CPU kernel adds in another order.
        bound = 4 * torch.finfo(torch.bfloat16).eps * expected.abs().max()
        assert (found - expected).abs().max() <= bound


@needs_torchtitan
def test_the_override_replaces_experts_wherever_they_are():
    from cadre.torch.integrations.torchtitan import grouped_experts
    from torchtitan.config import apply_overrides
    from torchtitan.config.override import OverrideConfig
    from torchtitan.models.common.moe import GroupedExperts, RoutedExperts
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

    inner = GroupedExperts.Config(dim=DIM, hidden_dim=HIDDEN, num_experts=E)
    dispatcher = LocalTokenDispatcher.Config(num_experts=E, top_k=2)
    config = RoutedExperts.Config(inner_experts=inner, token_dispatcher=dispatcher)
    imports = [f"{grouped_experts.__module__}.{grouped_experts.__name__}"]
    (line,) = apply_overrides(OverrideConfig(imports=imports), config)
    assert "CadreGroupedExperts" in line
    assert type(config.build().inner_experts).__name__ == "CadreGroupedExperts"
    assert grouped_experts(config.inner_experts) is config.inner_experts


@needs_torchtitan
def test_experts_with_products_of_their_own_are_refused():
    from cadre.torch.integrations.torchtitan import over_cadre
    from torchtitan.models.common.moe import GroupedExperts

    class Quantised(GroupedExperts):
        def _grouped_mm(self, *, A, B_t, offs):
            raise AssertionError("not called")

    with pytest.raises(ValueError, match="torchtitan: experts = .*Quantised, expected experts whose products"):
        over_cadre(Quantised)


@needs_torchtitan
def test_the_example_runs():
    done = subprocess.run([sys.executable, str(EXAMPLE)], check=False, capture_output=True, text=True)
    assert "CadreGroupedExperts" in done.stdout and "loss" in done.stdout, done.stderr[-3000:]
