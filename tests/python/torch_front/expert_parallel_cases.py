"""The promises of cadre.torch.expert_parallel that are kept on several ranks: results, gradients, capacity, errors."""

import functools
import re

import cadre.torch as T
import torch
from cadre.torch import expert_parallel as ep
from torch.utils._python_dispatch import TorchDispatchMode

E, H, I, TOP_K, TOKENS = 8, 12, 10, 3, 17
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def layers(here, dtype=torch.float32, options=None, **exchange):
    """ExpertParallelMLP and GroupedMLP with the same parameters, biases that aren't zero included."""
    options = {"bias": True, "dtype": dtype, **(options or {})}
    torch.manual_seed(7)
    whole = T.GroupedMLP(E, H, I, **options)
    torch.manual_seed(7)
    spread = ep.ExpertParallelMLP(E, H, I, **options, **exchange)
    first, last = spread.exchange.first_expert, spread.exchange.first_expert + spread.num_gemms
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if name.startswith("bias"):
                parameter.normal_()
            own = ep._style.local(getattr(spread, name))
            if name.startswith("bias"):
                own.copy_(parameter[first:last])
            assert torch.equal(own, parameter[first:last]), "the same seed, the same experts"
    return spread, whole, slice(first, last)


def call(here, tokens=TOKENS, dtype=torch.float32, low=-1, high=E + 1):
    """x, ids, weights and dout of all ranks, and the slice of this one."""
    parts = here.parts(tokens)
    total = parts[-1].stop
    x, dout = torch.randn(total, H).to(dtype), torch.randn(total, H).to(dtype)
    ids = torch.randint(low, high, (total, TOP_K))
    return x, ids, torch.rand(total, TOP_K).to(dtype), dout, parts[here.rank]


def run(layer, x, ids, weights, dout, **added):
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    added = {name: x if each is True else each for name, each in added.items()}
    out = layer(x, ids, weights, **added)
    layer.zero_grad()
    out.backward(dout)
    gradients = {name: ep._style.local(each.grad) for name, each in layer.named_parameters()}
    return {"out": out.detach(), "dx": x.grad, "dweights": weights.grad}, gradients


def check_equal(here, spread, whole, held, inputs, *, exact_parameters=True, **added):
    x, ids, weights, dout, mine = inputs
    rows, gradients = run(spread, x[mine], ids[mine], weights[mine], dout[mine], **added)
    all_rows, expected = run(whole, x, ids, weights, dout, **added)
    for name, found in rows.items():
        assert torch.equal(found, all_rows[name][mine]), name
    for name, found in gradients.items():
        wanted = expected[name][held]
        if exact_parameters:
            assert torch.equal(found, wanted), name
        else:
            # Two sums and their sum instead of one: each is right to half an ulp of its own size, and all are below |g|'s.
            bound = 3 * torch.finfo(found.dtype).eps * wanted.abs().max()
            assert (found - wanted).abs().max() <= bound, name


def exchanges(here, tokens=TOKENS):
    return {"exchange": "all_to_all"}, {"exchange": "capacity", "capacity": TOP_K * tokens}


@case
def same_bits_as_one_process(here):
    for dtype in (torch.float32, torch.bfloat16):
        for exchange in exchanges(here):
            for on_input in (False, True):
                options = {"weights_on_input": on_input}
                made = layers(here, dtype, options, **exchange)
                check_equal(here, *made, call(here, dtype=dtype), residual=True)


@case
def same_bits_with_other_activations(here):
    for activation in ("relu2", "clamped_swiglu"):
        made = layers(here, options={"activation": activation, "interleaved": activation != "relu2"})
        check_equal(here, *made, call(here))


@case
def same_bits_with_uneven_and_empty_ranks(here):
    for exchange in exchanges(here):
        for tokens in ((5, 0, 17, 1), (0, 3, 0, 0), (0, 0, 0, 0)):
            check_equal(here, *layers(here, **exchange), call(here, tokens))


@case
def same_bits_with_all_tokens_on_one_rank(here):
    for exchange in exchanges(here):
        check_equal(here, *layers(here, **exchange), call(here, low=E - 1, high=E))


@case
def same_bits_with_an_uneven_map_of_experts(here):
    held = [5, 3] if here.ranks == 2 else [5, 0, 2, 1]
    for exchange in exchanges(here):
        check_equal(here, *layers(here, experts_per_rank=held, **exchange), call(here))


@case
def chunks_change_parameter_gradients_by_rounding_alone(here):
    for exchange in exchanges(here):
        made = layers(here, chunks=2, **exchange)
        check_equal(here, *made, call(here), exact_parameters=False)


@case
def other_ways_to_call_it(here):
    spread, whole, held = layers(here)
    x, ids, weights, _, mine = call(here)
    shared = torch.nn.Linear(H, H)
    with torch.no_grad():
        expected = whole(x, ids, weights, shared=shared(x), residual=x)[mine]
        out = spread(x[mine], ids[mine], weights[mine], shared=shared, residual=x[mine])
        # One row of a dense product isn't the same bits in another batch: torch's, not ours.
        torch.testing.assert_close(out, expected)
        three = spread(x[mine].view(1, -1, H), ids[mine], weights[mine])
        assert torch.equal(three.view(-1, H), whole(x, ids, weights)[mine])
        assert torch.equal(spread(x[mine], ids[mine]), whole(x, ids)[mine])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = spread(x[mine], ids[mine], weights[mine])
        assert torch.equal(out, whole(x, ids, weights)[mine]) and out.dtype == torch.bfloat16


class Counted(TorchDispatchMode):
    """How often each of cadre's ops is called."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "cadre":
            name = function.overloadpacket.__name__
            self.calls[name] = self.calls.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


@case
def one_gather_before_each_collective_and_none_after(here):
    for exchange in exchanges(here):
        spread, _, _ = layers(here, **exchange)
        x, ids, weights, dout, mine = call(here)
        x, weights = x[mine].requires_grad_(), weights[mine].requires_grad_()
        spread(x, ids[mine], weights)  # whatever is made once
        with Counted() as forward:
            out = spread(x, ids[mine], weights)
        del forward.calls["route"]  # indices alone
        assert forward.calls == {"permute": 1, "moe_mlp": 1, "combine": 1}, forward.calls
        with Counted() as backward:
            out.backward(dout[mine])
        # combine_grad gathers numbers: a weight for each row, and its gradient for each slot.
        expected = {"permute": 1, "moe_mlp_grad": 1, "combine": 1, "combine_grad": 2}
        assert backward.calls == expected, backward.calls


@case
def dispatch_and_collect_are_differentiable(here):
    """Somebody's own experts between the two; the sums are those of route, permute and combine on one process."""
    for exchange in (ep.AllToAll(E), ep.Capacity(E, TOP_K * TOKENS)):
        x, ids, weights, dout, mine = call(here)
        w = torch.randn(E, H, H)
        first = exchange.first_expert

        def loss(x, weights, w):
            x, weights, w = (each.clone().requires_grad_() for each in (x, weights, w))
            return x, weights, w

        a, b, c = loss(x[mine], weights[mine], w[first : first + exchange.local_experts])
        rows, sizes, handle = exchange.dispatch(a, ids[mine], b)
        out = exchange.collect(T.gmm(rows, c, sizes).sin(), handle, residual=a)
        out.backward(dout[mine])
        xs, ws, cs = loss(x, weights, w)
        routing = T.route(ids, E)
        y = T.gmm(T.permute(xs, routing), cs, routing.group_sizes).sin()
        expected = T.combine(y, routing, ws, residual=xs)
        expected.backward(dout)
        assert torch.equal(out, expected[mine])
        assert torch.equal(a.grad, xs.grad[mine]) and torch.equal(b.grad, ws.grad[mine])
        assert torch.equal(c.grad, cs.grad[first : first + exchange.local_experts])


@case
def rows_of_any_type_travel_as_bytes(here):
    """FP8 with its scales, which gloo has no name for."""
    for exchange in (ep.AllToAll(E), ep.Capacity(E, TOP_K * TOKENS)):
        x, ids, _, _, mine = call(here)
        plan = exchange.plan(x[mine], ids[mine])
        rows = T.permute(x[mine], plan.home).to(torch.float8_e4m3fn)
        scales = torch.rand(rows.shape[0], 2)
        arrived = exchange.send(plan, rows, scales).wait()
        assert arrived[0].dtype == torch.float8_e4m3fn
        back = exchange.send_back(plan, *arrived).wait()
        assert torch.equal(back[0].view(torch.uint8), rows.view(torch.uint8))
        assert torch.equal(back[1], scales)


@case
def choices_beyond_the_capacity_are_dropped_and_counted(here):
    capacity = 4
    made = layers(here, exchange="capacity", capacity=capacity, overflow="drop")
    x, ids, weights, dout, mine = call(here)
    # Of each rank's choices, in order, the first four for each rank stay.
    per_rank, kept, dropped = E // here.ranks, ids.clone(), []
    for part in here.parts(TOKENS):
        room, lost = [capacity] * here.ranks, 0
        for slot in range(part.start * TOP_K, part.stop * TOP_K):
            expert = int(ids.view(-1)[slot])
            if not 0 <= expert < E:
                continue
            if room[expert // per_rank]:
                room[expert // per_rank] -= 1
            else:
                kept.view(-1)[slot], lost = -1, lost + 1
        dropped.append(lost)
    assert all(dropped)
    spread, whole, held = made
    rows, gradients = run(spread, x[mine], ids[mine], weights[mine], dout[mine])
    all_rows, expected = run(whole, x, kept, weights, dout)
    for name, found in rows.items():
        assert torch.equal(found, all_rows[name][mine]), name
    assert all(torch.equal(found, expected[name][held]) for name, found in gradients.items())
    assert spread.exchange.dropped.tolist() == dropped


def raises(kind, message, call):
    try:
        call()
    except kind as error:
        assert re.search(message, str(error)), f"{error}\nexpected {message}"
        return
    raise AssertionError(f"nothing was raised, expected {message}")


@case
def choices_beyond_the_capacity_are_an_error_on_every_rank(here):
    spread, _, _ = layers(here, exchange="capacity", capacity=TOKENS * TOP_K - 2)
    x, ids, weights, _, mine = call(here, low=0, high=E)
    spread(x[mine], ids[mine], weights[mine])
    # Rank 1 alone sends all it has to one rank.
    ids = torch.zeros_like(ids[mine]) if here.rank == 1 else ids[mine]
    message = "ExpertParallelMLP: choices without a row on rank 1 = 2, expected 0: capacity = 49 rows"
    raises(ValueError, message, lambda: spread(x[mine], ids, weights[mine]))


@case
def ranks_that_differ_are_named_on_every_rank(here):
    odd = here.rank == here.ranks - 1
    last = here.ranks - 1
    for exchange in exchanges(here):
        spread, _, _ = layers(here, **exchange)
        x, ids, weights, _, mine = call(here)
        x, ids, weights = x[mine], ids[mine], weights[mine]
        wide = torch.randn(TOKENS, H + 1) if odd else x
        raises(ValueError, rf"x.shape\[1\] on rank {last} = {H + 1}, expected .* rank 0 has {H}",
               lambda: spread(wide, ids, weights))  # fmt: skip
        raises(ValueError, rf"x.dtype on rank {last} = torch.float64, .* rank 0 has torch.float32",
               lambda: spread(x.double() if odd else x, ids, weights))  # fmt: skip
        raises(ValueError, rf"expert_ids.shape\[1\] on rank {last} = 2, expected",
               lambda: spread(x, ids[:, :2] if odd else ids))  # fmt: skip
        raises(ValueError, rf"weights.dtype on rank {last} = no weights, expected",
               lambda: spread(x, ids, None if odd else weights))  # fmt: skip
        raises(ValueError, rf"gradients of on rank {last} = \['x', 'parameters'\], .* \['parameters'\]",
               lambda: spread(x.clone().requires_grad_(odd), ids, weights))  # fmt: skip
        spread(x, ids, weights)


@case
def a_rank_that_refuses_its_arguments_ends_the_call_of_all(here):
    odd = here.rank == 1
    for exchange in exchanges(here):
        spread, _, _ = layers(here, **exchange)
        x, ids, weights, _, mine = call(here)
        bad = weights[mine] if odd else ids[mine]
        kind, message = (
            (TypeError, "ExpertParallelMLP: expert_ids.dtype = torch.float32, expected")
            if odd
            else (RuntimeError, "rank 1 refused its arguments")
        )
        raises(kind, message, lambda: spread(x[mine], bad))
        if odd:
            raises(TypeError, "x is a list", lambda: spread([1], ids[mine]))
        else:
            raises(RuntimeError, "rank 1 refused", lambda: spread(x[mine], ids[mine]))


@case
def bad_arguments_are_named_on_every_rank(here):
    make = functools.partial(ep.ExpertParallelMLP, E, H, I)
    odd = here.rank == 1
    raises(ValueError, rf"ExpertParallelMLP: num_experts = {E + 1}, expected a multiple of the group's",
           lambda: ep.ExpertParallelMLP(E + 1, H, I))  # fmt: skip
    raises(ValueError, "capacity = 0, expected 1 or more", lambda: make(exchange="capacity", capacity=0))
    raises(TypeError, "capacity is a NoneType", lambda: make(exchange="capacity"))
    raises(ValueError, "capacity on rank 1 = 8, expected the same on every rank; rank 0 has 4",
           lambda: make(exchange="capacity", capacity=8 if odd else 4))  # fmt: skip
    raises(ValueError, "exchange on rank 1 = AllToAll, .* rank 0 has Capacity",
           lambda: ep.AllToAll(E) if odd else ep.Capacity(E, 4))  # fmt: skip
    raises(ValueError, "overflow = 'ignore', expected 'drop' or 'error'",
           lambda: make(exchange="capacity", capacity=4, overflow="ignore"))  # fmt: skip
    raises(ValueError, r"experts_per_rank = \[8\], expected", lambda: make(experts_per_rank=[8]))
    raises(ValueError, "exchange = 'ring', expected 'all_to_all'", lambda: make(exchange="ring"))
    raises(TypeError, "group is a str, expected a ProcessGroup", lambda: make(group="world"))
    raises(ValueError, "chunks = 0", lambda: make(chunks=0))
    raises(ValueError, "delay_wgrad_compute = True", lambda: make(delay_wgrad_compute=True))
    raises(ValueError, "recipe = 'row', expected None: it is not", lambda: make(recipe="row", dtype=torch.bfloat16))
    spread = make()
    raises(ValueError, r"x.shape\[1\] = 5, expected hidden_size = 12",
           lambda: spread(torch.randn(3, 5), torch.zeros(3, 1).int()))  # fmt: skip
    mesh = torch.distributed.device_mesh.init_device_mesh(
        "cpu", (2, here.ranks // 2), mesh_dim_names=("data", "expert")
    )
    raises(ValueError, "group = a DeviceMesh of 2 dimensions, expected one", lambda: make(group=mesh))


@case
def layers_that_differ_are_named_on_every_rank(here):
    """What would leave the others waiting, or compute with other experts: named before anything is made."""
    odd = here.rank == 1

    def make(**changed):
        return ep.ExpertParallelMLP(E, **{"hidden_size": H, "ffn_hidden_size": I, **(changed if odd else {})})

    for changed, there, here_has in (
        ({"hidden_size": H + 1}, H + 1, H), ({"ffn_hidden_size": I + 2}, I + 2, I), ({"chunks": 2}, 2, 1),
        ({"bias": True}, True, False), ({"dtype": torch.float64}, "torch.float64", "torch.float32"),
    ):  # fmt: skip
        (name,) = changed
        message = rf"ExpertParallelMLP: {name} on rank 1 = {there}, expected the same on every rank; rank 0 has {here_has}"
        raises(ValueError, message, lambda: make(**changed))
    raises(ValueError, "activation on rank 1 = ", lambda: make(activation="geglu"))
    for changed, kind, own in (({"chunks": 0}, ValueError, "chunks = 0"), ({"hidden_size": "wide"}, TypeError, "hidden_size is")):
        if odd:
            raises(kind, own, lambda: make(**changed))
        else:
            raises(RuntimeError, "ExpertParallelMLP: rank 1 refused its arguments", make)
    raises(ValueError if odd else (ValueError, RuntimeError), "capacity",
           lambda: ep.Capacity(E, 0 if odd else 4))  # fmt: skip
    make()


@case
def a_rank_that_raises(here):
    """Not part of the suite: run by a test of its own."""
    spread, _, _ = layers(here)
    x, ids, weights, _, mine = call(here)
    spread(x[mine], ids[mine], weights[mine])
    if here.rank == 1:
        raise RuntimeError("this rank has had enough")
    spread(x[mine], ids[mine], weights[mine])
