"""cadre.torch.expert_parallel on two and four processes over gloo. All of it takes minutes: --slow, as make test-all has it."""

import time

import cadre.torch.expert_parallel as ep
import pytest
from expert_parallel_ranks import APART, cases, run_ranks

SUITE = [name for name in cases() if name not in APART]
#: What every change is checked with.
SMOKE = ["symmetric_memory_is_refused_by_name_where_it_is_missing", "what_deep_ep_cannot_take_is_named",
         "rows_of_any_type_travel_as_bytes", "layers_that_differ_are_named_on_every_rank",
         "same_bits_with_uneven_and_empty_ranks", "choices_beyond_the_capacity_are_dropped_and_counted",
         "ranks_that_differ_are_named_on_every_rank", "a_model_is_sharded_in_one_line",
         "a_list_of_weights_and_a_wrong_residual_end_the_call_of_all", "a_rank_that_makes_another_layer_is_named"]  # fmt: skip


def expect_all(ranks, names, folder):
    failures, ended = run_ranks(ranks, names, folder)
    told = [f"{name}, rank {rank}: {text}" for name, by in failures.items() for rank, text in by.items()]
    assert not ended and not told, "\n".join([*ended, *told])


def test_two_ranks_keep_the_promises(tmp_path):
    expect_all(2, SMOKE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_promises_on(ranks, tmp_path):
    expect_all(ranks, SUITE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("saving, loading", [(2, 4), (4, 2)])
def test_a_checkpoint_loads_into_processes_of_another_number(saving, loading, tmp_path):
    for ranks, name in ((saving, "save_a_checkpoint"), (loading, "load_the_checkpoint_of_other_ranks")):
        folder = tmp_path / name
        folder.mkdir()
        expect_all(ranks, [name], folder)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_when_a_rank_raises_the_others_end_with_an_error(ranks, tmp_path):
    started = time.monotonic()
    failures, ended = run_ranks(ranks, ["a_rank_that_raises"], tmp_path, limit_s=60)
    assert not ended, "a rank hangs"
    found = failures["a_rank_that_raises"]
    assert "this rank has had enough" in found[1] and all(found.get(rank) for rank in range(ranks)), found
    assert time.monotonic() - started < 60


def test_a_group_that_is_not_initialised_is_named():
    message = "ExpertParallelMLP: group = None, expected an initialised process group: call torch"
    with pytest.raises(ValueError, match=message):
        ep.ExpertParallelMLP(8, 12, 10)
