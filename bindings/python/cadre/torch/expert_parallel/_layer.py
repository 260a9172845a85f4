"""ExpertParallelMLP: the experts of a layer, spread over the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..._errors import wrong_type, wrong_value
from .. import _arguments, _dtypes
from .._errors import renamed
from .._activation import Activation
from .._grouped_mlp import GroupedMLP
from . import _agreement, _style
from ._capacity import Capacity
from ._exchange import AllToAll, Exchange
from ._passes import Arrive, Compute, Depart, Trip

_OP = "ExpertParallelMLP"
_WORDS = {"expert_parallel": _OP, "GroupedMLP": _OP, "moe_mlp": _OP, "num_gemms": "num_experts"}


class ExpertParallelMLP(GroupedMLP):
    """GroupedMLP whose experts are spread over the ranks of `group`: a ProcessGroup, a DeviceMesh of one dimension, or None
    for all ranks. Each rank gives its own tokens and gets its own results; the sums are those of one process.

    exchange: "all_to_all", "capacity" (with `capacity` and `overflow`), or an object. experts_per_rank: how many experts each
    rank holds, if not all the same. chunks: parts of the tokens, one of which computes while another travels; more than one
    adds up a weight's gradient in as many parts. The parameters are those of this rank's experts: DTensors sharded over the
    mesh if a DeviceMesh is given. A seed gives them the values that GroupedMLP's have in one process.

    The other arguments are GroupedMLP's; of those fuse_wgrad_accumulation, delay_wgrad_compute and recipe are refused.

    >>> experts = cadre.torch.expert_parallel.ExpertParallelMLP(3, 4, 8)
    >>> x, ids = torch.ones(6, 4), torch.tensor([[0, 2]] * 6)  # [t, h] and [t, top_k] of this rank
    >>> experts(x, ids, torch.full((6, 2), 0.5)).shape
    torch.Size([6, 4])
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        ffn_hidden_size: int,
        *,
        group: Any = None,
        exchange: Exchange | Literal["all_to_all", "capacity"] = "all_to_all",
        capacity: int | None = None,
        overflow: Literal["error", "drop"] = "error",
        experts_per_rank: Sequence[int] | None = None,
        chunks: int = 1,
        **options: Any,
    ) -> None:
        device, init = options.pop("device", None), options.pop("init_method", None)
        try:
            made = exchange_of(num_experts, group, exchange, capacity, overflow, experts_per_rank)
            refused = None
            try:
                torch.empty(0, device=device)  # whether there is such a device
                super().__init__(
                    max(made.local_experts, 1), hidden_size, ffn_hidden_size, device="meta",
                    init_method=init, **options,
                )  # fmt: skip
            except Exception as error:
                refused = error
            self._join(made, chunks, refused)
            self._empty_parameters(device)
            self.reset_parameters()
            if isinstance(group, DeviceMesh):
                _style.shard_local(self, group)
        except (TypeError, ValueError) as error:
            raise renamed(error, _WORDS) from None

    def _join(self, exchange, chunks, refused=None):
        """Makes it a layer over this exchange, if all ranks make the same one; refused: why this rank can't."""
        if refused is None:
            try:
                _check_join(self, chunks)
            except Exception as error:
                refused = error
        facts = None if refused else {
            "hidden_size": self.hidden_size, "ffn_hidden_size": self.ffn_hidden_size, "chunks": chunks,
            "bias": self.use_bias, "weights_on_input": self.weights_on_input, "dtype": self.params_dtype,
            "activation": tuple(self.activation),
        }  # fmt: skip
        _agreement.agree(_OP, exchange.group, facts, refused)
        self.exchange, self.chunks = exchange, chunks
        self.num_experts, self.num_gemms = exchange.num_experts, exchange.local_experts

    def _empty_parameters(self, device):
        for name, parameter in list(self.named_parameters()):
            shape = (self.num_gemms, *parameter.shape[1:])
            empty = torch.empty(shape, dtype=parameter.dtype, device=device)
            setattr(self, name, torch.nn.Parameter(empty))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws the numbers of all experts and keeps those of this rank, so that the same seed means the same experts."""
        first = self.exchange.first_expert
        for weight in map(_style.local, self.weights()):
            spare = weight.new_empty(weight.shape[1:])
            for expert in range(self.num_experts):
                held = first <= expert < first + self.num_gemms
                self.init_method(weight[expert - first] if held else spare)
        for bias in map(_style.local, self.biases()):
            bias.zero_()

    @torch.compiler.disable  # collectives of their own, and what is in flight
    def forward(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor | None = None,
        *,
        shared: Tensor | Callable[[Tensor], Tensor] | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """x [..., hidden_size]: this rank's tokens; expert_ids and weights [tokens, top_k]; residual of x's shape.

        shared: a tensor of x's shape to add, or a function of x [tokens, hidden_size], the shared expert, which is called
        while the rows travel.
        """
        try:
            out = self._over_exchange(x, expert_ids, weights, shared, residual)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise renamed(error, _WORDS) from None
        return out.view(x.shape)

    def _over_exchange(self, x, expert_ids, weights, shared, residual):
        parameters = [_style.local(each) for each in (*self.weights(), *self.biases())]
        shape = x.shape if isinstance(x, torch.Tensor) else None
        if shape is not None and len(shape) > 2:
            x = x.flatten(0, -2)
        refused = self._refusal(shape, x, expert_ids, weights, shared=shared, residual=residual)
        if refused is None:
            x, parameters[:2] = _arguments.autocast(x, parameters[:2])
        parts = self._parts(refused, x, expert_ids, weights)
        recording = torch.is_grad_enabled()
        needs = [
            recording and isinstance(each, torch.Tensor) and each.requires_grad
            for each in (x, weights)
        ]
        needs.append(recording and any(each.requires_grad for each in parameters))
        # All plans before the first rows: what ranks don't agree about is found while nothing travels.
        plans = [self.exchange.plan(*part, needs=needs, refused=refused) for part in parts]
        unheard = next((plan.unheard for plan in plans if plan.unheard), None)
        if unheard is not None:
            with torch.no_grad():
                self._pass(plans, list(_stand_ins(plans, unheard[1])), parameters)
            raise unheard[0]
        # On every rank alike: they have agreed about both.
        if x.shape[1] != self.hidden_size:
            raise wrong_value(_OP, "x.shape[1]", x.shape[1], f"hidden_size = {self.hidden_size}")
        if x.dtype not in _dtypes.FLOATS:
            raise _dtypes.wrong_dtype(_OP, "x", x.dtype, _dtypes.FLOATS)
        return self._pass(plans, parts, parameters, any(needs), x, shared, residual)

    def _pass(self, plans, parts, parameters, is_training=False, x=None, shared=None, residual=None):
        """Forward, once all ranks know where their rows go. x: the tokens of all parts, for a shared function."""
        options = {
            "activation": self.activation.kind,
            "interleaved": self.activation.interleaved,
            "clamp": [float(each) for each in self.activation.clamp],
        }
        trips, tokens = [], []
        for plan, (rows, _, weights) in zip(plans, parts, strict=True):
            trip = Trip(self.exchange, plan, options, self.weights_on_input, is_training)
            tokens.append(Depart.apply(trip, rows, weights))
            trips.append(trip)
        if callable(shared):
            shared = shared(x)
        tokens = [
            Compute.apply(trip, token, *parameters)
            for trip, token in zip(trips, tokens, strict=True)
        ]
        added = zip(*(self._split_added(each, len(trips)) for each in (shared, residual)), strict=True)
        outs = [
            Arrive.apply(trip, token, *each, rows.dtype)
            for trip, token, each, (rows, *_) in zip(trips, tokens, added, parts, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _refusal(self, shape, x, expert_ids, weights, **added):
        """What is wrong with the arguments of a call, for plan to tell the other ranks; None if nothing is. shape: that of x
        as it was given."""
        try:
            if not isinstance(x, torch.Tensor):
                raise wrong_type(_OP, "x", x, "a torch.Tensor")
            self.exchange.check_arguments(x, expert_ids, weights)
            experts = _style.local(self.w13).device
            if x.device != experts:
                raise wrong_value(_OP, "x.device", x.device, f"{experts}, where the experts are")
            for name, each in added.items():
                if each is not None and not (name == "shared" and callable(each)):
                    _check_added(name, each, x, shape)
        except Exception as error:
            return error
        return None

    def _split_added(self, tensor, parts):
        return [None] * parts if tensor is None else tensor.reshape(-1, self.hidden_size).tensor_split(parts)

    def _parts(self, refused, *tensors):
        """The chunks of x, expert_ids and weights; as they are where they can't be split."""
        if self.chunks == 1 or refused is not None:
            return [tensors] * self.chunks
        return list(zip(*(_split(each, self.chunks) for each in tensors), strict=True))

    def extra_repr(self) -> str:
        spread = f"{self.num_experts} experts on {self.exchange.ranks} ranks, {self.num_gemms} here"
        sizes = f"hidden_size={self.hidden_size}, ffn_hidden_size={self.ffn_hidden_size}"
        return f"{spread}, {sizes}, bias={self.use_bias}, chunks={self.chunks}"


def _check_join(layer, chunks):
    for name in ("fuse_wgrad_accumulation", "delay_wgrad_compute"):
        if getattr(layer, name):
            raise wrong_value(_OP, name, True, "False: it is not supported over an exchange")
    if layer.recipe is not None:
        raise wrong_value(_OP, "recipe", repr(layer.recipe.mode), "None: it is not supported over an exchange")
    if not isinstance(layer.activation, Activation):
        raise wrong_value(_OP, "activation", "a function", "the name of one")
    if isinstance(chunks, bool) or not isinstance(chunks, int):
        raise wrong_type(_OP, "chunks", chunks, "an int")
    if chunks < 1:
        raise wrong_value(_OP, "chunks", chunks, "1 or more")


def exchange_of(num_experts, group, exchange, capacity, overflow, experts_per_rank, refused=None):
    """The exchange that the arguments describe, if all ranks describe the same; refused: why this one can't go on."""
    is_made = isinstance(exchange, Exchange)
    own_group = exchange.group if is_made else _agreement.group_of(_OP, group)
    try:
        if refused is None:
            _check_exchange(num_experts, group, exchange, capacity)
    except Exception as error:
        refused = error
    _agreement.agree(_OP, own_group, {"exchange": type(exchange).__name__ if is_made else repr(exchange)}, refused)
    if is_made:
        return exchange
    common = {"group": group, "experts_per_rank": experts_per_rank}
    if exchange == "capacity":
        return Capacity(num_experts, capacity, overflow=overflow, **common)
    return AllToAll(num_experts, **common)


def _check_exchange(num_experts, group, exchange, capacity):
    if isinstance(exchange, Exchange):
        if exchange.num_experts != num_experts:
            expected = f"num_experts = {num_experts}"
            raise wrong_value(_OP, "exchange.num_experts", exchange.num_experts, expected)
        if group is not None and _agreement.group_of(_OP, group) is not exchange.group:
            raise wrong_value(_OP, "group", "another than the exchange's", "None or the same")
    elif exchange not in ("all_to_all", "capacity"):
        expected = "'all_to_all', 'capacity' or an object of a class of cadre.torch.expert_parallel"
        raise wrong_value(_OP, "exchange", repr(exchange), expected)
    elif exchange == "all_to_all" and capacity is not None:
        raise wrong_value(_OP, "capacity", capacity, "None because exchange = 'all_to_all'")


def _check_added(name, tensor, x, shape):
    if not isinstance(tensor, torch.Tensor):
        others = ", a function or None" if name == "shared" else " or None"
        raise wrong_type(_OP, name, tensor, f"a torch.Tensor{others}")
    if tensor.shape not in (shape, x.shape):
        raise wrong_value(_OP, f"{name}.shape", list(tensor.shape), f"that of x, {list(shape)}")
    if tensor.dtype not in _dtypes.FLOATS:
        raise _dtypes.wrong_dtype(_OP, name, tensor.dtype, _dtypes.FLOATS)
    if tensor.device != x.device:
        raise wrong_value(_OP, f"{name}.device", tensor.device, f"x.device = {x.device}")


def _stand_ins(plans, facts):
    """For each plan a part of zeros in place of what this rank was given, of the kind that the ranks send that went on."""
    _, width, x_code, _, _, weights_code, _ = facts
    for plan in plans:
        slots = plan.home.slot_row
        x = torch.zeros((slots.shape[0], width), dtype=_agreement.DTYPES[x_code], device=slots.device)
        weights = torch.zeros(slots.shape, dtype=_agreement.DTYPES[weights_code - 1]) if weights_code else None
        yield x, None, None if weights is None else weights.to(slots.device)


def _split(tensor, parts):
    """`parts` slices of the rows, the first ones longer; all of them None for None."""
    return [None] * parts if tensor is None else torch.tensor_split(tensor, parts)
