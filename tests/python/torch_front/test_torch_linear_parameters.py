"""GroupedLinear's parameters: how they start, shards of a tensor-parallel group, state dicts of either form."""

import copy

import cadre.torch
import pytest
import torch
from linear_oracle import FORM_NAMES, FORMS, SPLITS, G, K, M, N, make
from torch_oracle import equal, random

every_form = pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)


@every_form
@pytest.mark.parametrize("other", FORMS, ids=[f"from {name}" for name in FORM_NAMES])
@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
def test_state_dicts_of_every_form_load_into_every_form(form, other, nested):
    source, target = make(form=other), make(form=form)
    x = random(M, K)
    expected = source(x, SPLITS)
    state = torch.nn.Sequential(source).state_dict() if nested else source.state_dict()
    # As Transformer Engine saves a layer without FP8.
    state["0._extra_state" if nested else "_extra_state"] = torch.empty(0, dtype=torch.uint8)
    before = copy.deepcopy(state)
    (torch.nn.Sequential(target) if nested else target).load_state_dict(state)
    assert equal(target(x, SPLITS), expected)
    assert list(state) == list(before), "the caller's dict was changed"


@pytest.mark.parametrize("assign", [False, True])
def test_loading_keeps_parameters_apart(assign):
    source, target = make(form=(True, True)), make()
    target.load_state_dict(source.state_dict(), assign=assign)
    with torch.no_grad():
        target.weight0.zero_()
    assert equal(target.weight1, source.weight[1])
    assert all(isinstance(each, torch.nn.Parameter) for each in target.parameters())


def test_state_dict_has_the_names_of_transformer_engine():
    layer = make()
    assert list(layer.state_dict()) == ["weight0", "weight1", "weight2", "bias0", "bias1", "bias2"]
    shapes = {name: list(each.shape) for name, each in make(form=(True, True)).state_dict().items()}
    assert shapes == {"weight": [G, N, K], "bias": [G, N]}


@pytest.mark.parametrize("form", [(False, False), (True, True)], ids=["listed", "single"])
def test_what_does_not_fit_is_reported_by_torch(form):
    listed, single = make().state_dict(), make(form=(True, True)).state_dict()
    for state, message in (
        ({**listed, "weight1": torch.zeros(1)}, "size mismatch|weight1.shape"),
        ({name: each for name, each in listed.items() if name != "weight1"}, "Missing key"),
        ({**single, "weight": random(G + 1, N, K)}, "size mismatch|weight.shape"),
        ({**listed, **single}, "Unexpected key"),
        ({**listed, "_extra_state": torch.ones(3, dtype=torch.uint8)}, "Unexpected key"),
    ):
        with pytest.raises(RuntimeError, match=message):
            make(form=form).load_state_dict(state)


OTHER_FORM = {
    "a matrix of another shape": (True, "weight1", torch.zeros(N, K + 1), [N, K + 1], [N, K]),
    "a bias of another shape": (True, "bias2", torch.zeros(N, 1), [N, 1], [N]),
    "a scalar": (False, "weight", torch.tensor(1.0), [], [G, N, K]),
    "another number of experts": (False, "bias", torch.zeros(G + 1, N), [G + 1, N], [G, N]),
}


@pytest.mark.parametrize("case", OTHER_FORM)
def test_an_entry_of_the_other_form_that_does_not_fit_is_named_alone(case):
    single, name, value, shape, expected = OTHER_FORM[case]
    layer = torch.nn.Sequential(make(form=(single, single)))
    other = torch.nn.Sequential(make(form=(not single, not single)))
    state = {**other.state_dict(), f"0.{name}": value}
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError) as raised:
        layer.load_state_dict(state)
    lines = str(raised.value).splitlines()
    assert lines[1:] == [f"\tGroupedLinear: 0.{name}.shape = {shape}, expected {expected}"]
    unchanged = {key for key in before if name.rstrip("012") in key}
    assert all(equal(layer.state_dict()[key], before[key]) for key in unchanged)


def test_an_entry_of_the_other_form_that_is_no_tensor_is_named():
    state = {**make().state_dict(), "weight1": "x"}
    with pytest.raises(RuntimeError, match="GroupedLinear: weight1 is a str, expected a torch"):
        make(form=(True, True)).load_state_dict(state)


@every_form
def test_init_runs_in_the_tracker_and_again_on_reset(form):
    entered = []

    class Tracker:
        def fork(self, name="default"):
            entered.append(name)
            return torch.random.fork_rng()

    layer = make(
        form=form,
        init_method=lambda weight: weight.fill_(7),
        get_rng_state_tracker=Tracker,
        rng_tracker_name="experts",
    )
    assert entered == ["experts"]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(3)
    layer.reset_parameters()
    assert entered == ["experts"] * 2
    assert all((weight == 7).all() for weight in layer.weights())
    assert all((bias == 0).all() for bias in layer.biases())


def test_init_sees_the_weight_of_one_expert():
    shapes = []
    make(form=(True, False), init_method=lambda weight: shapes.append(list(weight.shape)))
    assert shapes == [[N, K]] * G


def test_meta_parameters_start_when_they_get_memory():
    layer = make("meta", init_method=lambda weight: weight.fill_(7))
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert (layer.weight0 == 7).all() and (layer.bias0 == 0).all()


# mode, sequence_parallel -> [in, out] of the shard that each of two ranks holds
SHARDS = {("column", True): (K, N // 2), ("row", False): (K // 2, N), (None, False): (K, N)}


@pytest.mark.parametrize("mode", SHARDS, ids=str)
@pytest.mark.parametrize("single", [False, True])
def test_tensor_parallelism_divides_the_features(mode, single):
    parallel_mode, sequence_parallel = mode
    layer = make(
        form=(single, False),
        bias=False,
        tp_size=2,
        parallel_mode=parallel_mode,
        sequence_parallel=sequence_parallel,
    )
    k, n = SHARDS[mode]
    assert (layer.in_features, layer.out_features) == (k, n)
    assert layer.sequence_parallel == sequence_parallel
    for weight in layer.weights():
        assert list(weight.shape) == ([G, n, k] if single else [n, k])
        assert weight.tensor_model_parallel and weight.partition_stride == 1
        assert weight.partition_dim == (1 if parallel_mode == "row" else 0)
    x = random(M, k)
    assert layer(x, SPLITS).shape == (M, n)


@pytest.mark.parametrize("parallel_mode", ["column", "row"])
def test_two_shards_make_the_whole(parallel_mode):
    whole, x = make(bias=False), random(M, K)
    parts = []
    for rank in range(2):
        shard = make(bias=False, tp_size=2, parallel_mode=parallel_mode)
        dim = 0 if parallel_mode == "column" else 1
        with torch.no_grad():
            for mine, all_of_it in zip(shard.weights(), whole.weights(), strict=True):
                mine.copy_(all_of_it.chunk(2, dim)[rank])
        parts.append(shard(x if dim == 0 else x.chunk(2, 1)[rank], SPLITS))
    made = torch.cat(parts, 1) if parallel_mode == "column" else parts[0] + parts[1]
    torch.testing.assert_close(made, whole(x, SPLITS))


@pytest.mark.parametrize("parallel_mode", ["column", "row", None])
def test_modes_of_a_single_rank_change_nothing(parallel_mode):
    layer = make(parallel_mode=parallel_mode, sequence_parallel=True, tp_size=1, ub_name="fc1")
    assert (layer.in_features, layer.out_features) == (K, N)
    assert not layer.sequence_parallel
    assert getattr(layer.bias0, "tensor_model_parallel", False) == (parallel_mode == "column")
    plain = make()
    plain.load_state_dict(layer.state_dict())
    x = random(M, K)
    assert equal(layer(x, SPLITS), plain(x, SPLITS))


def test_the_size_of_a_group_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", {"experts": 3}.__getitem__)
    layer = make(bias=False, tp_group="experts", tp_size=1, parallel_mode="column")
    assert layer.tp_size == 3 and layer.out_features == N // 3


def test_weights_of_delayed_gradients_ask_for_no_hooks_in_backward():
    layer = make(delay_wgrad_compute=True)
    assert all(weight.skip_backward_post_hook for weight in layer.weights())
    assert not any(hasattr(bias, "skip_backward_post_hook") for bias in layer.biases())
    assert not hasattr(make().weight0, "skip_backward_post_hook")


@pytest.mark.parametrize("name", ["dtype", "params_dtype"])
def test_both_names_of_the_dtype(name):
    layer = cadre.torch.GroupedLinear(G, K, N, **{name: torch.bfloat16})
    assert layer.weight0.dtype == layer.bias0.dtype == layer.params_dtype == torch.bfloat16
    assert cadre.torch.GroupedLinear(G, K, N).params_dtype == torch.get_default_dtype()


@pytest.mark.parametrize("use_grouped_tensor", [None, False, True])
def test_what_chooses_a_path_elsewhere_changes_nothing(use_grouped_tensor):
    layer, x = make(), random(M, K)
    other = make(use_grouped_tensor=use_grouped_tensor, save_original_input=True, name="fc1")
    other.load_state_dict(layer.state_dict())
    assert other.name == "fc1" and equal(layer(x, SPLITS), other(x, SPLITS))


REFUSED = {
    "ub_overlap_rs": ({"ub_overlap_rs": True}, ValueError, "ub_overlap_rs = True, expected False"),
    "ub_overlap_ag": ({"ub_overlap_ag": True}, ValueError, "ub_overlap_ag = True, expected False"),
    "bias of a shard": ({"tp_size": 2}, ValueError, "bias = True, expected False for tp_size = 2"),
    "columns": (
        {"tp_size": 4, "bias": False, "parallel_mode": "column"},
        ValueError,
        "out_features = 6, expected a multiple of tp_size = 4",
    ),
    "rows": (
        {"tp_size": 3, "bias": False, "parallel_mode": "row"},
        ValueError,
        "in_features = 4, expected a multiple of tp_size = 3",
    ),
    "mode": ({"parallel_mode": "col"}, ValueError, "parallel_mode = 'col', expected 'row'"),
    "tp_size": ({"tp_size": 0}, ValueError, "tp_size = 0, expected 1 or more"),
    "tp_size of a float": ({"tp_size": 1.0}, TypeError, "tp_size is a float, expected an int"),
    "use_grouped_tensor": ({"use_grouped_tensor": 1}, TypeError, "use_grouped_tensor is an int"),
    "two dtypes": (
        {"dtype": torch.float16, "params_dtype": torch.float64},
        ValueError,
        "dtype = torch.float16, expected params_dtype = torch.float64",
    ),
    "dtype of a name": ({"dtype": "bf16"}, TypeError, "dtype is a str, expected a torch.dtype"),
    "integers": ({"params_dtype": torch.int8}, ValueError, "params_dtype = torch.int8, expected"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_refused(name):
    options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=f"GroupedLinear: {message}"):
        cadre.torch.GroupedLinear(G, K, N, **options)


@pytest.mark.parametrize("sizes", [(0, K, N), (G, 0, N), (G, K, 0), (True, K, N), (G, K, 2.0)])
def test_sizes_are_positive_ints(sizes):
    with pytest.raises((TypeError, ValueError), match="GroupedLinear: (num_gemms|in_f|out_f)"):
        cadre.torch.GroupedLinear(*sizes)
