"""Expert parallelism among what a training run has: meshes, DTensors, checkpoints, FSDP2, recomputation, steps."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cadre.torch import GroupedMLP
from cadre.torch import expert_parallel as ep
from expert_parallel_cases import E, H, I, call, layers, run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils.checkpoint import checkpoint

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mesh_of(here):
    return init_device_mesh("cpu", (here.ranks,), mesh_dim_names=("expert",))


@case
def training_steps_are_those_of_one_process(here):
    spread, whole, held = layers(here)
    # Powers of two: torch's own kernels contract the product and the sum for some elements and not for others.
    steps = [torch.optim.SGD(each.parameters(), lr=2**-10, momentum=0.5) for each in (spread, whole)]
    for _ in range(4):
        x, ids, weights, _, mine = call(here)
        out = spread(x[mine], ids[mine], weights[mine])
        out.backward(2 * out.detach())
        expected = whole(x, ids, weights)
        expected.backward(2 * expected.detach())
        for step in steps:
            step.step()
            step.zero_grad()
    for name, parameter in whole.named_parameters():
        found = getattr(spread, name)
        assert found.isfinite().all() and torch.equal(found, parameter[held]), name


@case
def parameters_over_a_mesh_are_dtensors(here):
    spread, whole, held = layers(here, group=mesh_of(here))
    x, ids, weights, dout, mine = call(here)
    rows, _ = run(spread, x[mine], ids[mine], weights[mine], dout[mine])
    all_rows, expected = run(whole, x, ids, weights, dout)
    assert torch.equal(rows["out"], all_rows["out"][mine])
    for name, parameter in spread.named_parameters():
        assert isinstance(parameter, DTensor) and parameter.shape == getattr(whole, name).shape
        assert torch.equal(parameter.full_tensor(), getattr(whole, name))
        assert torch.equal(parameter.grad.full_tensor(), expected[name])
    torch.optim.AdamW(spread.parameters(), foreach=True).step()


class Model(torch.nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        experts = [GroupedMLP(E, H, I, bias=True) for _ in range(layers)]
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"experts": each}) for each in experts)
        self.router = torch.nn.Linear(H, E)

    def forward(self, x, ids, weights):
        for layer in self.layers:
            x = layer["experts"](x, ids, weights, residual=x)
        return x


@case
def a_model_is_sharded_in_one_line(here):
    torch.manual_seed(1)
    whole, model = Model(), Model()
    # What rank 0 holds is what counts, whatever the others drew.
    whole.load_state_dict(model.state_dict())
    for each in whole.parameters():
        dist.broadcast(each.detach(), 0)
    parallelize_module(model, mesh_of(here), {"layers.*.experts": ep.ExpertParallel()})
    x, ids, weights, dout, mine = call(here)
    model(x[mine], ids[mine], weights[mine]).backward(dout[mine])
    whole(x, ids, weights).backward(dout)
    for name, parameter in model.named_parameters():
        if "experts" in name:
            gradient = whole.get_parameter(name).grad
            assert torch.equal(parameter.grad.full_tensor(), gradient), name
    # The layer is there, and its state is that of the whole model.
    assert isinstance(model.layers[1]["experts"], ep.ExpertParallelMLP)
    assert model.state_dict().keys() == whole.state_dict().keys()


@case
def a_checkpoint_loads_into_another_number_of_ranks(here):
    spread, whole, _ = layers(here, group=mesh_of(here))
    path = str(here.folder / f"checkpoint-{here.ranks}")
    dcp.save({"model": spread.state_dict()}, checkpoint_id=path)
    # Half as many ranks, each half of the ranks on its own.
    halves = init_device_mesh("cpu", (2, here.ranks // 2), mesh_dim_names=("data", "expert"))
    for mesh in (halves["expert"], mesh_of(here)):
        torch.manual_seed(99)
        other = ep.ExpertParallelMLP(E, H, I, bias=True, group=mesh)
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=path)
        other.load_state_dict(state["model"])
        for name, parameter in other.named_parameters():
            assert torch.equal(parameter.full_tensor(), getattr(whole, name)), name
    # And into one process.
    alone = GroupedMLP(E, H, I, bias=True)
    state = {"model": alone.state_dict()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    assert all(torch.equal(each, getattr(whole, name)) for name, each in state["model"].items())


@case
def save_a_checkpoint(here):
    """For the next one, in processes of another job."""
    spread, _, _ = layers(here, group=mesh_of(here))
    dcp.save({"model": spread.state_dict()}, checkpoint_id=str(here.folder.parent / "checkpoint"))


@case
def load_the_checkpoint_of_other_ranks(here):
    _, whole, _ = layers(here)  # the same seed, whatever the number of ranks
    torch.manual_seed(99)
    other = ep.ExpertParallelMLP(E, H, I, bias=True, group=mesh_of(here))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=str(here.folder.parent / "checkpoint"))
    other.load_state_dict(state["model"])
    for name, parameter in other.named_parameters():
        assert parameter.to_local().shape[0] == E // here.ranks
        assert torch.equal(parameter.full_tensor(), getattr(whole, name)), name


@case
def fsdp_around_it_shards_each_rank_s_experts_once_more(here):
    mesh = init_device_mesh("cpu", (2, here.ranks // 2), mesh_dim_names=("data", "expert"))
    spread, whole, held = layers(here, group=mesh["expert"])
    fully_shard(spread, mesh=mesh["data"])
    x, ids, weights, dout, mine = call(here)
    out = spread(x[mine], ids[mine], weights[mine])
    out.backward(dout[mine])
    expected = whole(x, ids, weights)
    expected.backward(dout)
    assert torch.equal(out, expected[mine])
    for name, parameter in spread.named_parameters():
        # FSDP averages over the data dimension, in parts: half of the sum, but for rounding.
        wanted = getattr(whole, name).grad / 2
        torch.testing.assert_close(parameter.grad.full_tensor(), wanted)


@case
def recomputed_activations_have_the_same_bits(here):
    spread, _, _ = layers(here, chunks=2)
    x, ids, weights, dout, mine = call(here)
    plain = run(spread, x[mine], ids[mine], weights[mine], dout[mine])

    def recomputed(*arguments):
        return checkpoint(spread, *arguments, use_reentrant=False)

    recomputed.zero_grad, recomputed.named_parameters = spread.zero_grad, spread.named_parameters
    again = run(recomputed, x[mine], ids[mine], weights[mine], dout[mine])
    for expected, found in zip(plain, again, strict=True):
        assert all(torch.equal(found[name], each) for name, each in expected.items())
