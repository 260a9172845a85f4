"""What all ranks of a group must have in common, and the error that every one of them raises where they don't."""

import operator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..._errors import wrong_type, wrong_value
from ..._scaled import MODES, ScaledTensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: What rows may consist of.
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    *FP8,
    torch.int8,
    torch.uint8,
)
#: What each rank tells every other about a call, as numbers.
FACTS = ("state", "x.shape[1]", "x.dtype", "x.scales", "expert_ids.shape[1]", "weights.dtype", "gradients of")
#: The first of them: a kind of call that all ranks have made before, a rank that can't go on, a kind that is new to it.
KNOWN, REFUSED, NEW = range(3)
_GRADIENTS = ("x", "weights", "parameters")
_MODES = tuple(MODES)


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
    try:
        held = tuple(operator.index(each) for each in experts_per_rank)
    except TypeError:
        raise wrong_type(op, "experts_per_rank", experts_per_rank, f"{ranks} ints, one for each rank") from None
    if len(held) != ranks or min(held) < 0 or sum(held) != num_experts:
        expected = f"{ranks} numbers from 0 on, one for each rank, with the sum {num_experts}"
        raise wrong_value(op, "experts_per_rank", list(held), expected)
    return held


def devices_of(group):
    """The types of the devices that the group's backends serve."""
    served = [device.type for device in getattr(group, "_device_types", ())]
    return served or ["cuda" if dist.get_backend(group) == "nccl" else "cpu"]


def device_of(x, group):
    """Where numbers for the others lie: beside x, or, where x has no such device, where the group's backend takes them."""
    data = x.data if isinstance(x, ScaledTensor) else x
    served = devices_of(group)
    if isinstance(data, torch.Tensor) and data.device.type in served:
        return data.device
    return torch.device("cpu" if "cpu" in served else served[0])


def agree(op, group, facts, refused=None):
    """Raises on every rank if `facts`, a dict of plain values, isn't the same on all of them.

    refused: the error of a rank that can't go on, which raises it once the others know. Its facts aren't looked at.
    """
    everybody = [None] * dist.get_world_size(group)
    told = (None, f"{type(refused).__name__}: {refused}") if refused is not None else (facts, None)
    dist.all_gather_object(everybody, told, group=group)
    if refused is not None:
        raise refused
    for rank, (_, error) in enumerate(everybody):
        if error is not None:
            raise RuntimeError(f"{op}: rank {rank} refused its arguments ({error})")
    expected = everybody[0][0]
    for rank, (theirs, _) in enumerate(everybody):
        for name in expected | theirs:
            found, value = (each.get(name, "nothing like it") for each in (theirs, expected))
            if found != value:
                raise wrong_value(op, f"{name} on rank {rank}", found, f"the same on every rank; rank 0 has {value}")


def facts_of(x, expert_ids, weights, needs, refused):
    """FACTS as numbers. `needs`: which of _GRADIENTS are wanted; `refused`: whether this rank can't go on."""
    if refused:
        return [REFUSED] + [0] * (len(FACTS) - 1)
    gradients = sum(1 << bit for bit, each in enumerate(needs) if each)
    data, scales = (x.data, scales_code(x)) if isinstance(x, ScaledTensor) else (x, 0)
    weights_code = 0 if weights is None else 1 + DTYPES.index(weights.dtype)
    return [KNOWN, data.shape[1], DTYPES.index(data.dtype), scales, expert_ids.shape[1], weights_code, gradients]


def scales_code(x):
    """From 1 on, by the mode in which a ScaledTensor arrives and the type of its scales."""
    mode = "row" if x.mode == "tensor" else x.mode
    return 1 + 2 * _MODES.index(mode) + (x.scales.dtype == torch.float8_e8m0fnu)


def difference(op, everybody, own_rank):
    """The error if the facts of all ranks differ or another rank refused its arguments, else None."""
    for rank, (state, *_) in enumerate(everybody):
        if state == REFUSED and rank != own_rank:
            return RuntimeError(f"{op}: rank {rank} refused its arguments; its own error says why")
    for rank, theirs in enumerate(everybody):
        for i, name in enumerate(FACTS[1:], 1):
            if theirs[i] != everybody[0][i]:
                expected = f"the same on every rank; rank 0 has {_worded(name, everybody[0][i])}"
                return wrong_value(op, f"{name} on rank {rank}", _worded(name, theirs[i]), expected)
    return None


def _worded(name, number):
    if name == "x.dtype":
        return DTYPES[number]
    if name == "x.scales":
        mode, is_e8m0 = divmod(number - 1, 2)
        return f"{'e8m0' if is_e8m0 else 'f32'} of mode {_MODES[mode]!r}" if number else "none"
    if name == "weights.dtype":
        return ("no weights", *DTYPES)[number]
    if name == "gradients of":
        return [each for bit, each in enumerate(_GRADIENTS) if number >> bit & 1]
    return number
