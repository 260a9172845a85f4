"""What runs while rows travel, as the order of sends, waits and ops. Cases for expert_parallel_ranks.py."""

import cadre.torch.expert_parallel as ep
import torch
from expert_parallel_cases import call, exchanges, layers
from torch.utils._python_dispatch import TorchDispatchMode

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Events(TorchDispatchMode):
    """The order of an exchange's sends and of the ends of its flights, and of the ops of cadre that compute."""

    COMPUTE = {"moe_mlp": "experts", "moe_mlp_grad": "experts' gradients", "combine": "sum"}

    def __init__(self, exchange):
        super().__init__()
        self.seen, self.flights = [], []
        events = self

        class Watched(type(exchange)):
            def plan(self, *arguments, **options):
                events.seen.append("plan")
                return super().plan(*arguments, **options)

            def send(self, *arguments):
                return events.departs("out", super().send(*arguments))

            def send_back(self, *arguments):
                return events.departs("back", super().send_back(*arguments))

        exchange.__class__ = Watched

    def departs(self, where, flight):
        name = f"{where} {sum(each.startswith(where) for each in self.flights)}"
        self.flights.append(name)
        self.seen.append(f"send {name}")
        wait = flight.wait

        def watched():
            arrived = wait()
            self.seen.append(f"wait {name}")
            return arrived

        flight.wait = watched
        return flight

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if function.namespace == "cadre" and name in self.COMPUTE:
            self.seen.append(self.COMPUTE[name])
        return function(*args, **(kwargs or {}))

    def take(self):
        seen, self.seen, self.flights = self.seen, [], []
        return seen


@case
def one_chunk_computes_while_another_travels(here):
    """Two chunks: when the experts of one run, forward and backward, the other's rows are on their way."""
    for exchange in exchanges(here):
        spread, _, _ = layers(here, chunks=2, **exchange)
        x, ids, weights, dout, mine = call(here)
        x, weights = x[mine].requires_grad_(), weights[mine].requires_grad_()
        with Events(spread.exchange) as events:
            out = spread(x, ids[mine], weights)
            forward = events.take()
            out.backward(dout[mine])
            backward = events.take()
        assert forward == [
            "plan", "plan", "send out 0", "send out 1",
            "wait out 0", "experts", "send back 0",
            "wait out 1", "experts", "send back 1",
            "wait back 0", "sum", "wait back 1", "sum",
        ], forward  # fmt: skip
        assert backward == [
            "send out 0", "send out 1",
            "wait out 0", "experts' gradients", "send back 0",
            "wait out 1", "experts' gradients", "send back 1",
            "wait back 0", "sum", "wait back 1", "sum",
        ], backward  # fmt: skip


@case
def the_shared_expert_runs_while_rows_travel(here):
    spread, _, _ = layers(here)
    x, ids, weights, dout, mine = call(here)
    events = Events(spread.exchange)

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            events.seen.append("shared")
            return 2 * rows

        @staticmethod
        def backward(ctx, grad):
            events.seen.append("shared's gradient")
            return 2 * grad

    mine = x[mine].requires_grad_(), ids[mine], weights[mine].requires_grad_()
    out = spread(*mine, shared=Shared.apply)
    forward = ["send out 0", "shared", "wait out 0", "send back 0", "wait back 0"]
    assert events.take() == ["plan", *forward]
    out.sum().backward()
    backward = ["send out 0", "wait out 0", "send back 0", "shared's gradient", "wait back 0"]
    assert events.take() == backward


@case
def with_one_chunk_nothing_else_is_on_its_way(here):
    """What the two above are compared with."""
    spread = ep.ExpertParallelMLP(8, 12, 10)
    x, ids, weights, _, mine = call(here)
    with Events(spread.exchange) as events, torch.no_grad():
        spread(x[mine], ids[mine], weights[mine])
    assert events.take() == ["plan", "send out 0", "wait out 0", "experts", "send back 0", "wait back 0", "sum"]
