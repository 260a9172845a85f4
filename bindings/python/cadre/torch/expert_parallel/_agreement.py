"""What all ranks of a group must have in common, and the error that every one of them raises where they don't."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..._errors import wrong_type, wrong_value

_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
)
#: Each rank sends these numbers to every other, before the counts of its rows.
FACTS = ("refused", "x.shape[1]", "x.dtype", "expert_ids.shape[1]", "weights.dtype", "gradients of")
_GRADIENTS = ("x", "weights", "parameters")


def group_of(op, group):
    """The ProcessGroup that is meant: None is the default group, a DeviceMesh of one dimension its own."""
    if not dist.is_available() or not dist.is_initialized():
        expected = "an initialised process group: call torch.distributed.init_process_group first"
        raise wrong_value(op, "group", group, expected)
    if group is None:
        return dist.group.WORLD
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = group.mesh_dim_names or "its dimensions have no names"
            expected = f"one dimension of it, as mesh['expert'] gives it ({names})"
            raise wrong_value(op, "group", f"a DeviceMesh of {group.ndim} dimensions", expected)
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise wrong_value(op, "group", "one without this rank", "a group that this rank is in")
    if not isinstance(group, dist.ProcessGroup):
        raise wrong_type(op, "group", group, "a ProcessGroup, a DeviceMesh or None")
    return group


def experts_of_ranks(op, num_experts, experts_per_rank, ranks):
    """How many experts each rank holds, as a tuple."""
    if isinstance(num_experts, bool) or not isinstance(num_experts, int):
        raise wrong_type(op, "num_experts", num_experts, "an int")
    if num_experts < 1:
        raise wrong_value(op, "num_experts", num_experts, "1 or more")
    if experts_per_rank is None:
        if num_experts % ranks:
            expected = f"a multiple of the group's {ranks} ranks, or experts_per_rank beside it"
            raise wrong_value(op, "num_experts", num_experts, expected)
        return (num_experts // ranks,) * ranks
    held = tuple(int(each) for each in experts_per_rank)
    if len(held) != ranks or min(held) < 0 or sum(held) != num_experts:
        expected = f"{ranks} numbers from 0 on, one for each rank, with the sum {num_experts}"
        raise wrong_value(op, "experts_per_rank", list(held), expected)
    return held


def device_of(x, group):
    """Where numbers for the others lie: beside x, or, if that is no tensor at all, where the group's backend takes them."""
    if isinstance(x, torch.Tensor):
        return x.device
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def agree(op, group, facts, refused=None):
    """Raises on every rank if `facts`, a dict of plain values, isn't the same on all of them.

    refused: the error of a rank that can't go on, which raises it once the others know. Its facts may be None then.
    """
    everybody = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, (facts, refused is not None), group=group)
    if refused is not None:
        raise refused
    expected = next(theirs for theirs, _ in everybody if theirs is not None)
    for rank, (theirs, _) in enumerate(everybody):
        for name, value in expected.items() if theirs is not None else ():
            if theirs[name] != value:
                raise wrong_value(op, f"{name} on rank {rank}", theirs[name], f"the same on every rank; rank 0 has {value}")
    for rank, (_, other_refused) in enumerate(everybody):
        if other_refused:
            raise _refused_by(op, rank)


def _refused_by(op, rank):
    return RuntimeError(f"{op}: rank {rank} refused its arguments; its own error says why")


def agree_on(exchange, facts, device):
    """Compares a call's facts for an exchange that does so once for each of them: the host reads them, so never in a capture."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{exchange.op}: the first call with these shapes and types is captured, expected one "
            "before the capture: the ranks compare them on the host"
        )
    mine = torch.tensor(facts, device=device)
    everybody = [torch.empty_like(mine) for _ in range(exchange.ranks)]
    dist.all_gather(everybody, mine, group=exchange.group)
    everybody = torch.stack(everybody).tolist()
    if not facts[0]:
        compare(exchange.op, everybody, exchange.rank)
        exchange._agreed.add(facts)


def facts_of(x, expert_ids, weights, needs, refused):
    """FACTS as numbers. `needs`: which of _GRADIENTS are wanted; `refused`: whether this rank can't go on."""
    if refused:
        return [1] + [0] * (len(FACTS) - 1)
    gradients = sum(1 << bit for bit, each in enumerate(needs) if each)
    weights_code = 0 if weights is None else 1 + _code(weights.dtype)
    return [0, x.shape[1], _code(x.dtype), expert_ids.shape[1], weights_code, gradients]


def compare(op, everybody, own_rank):
    """Raises if the facts of all ranks differ. A rank that refused its arguments raises its own error instead."""
    for rank, (refused, *_) in enumerate(everybody):
        if refused and rank != own_rank:
            raise _refused_by(op, rank)
    for rank, theirs in enumerate(everybody):
        for i, name in enumerate(FACTS):
            if theirs[i] != everybody[0][i]:
                expected = f"the same on every rank; rank 0 has {_worded(name, everybody[0][i])}"
                raise wrong_value(op, f"{name} on rank {rank}", _worded(name, theirs[i]), expected)


def _code(dtype):
    return _DTYPES.index(dtype) if dtype in _DTYPES else len(_DTYPES)


def _worded(name, number):
    if name == "x.dtype":
        return (*_DTYPES, "another type")[number]
    if name == "weights.dtype":
        return ("no weights", *_DTYPES, "another type")[number]
    if name == "gradients of":
        return [each for bit, each in enumerate(_GRADIENTS) if number >> bit & 1]
    return number
