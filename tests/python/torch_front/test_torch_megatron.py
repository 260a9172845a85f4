"""cadre.torch.integrations.megatron: without Megatron-Core the layers and what they refuse; with it (requirements/megatron.txt)
its own TEGroupedMLP over them, beside its SequentialMLP."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from cadre.torch.integrations import megatron as integration

try:
    import megatron.core
except ImportError:
    megatron = None
E, H, FFN = 4, 12, 10
HERE = Path(__file__).resolve()


class Ranks:
    """Stands for a ProcessGroup: its size and this process's rank in it."""

    def __init__(self, size, rank=0):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


def config(**changed):
    """What the layers read of Megatron's TransformerConfig."""
    fields = {
        "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1, "tensor_model_parallel_size": 1,
        "sequence_parallel": False, "gradient_accumulation_fusion": False, "perform_initialization": True,
        "params_dtype": torch.float32, "use_cpu_initialization": True, "delay_wgrad_compute": False,
        "disable_parameter_transpose_cache": False, "fp8": None, "fp4": None,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changed})


def column(tp_size=1, bias=False, skip_bias_add=False, kind=integration.ColumnParallelGroupedLinear, **changed):
    groups = SimpleNamespace(expt_tp=Ranks(tp_size), ep=Ranks(1), expt_dp=Ranks(1))
    return kind(
        E, H, 2 * FFN, config=config(**changed), init_method=torch.nn.init.normal_, bias=bias,
        skip_bias_add=skip_bias_add, is_expert=True, tp_comm_buffer_name="fc1", pg_collection=groups,
    )  # fmt: skip


def test_a_call_gives_the_product_and_the_bias_that_was_not_added():
    x, splits = torch.randn(9, H), [3, 0, 4, 2]
    layer = column(bias=True)
    with torch.no_grad():
        for bias in layer.biases():
            bias.normal_()
    out, none = layer(x, splits)
    parts = zip(x.split(splits), layer.weights(), layer.biases(), strict=True)
    torch.testing.assert_close(out, torch.cat([F.linear(*each) for each in parts]))
    assert none is None and [each.shape for each in layer.weights()] == [(2 * FFN, H)] * E
    apart = column(bias=True, skip_bias_add=True)
    apart.load_state_dict(layer.state_dict())
    product, biases = apart(x, torch.tensor(splits))
    added = torch.repeat_interleave(torch.stack(biases), torch.tensor(splits), 0)
    torch.testing.assert_close(product + added, out)


@pytest.mark.parametrize("kind, shape, dim", [("Column", (FFN, H), 0), ("Row", (2 * FFN, H // 2), 1)])
def test_a_tensor_parallel_rank_holds_its_part_and_marks_it(kind, shape, dim):
    kind = getattr(integration, f"{kind}ParallelGroupedLinear")
    layer = column(2, kind=kind, bias=True, expert_model_parallel_size=2, sequence_parallel=True)
    for weight in layer.weights():
        assert weight.shape == shape and weight.tensor_model_parallel and weight.partition_dim == dim
    assert all(bias.tensor_model_parallel == (dim == 0) for bias in layer.biases())
    assert not any(parameter.allreduce for parameter in layer.parameters())
    assert all(parameter.allreduce for parameter in column().parameters())


def test_the_parts_of_tensor_parallel_ranks_add_up_to_the_whole():
    """Column, then row, with nothing between them but what each rank computes alone: Megatron adds the parts up."""
    whole = column(), column(kind=integration.RowParallelGroupedLinear)
    ranks = [(column(2), column(2, kind=integration.RowParallelGroupedLinear)) for _ in range(2)]
    with torch.no_grad():
        for layers in zip(whole, *ranks, strict=True):
            dim = layers[0]._partition_dim
            for weights in zip(*(each.weights() for each in layers), strict=True):
                for part, own in zip(weights[0].chunk(2, dim), weights[1:], strict=True):
                    own.copy_(part)
    x, splits = torch.randn(9, H), [3, 0, 4, 2]
    rows = torch.randn(9, H)
    columns = torch.cat([each[0](x, splits)[0] for each in ranks], -1)
    torch.testing.assert_close(columns, whole[0](x, splits)[0])
    parts = [each[1](part, splits)[0] for each, part in zip(ranks, rows.chunk(2, -1), strict=True)]
    torch.testing.assert_close(sum(parts), whole[1](rows, splits)[0])


def test_weight_gradients_go_to_main_grad_when_backward_dw_is_called():
    layer = column(gradient_accumulation_fusion=True, delay_wgrad_compute=True)
    plain = column()
    plain.load_state_dict(layer.state_dict())
    for weight in layer.weights():
        weight.main_grad = torch.full(weight.shape, float("nan"))
    x, dy, splits = torch.randn(9, H), torch.randn(9, 2 * FFN), [3, 0, 4, 2]
    for _ in range(2):  # the first replaces what main_grad holds, as Megatron's first microbatch does
        layer(x.requires_grad_(), splits)[0].backward(dy)
        layer.backward_dw()
    plain(x, splits)[0].backward(dy)
    for ours, weight in zip(layer.weights(), plain.weights(), strict=True):
        torch.testing.assert_close(ours.main_grad, 2 * weight.grad)
    assert not layer.pending_wgrads


@pytest.mark.parametrize("single", [False, True])
def test_a_checkpoint_of_transformer_engine_loads_and_theirs_loads_ours(single):
    layer = column(moe_single_grouped_weight=single)
    state = layer.state_dict()
    assert state["_extra_state"].numel() == 0 and state["_extra_state"].dtype == torch.uint8
    # A distributed checkpoint brings one for each expert.
    state |= {f"_extra_state{i}": torch.empty(0, dtype=torch.uint8) for i in range(1, E)}
    other = column(moe_single_grouped_weight=not single)
    other.load_state_dict(state)
    x = torch.randn(9, H)
    assert torch.equal(layer(x, [3, 0, 4, 2])[0], other(x, [3, 0, 4, 2])[0])


@pytest.mark.parametrize(
    "field, value",
    [("fp8", "hybrid"), ("fp4", "e2m1"), ("quant_recipe", "recipe"), ("expert_gtp_weight_remat_size", 2),
     ("use_transformer_engine_op_fuser", True)],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"integrations.megatron: config.{field} = {value!r}, expected"):
        column(**{field: value})


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="output_size = 20, expected a multiple of the 3 ranks of pg_coll"):
        column(3)
    with pytest.raises(ValueError, match="is_expert = False, expected True"):
        integration.RowParallelGroupedLinear(
            E, H, FFN, config=config(), init_method=None, bias=False, skip_bias_add=True, is_expert=False
        )


@pytest.mark.skipif(megatron is not None, reason="megatron-core is installed")
def test_without_megatron_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="megatron-core is not installed: pip install megatron-core"):
        integration.experts()


needs_megatron = pytest.mark.skipif(
    megatron is None, reason='megatron-core is not installed; to run this: make test FRONTS="torch jax megatron"'
)


@needs_megatron
def test_in_megatron_s_own_layer_it_computes_what_its_other_experts_compute():
    run_in_megatron("compare")


@needs_megatron
def test_checkpoints_have_the_names_of_megatron_s_other_experts():
    run_in_megatron("checkpoint")


@needs_megatron
def test_the_example_runs():
    example = HERE.parents[3] / "examples/12_megatron.py"
    done = subprocess.run([sys.executable, str(example)], check=False, capture_output=True, text=True)
    assert "the same gradients as SequentialMLP: True" in done.stdout, done.stderr[-3000:]


def run_in_megatron(what):
    """In a process of its own: Megatron keeps its groups in globals."""
    code = f"import sys; sys.path.insert(0, {str(HERE.parent)!r}); import megatron_cases; megatron_cases.{what}()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    assert done.stdout.endswith("held\n"), done.stdout[-500:] + done.stderr[-3000:]
