"""The three steps of a layer over an exchange, each an autograd.Function:

    depart   gathers this rank's rows and sends them                 its gradient: takes the rows' gradients in, adds them up
    compute  waits, runs the experts and sends the results back      its gradient: waits, the experts' gradients, sends back
    arrive   waits, and adds up the rows of each token               its gradient: gathers dout's rows and sends them

Whatever runs between two of them, forward or backward, runs while rows travel. The experts' gradients are those of moe_mlp's
own operator, with the router weights beside the rows: the arithmetic is that of one device, in the same order. What a step
leaves for the next is in a Trip; what is kept for backward goes through save_for_backward, as recomputing demands.
"""

import torch
from torch.autograd.function import once_differentiable

from .. import _operators
from .._routing import Routing


class Trip:
    """One call on its way: the plan, and what is in flight."""

    def __init__(self, exchange, plan, options, weights_on_input, is_training):
        self.exchange, self.plan = exchange, plan
        self.options, self.weights_on_input = options, weights_on_input
        self.is_training = is_training
        self.flight = None
        self.weights = None
        self.gradients = None

    def take(self):
        """What is in flight, once it has arrived."""
        flight, self.flight = self.flight, None
        return flight.wait()


def _where(routing):
    return {"source_row": routing.source_row, "slot_row": routing.slot_row}


def _rows_of(tokens, routing):
    return _operators.permute.call(x=tokens, **_where(routing))


def _scaled_rows(tokens, weights, routing, dtype):
    """The rows of tokens, each times the weight of its slot."""
    (rows,) = _operators.combine_grad.call(
        dout=tokens, weights=weights, dy_dtype=dtype, **_where(routing)
    )
    return rows


class Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, trip, x, weights):
        home = trip.plan.home
        scales = trip.weights_on_input and weights is not None
        rows = _scaled_rows(x, weights, home, x.dtype) if scales else _rows_of(x, home)
        trip.flight = trip.exchange.send(trip.plan, rows)
        trip.weights = None if scales else weights
        ctx.trip, ctx.scales, ctx.dtypes = trip, scales, (x.dtype, weights is not None and weights.dtype)
        ctx.save_for_backward(*((x, weights) if scales else ()), *home)
        return x.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        *inputs, sizes, source_row, slot_row = ctx.saved_tensors
        where = {"source_row": source_row, "slot_row": slot_row}
        arrived = ctx.trip.take()
        x_dtype, weights_dtype = ctx.dtypes
        dx = dweights = None
        _, needs_x, needs_weights = ctx.needs_input_grad
        rows = arrived[0]
        if needs_x:
            weights = inputs[1] if ctx.scales else None
            dx = _operators.combine.call(y=rows, weights=weights, out_dtype=x_dtype, **where)
        if needs_weights:
            # dot(x, rows) where weights scaled the input, else what the experts' rank computed, put into slots.
            of_slots = rows if ctx.scales else arrived[-1]
            dout = inputs[0] if ctx.scales else of_slots.new_ones((slot_row.shape[0], 1))
            (dweights,) = _operators.combine_grad.call(
                dout=dout, y=of_slots, dweights_dtype=weights_dtype, **where
            )
        return None, dx, dweights


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, trip, token, w13, w2, *biases):
        (received,) = trip.take()
        arguments = _experts(trip, received, trip.plan.local, (w13, w2, *biases))
        out, preact = _operators.moe_mlp.call(**arguments, keeps_preact=trip.is_training)
        trip.flight = trip.exchange.send_back(trip.plan, out)
        ctx.trip = trip
        ctx.save_for_backward(received, preact, *trip.plan.local, w13, w2, *biases)
        return token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        trip = ctx.trip
        received, preact, sizes, source_row, slot_row, *parameters = ctx.saved_tensors
        dout, *weights = trip.take()
        needs_rows, *needs_parameters = ctx.needs_input_grad[1:]
        arguments = _experts(trip, received, Routing(sizes, source_row, slot_row), parameters)
        wants_weights = needs_rows and bool(weights)
        wanted = [needs_rows, wants_weights, *needs_parameters]
        wanted += [False] * (6 - len(wanted))
        results = _operators.moe_mlp_grad.call(
            **arguments,
            weights=weights[0] if weights else None,
            preact=preact,
            dout=dout,
            wanted=wanted,
        )
        travelling = wanted[0] + wanted[1]
        if travelling:
            trip.flight = trip.exchange.send_back(trip.plan, *results[:travelling])
        gradients = iter(results[travelling:])
        given = [next(gradients) if need else None for need in needs_parameters]
        return None, received.new_empty(0) if needs_rows else None, *given


def _experts(trip, received, local, parameters):
    """moe_mlp's arguments for rows that arrived: tokens with one choice each."""
    w13, w2, *biases = parameters
    return {
        "x": received,
        "w13": [w13],
        "w2": [w2],
        "bias13": biases[:1],
        "bias2": biases[1:],
        "group_sizes": local.group_sizes,
        **_where(local),
        **trip.options,
    }


class Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, trip, token, shared, residual, out_dtype):
        (rows,) = trip.take()
        weights, home = trip.weights, trip.plan.home
        trip.weights = None
        ctx.trip = trip
        ctx.dtypes = [None if each is None else each.dtype for each in (shared, residual)]
        ctx.has_weights = weights is not None
        ctx.save_for_backward(*([weights] if ctx.has_weights else []), *home)
        return _operators.combine.call(
            y=rows, weights=weights, shared=shared, residual=residual, out_dtype=out_dtype, **_where(home)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        trip = ctx.trip
        *weights, sizes, source_row, slot_row = ctx.saved_tensors
        home = Routing(sizes, source_row, slot_row)
        needs = ctx.needs_input_grad[1:4]
        if needs[0]:
            travelling = [_rows_of(dout.contiguous(), home)]
            if ctx.has_weights:
                ones = weights[0].new_ones((slot_row.shape[0], 1))
                travelling.append(_scaled_rows(ones, weights[0], home, weights[0].dtype))
            trip.flight = trip.exchange.send(trip.plan, *travelling)
        added = [
            dout.to(dtype) if need else None
            for dtype, need in zip(ctx.dtypes, needs[1:], strict=True)
        ]
        return None, dout.new_empty(0) if needs[0] else None, *added, None
