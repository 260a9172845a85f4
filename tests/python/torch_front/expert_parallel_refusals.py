"""A fault of one rank alone, before and after a call that all agreed about: an error on every rank, and a next call that is
right on all of them. Cases for expert_parallel_ranks.py."""

import contextlib
import re

import torch
from cadre.torch import GroupedMLP
from cadre.torch import expert_parallel as ep
from cadre.torch.expert_parallel._unread import Unread
from expert_parallel_cases import E, H, I, TOKENS, TOP_K, call, exchanges, layers
from expert_parallel_stand_ins import OverGloo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

CASES = {}
ODD = 1  #: the rank with the fault


def case(function):
    CASES[function.__name__] = function
    return function


def expect(here, call, kind, message, others=None):
    """The faulty rank raises its own error, the others (kind, message) of `others`, or that it has refused."""
    if here.rank != ODD:
        kind, message = others or (RuntimeError, f"rank {ODD} refused its arguments")
    try:
        call()
    except kind as error:
        assert re.search(message, str(error)), f"{error}\nexpected {message}"
        return
    raise AssertionError(f"nothing was raised, expected {message}")


def faults():
    """name -> (changed arguments of a call, error of the rank that has them, that of the others or None)."""
    of_rank = f"on rank {ODD} ="
    differs = {name: (ValueError, rf"{name} {of_rank}") for name in (r"x.shape\[1\]", "x.dtype", r"expert_ids.shape\[1\]")}
    return {
        "weights as a list": ({"weights": [[0.5] * TOP_K] * TOKENS}, (TypeError, "weights is a list"), None),
        "weights of another shape": ({"weights": torch.ones(TOKENS)}, (ValueError, r"weights.shape = \[17\], exp"), None),
        "whole weights": ({"weights": torch.ones(TOKENS, TOP_K).int()}, (TypeError, "weights.dtype = torch.int32"), None),
        "ids that are no ints": ({"expert_ids": torch.ones(TOKENS, TOP_K)}, (TypeError, "expert_ids.dtype = torch.float32"), None),
        "ids on no device": ({"expert_ids": torch.zeros(TOKENS, TOP_K, device="meta").int()}, (ValueError, "expert_ids.device"), None),
        "ids of other tokens": ({"expert_ids": torch.ones(3, TOP_K).int()}, (ValueError, r"expert_ids.shape\[0\] = 3, exp"), None),
        "x as a list": ({"x": [1]}, (TypeError, "x is a list"), None),
        "x of one dimension": ({"x": torch.ones(TOKENS)}, (ValueError, r"x.shape = \[17\], exp"), None),
        "x on no device": ({"x": torch.ones(TOKENS, H, device="meta")}, (ValueError, "x.device = meta, exp"), None),
        "a narrow residual": ({"residual": torch.ones(TOKENS, H - 1)}, (ValueError, r"residual.shape = \[17, 11\], exp.* \[17, 12\]"), None),
        "a residual as a list": ({"residual": [1]}, (TypeError, "residual is a list"), None),
        "a short shared": ({"shared": torch.ones(TOKENS - 1, H)}, (ValueError, r"shared.shape = \[16, 12\], exp"), None),
        "a shared number": ({"shared": 1.0}, (TypeError, "shared is a float, expected a torch.Tensor, a function or"), None),
        "a whole residual": ({"residual": torch.ones(TOKENS, H).int()}, (TypeError, "residual.dtype = torch.int32"), None),
        "x of another width": ({"x": torch.ones(TOKENS, H + 1)}, *[differs[r"x.shape\[1\]"]] * 2),
        "x of another type": ({"x": torch.ones(TOKENS, H).double()}, *[differs["x.dtype"]] * 2),
        "another top_k": ({"expert_ids": torch.ones(TOKENS, 2).int(), "weights": torch.ones(TOKENS, 2)}, *[differs[r"expert_ids.shape\[1\]"]] * 2),
    }  # fmt: skip


def check_call(here, spread, whole):
    """A forward pass against that of one process."""
    x, ids, weights, _, mine = call(here)
    with torch.no_grad():
        out = spread(x[mine], ids[mine], weights[mine])
        assert torch.equal(out, whole(x, ids, weights)[mine])


def faulty(here, spread, changed, inputs):
    x, ids, weights, _, mine = inputs
    arguments = {"x": x[mine], "expert_ids": ids[mine], "weights": weights[mine]}
    arguments |= changed if here.rank == ODD else {}
    return spread(**arguments)


def made(here):
    return *exchanges(here), {"exchange": OverGloo(E, TOP_K * TOKENS)}


def check_faults(here, names):
    found = faults()
    for chunks in (1, 2):
        for is_agreed in (False, True):
            for name in names or found:
                changed, own, others = found[name]
                for exchange in made(here):
                    spread, whole, _ = layers(here, chunks=chunks, **exchange)
                    if is_agreed:
                        check_call(here, spread, whole)
                    expect(here, lambda: faulty(here, spread, changed, call(here)), *own, others)
                    check_call(here, spread, whole)


@case
def a_fault_of_one_rank_is_told_to_all_and_the_next_call_is_right(here):
    check_faults(here, None)


@case
def a_list_of_weights_and_a_wrong_residual_end_the_call_of_all(here):
    """The part of the case above that every change is checked with."""
    check_faults(here, ["weights as a list", "a narrow residual", "x of another width"])


@contextlib.contextmanager
def as_on_a_gpu():
    """The host compares what the ranks told for a kind of call that is new to it alone."""
    before, Unread._compares_always = Unread._compares_always, lambda self, device: False
    try:
        yield
    finally:
        Unread._compares_always = before


@case
def where_the_host_reads_nothing_the_others_finish_the_pass(here):
    """A later fault: the rank raises once the others have their results, which are those of a call without its tokens."""
    found = faults()
    with as_on_a_gpu():
        for chunks in (1, 2):
            for name in ("weights as a list", "a short shared", "x of another width", "x of another type"):
                changed, own, _ = found[name]
                for exchange in made(here)[1:]:
                    spread, whole, _ = layers(here, chunks=chunks, **exchange)
                    # The first call of a kind: all compare.
                    expect(here, lambda: faulty(here, spread, changed, call(here)), *own, found[name][2])
                    check_call(here, spread, whole)
                    inputs = call(here)
                    with torch.no_grad():
                        if here.rank == ODD:
                            expect(here, lambda: faulty(here, spread, changed, inputs), *own)
                        else:
                            x, ids, weights, _, mine = inputs
                            assert torch.equal(faulty(here, spread, {}, inputs), whole(x, ids, weights)[mine]), name
                    check_call(here, spread, whole)


@case
def a_rank_that_makes_another_layer_is_named(here):
    def make(changed):
        common = {"num_experts": E, "hidden_size": H, "ffn_hidden_size": I}
        return ep.ExpertParallelMLP(**(common | (changed() if here.rank == ODD else {})))

    of_another = ep.AllToAll(2 * E)
    for changed, kind, message, others in (
        (lambda: {"exchange": "ring"}, ValueError, "exchange = 'ring', exp", None),
        (lambda: {"capacity": 4}, ValueError, "capacity = 4, expected None because", None),
        (lambda: {"exchange": of_another}, ValueError, "exchange.num_experts = 16, expected num_experts = 8", None),
        (lambda: {"exchange": 3}, ValueError, "exchange = 3, exp", None),
        (lambda: {"experts_per_rank": 3}, TypeError, "experts_per_rank is an int, expected . ints", None),
        (lambda: {"experts_per_rank": [E / here.ranks] * here.ranks}, TypeError, "experts_per_rank is a list", None),
        (lambda: {"device": "nowhere"}, RuntimeError, "nowhere", None),
        (lambda: {"num_experts": "8"}, TypeError, "num_experts is a str", None),
    ):
        expect(here, lambda: make(changed), kind, message, others)
        make(dict)
    # An object on one rank, a name on the others.
    an_object = ep.AllToAll(E)
    differs = ValueError, f"exchange on rank {ODD} = AllToAll, expected .* rank 0 has 'all_to_all'"
    expect(here, lambda: make(lambda: {"exchange": an_object}), *differs, differs)
    # A layer on one rank, an exchange on the others.
    differs = ValueError, f"exchange on rank {ODD} = 'all_to_all', expected .* rank 0 has AllToAll"
    expect(here, lambda: make(dict) if here.rank == ODD else ep.AllToAll(E), *differs, differs)
    make(dict)


@case
def a_rank_that_shards_another_module_is_named(here):
    mesh = init_device_mesh("cpu", (here.ranks,), mesh_dim_names=("expert",))
    experts = GroupedMLP(E, H, I)

    def shard(module, **options):
        return parallelize_module(torch.nn.ModuleDict({"experts": module}), mesh, {"experts": ep.ExpertParallel(**options)})

    linear = torch.nn.Linear(H, H)
    expect(here, lambda: shard(linear if here.rank == ODD else experts), TypeError, "module is a Linear, exp")
    expect(here, lambda: shard(experts, chunks=0 if here.rank == ODD else 1), ValueError, "chunks = 0")
    assert type(experts) is GroupedMLP  # what was refused is as it was
    shard(experts)
    assert type(experts) is ep.ExpertParallelMLP
