"""An operator's derivatives in the three forms that torch wants: for eager calls, for compiled ones (torch.library), and for
torch.func's transforms and forward-mode AD."""

import functools
from typing import Callable, NamedTuple

import torch
from torch.library import register_autograd, register_vmap

_below_autograd = torch._C._AutoDispatchBelowAutograd


class Derivatives(NamedTuple):
    """How an operator is differentiated. Arguments, and what is said of each of them, are tuples of the schema's names.

    kept(needs): names of the tensors that backward reads; needs has a bool for each argument.
    backward(arguments, needs, grad): {name: gradient}. Tensors that weren't kept are Likes.
    tangent(operator, arguments, tangents): the forward derivative, with None for an argument that has no tangent.
    results: places of the results that backward reads; they follow grad.
    takes_none: backward takes None for the gradient of a result that nothing depends on, instead of zeros.
    consuming: backward that may overwrite the results which it reads: for eager calls, where nobody reads them again.
    """

    kept: Callable
    backward: Callable
    tangent: Callable
    results: tuple = ()
    takes_none: bool = False
    consuming: Callable | None = None


class Like(NamedTuple):
    """What is known of a tensor that wasn't kept."""

    shape: tuple
    dtype: torch.dtype

    def dim(self):
        return len(self.shape)


def _setup(operator, derivatives, of):
    """setup(ctx, args, flat needs, result): saves what backward reads. `of`: the operator whose plain form this one is."""

    places = [i for i, name in enumerate(operator.names) if name in operator.may_be_tensors]

    @functools.cache
    def plan(needs):
        """(needs of every argument, whether each of them is kept)"""
        whole = operator.Arguments._make(needs) if of is None else of.complete(*needs)
        kept = derivatives.kept(whole)
        return whole, [name in kept for name in operator.names]

    def setup(ctx, args, flat, result):
        """`flat` may have more elements than there are arguments: what a Function is given beside them."""
        if operator.lists:
            rest = iter(flat)
            flat = tuple(
                any([next(rest) for _ in arg]) if name in operator.lists else next(rest)
                for name, arg in zip(operator.names, args, strict=True)
            )
        ctx.needs, kept = plan(flat[: len(args)])
        tensors, slots, others = [], [], list(args)
        for place in places:
            value = args[place]
            if isinstance(value, torch.Tensor):
                if kept[place]:
                    slots.append((place, None))
                    tensors.append(value)
                    others[place] = None
                else:
                    others[place] = Like(value.shape, value.dtype)
            elif value is not None:
                others[place] = [Like(each.shape, each.dtype) for each in value]
                if kept[place]:
                    slots.append((place, len(value)))
                    tensors.extend(value)
        ctx.others, ctx.slots = others, slots
        ctx.save_for_backward(*tensors, *(result[place] for place in derivatives.results))

    return setup


def _restored(ctx):
    """(the arguments as backward sees them, the results that it reads)"""
    args, tensors, position = list(ctx.others), ctx.saved_tensors, 0
    for place, count in ctx.slots:
        if count is None:
            args[place] = tensors[position]
            position += 1
        else:
            args[place] = list(tensors[position : position + count])
            position += count
    return args, tensors[position:]


def _backward(operator, derivatives, of):
    """backward(ctx, grad): a gradient for each argument, a list for each list of tensors."""

    def backward(ctx, grad):
        args, results = _restored(ctx)
        whole = operator.Arguments._make(args) if of is None else of.complete(*args)
        gradients = derivatives.backward(whole, ctx.needs, grad, *results)
        if not operator.lists:
            return [gradients.get(name) for name in operator.names]
        return [
            gradients.get(name) or [None] * len(arg) if name in operator.lists else gradients.get(name)
            for name, arg in zip(operator.names, args, strict=True)
        ]

    return backward


def register(operator, derivatives):
    """torch.library's form: for compiled calls, and for whoever calls the operator itself."""
    setup = _setup(operator, derivatives, None)

    def setup_context(ctx, inputs, output):
        setup(ctx, inputs, ctx.needs_input_grad, output)

    backward = _backward(operator, derivatives, None)

    def library_backward(ctx, *grads):
        # A list of results has a list of gradients; several results have each their own.
        return tuple(backward(ctx, grads[0] if len(grads) == 1 else grads))

    register_autograd(operator.overload, library_backward, setup_context=setup_context)
    map_in_turn(operator)


def nobody_else_keeps():
    """Whether autograd alone will hold what is saved now: hooks of saved tensors may keep them, too."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def frees_what_it_kept():
    """Whether the running backward pass frees its graph (no retain_graph)."""
    return not torch._C._autograd._get_current_graph_task_keep_graph()


def eager(operator, derivatives, of=None):
    """The operator with its gradient as an autograd.Function, called with its arguments by position."""
    op = operator.overload._op
    setup, backward = _setup(operator, derivatives, of), _backward(operator, derivatives, of)
    consuming = derivatives.consuming and _backward(
        operator, derivatives._replace(backward=derivatives.consuming), of
    )
    lists = [place for place, name in enumerate(operator.names) if name in operator.lists]

    if not lists:

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                if of is None:
                    with _below_autograd():
                        result = op(*args)
                else:  # a plain form has no layer of autograd to go past
                    result = op(*args)
                setup(ctx, args, ctx.needs_input_grad, result)
                ctx.set_materialize_grads(not derivatives.takes_none)
                return tuple(result) if operator.returns_many else result

            @staticmethod
            def backward(ctx, *grads):
                return tuple(backward(ctx, grads if operator.returns_many else grads[0]))

        Function.__name__ = f"Eager_{operator.overload._opname}"
        if not operator.returns_many:
            return Function.apply
        return lambda *args: operator.gather(Function.apply(*args))

    class ListFunction(torch.autograd.Function):
        """Autograd counts each tensor of a list as an input. The first argument says how long each list is."""

        @staticmethod
        def forward(ctx, counts, *flat):
            args = _unflatten(flat, counts)
            with _below_autograd():
                result = op(*args)
            setup(ctx, args, ctx.needs_input_grad[1:], result)
            ctx.set_materialize_grads(not derivatives.takes_none)
            ctx.may_consume = consuming is not None and nobody_else_keeps()
            return tuple(result) if operator.returns_many else result

        @staticmethod
        def backward(ctx, *grads):
            call = consuming if ctx.may_consume and frees_what_it_kept() else backward
            gradients = call(ctx, list(grads) if operator.returns_many else grads[0])
            return (None, *_flatten(gradients, lists)[0])

    ListFunction.__name__ = f"Eager_{operator.overload._opname}"

    def apply(*args):
        flat, counts = _flatten(args, lists)
        result = ListFunction.apply(counts, *flat)
        return operator.gather(result) if operator.returns_many else result

    return apply


def _flatten(args, lists):
    """(flat arguments, length of each that stands at one of the places `lists`, else None)."""
    flat, counts = [], [None] * len(args)
    for place, arg in enumerate(args):
        if place in lists:
            counts[place] = len(arg)
            flat.extend(arg)
        else:
            flat.append(arg)
    return flat, counts


def _unflatten(flat, counts):
    rest = iter(flat)
    return [next(rest) if count is None else [next(rest) for _ in range(count)] for count in counts]


def _element(value, dim, i):
    if isinstance(value, (list, tuple)) and all(isinstance(each, torch.Tensor) for each in value):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return [_element(each, d, i) for each, d in zip(value, dims, strict=True)]
    return value if dim is None else value.select(dim, i)


def map_in_turn(operator):
    """Gives an operator its vmap rule."""
    register_vmap(operator.overload, _loop(operator))


def _loop(operator):
    """vmap as one call for each element of the mapped dim, since each has group sizes of its own."""

    def mapped(info, in_dims, *args):
        results = []
        for i in range(info.batch_size):
            each = (_element(arg, dim, i) for arg, dim in zip(args, in_dims, strict=True))
            results.append(operator.call(**dict(zip(operator.names, each, strict=True))))
        if operator.returns_many:
            stacked = operator.gather(torch.stack(each) for each in zip(*results, strict=True))
            return stacked, operator.gather([0] * len(stacked))
        return torch.stack(results), 0

    return mapped


def transformable(operator, derivatives):
    """The operator as an autograd.Function that torch.func can transform, called with its arguments by position."""
    op, returns_many = operator.overload, operator.returns_many
    setup, backward = _setup(operator, derivatives, None), _backward(operator, derivatives, None)
    lists = [place for place, name in enumerate(operator.names) if name in operator.lists]
    mapped = _loop(operator)

    class Function(torch.autograd.Function):
        """Its last argument says how long each list is."""

        @staticmethod
        def forward(*args):
            result = op(*_unflatten(args[:-1], args[-1]))
            return tuple(result) if returns_many else result

        @staticmethod
        def setup_context(ctx, inputs, output):
            setup(ctx, _unflatten(inputs[:-1], inputs[-1]), ctx.needs_input_grad, output)
            ctx.counts = inputs[-1]
            # An input without a tangent has None, not zeros that would cost a product.
            ctx.set_materialize_grads(False)
            ctx.likes = [
                (each.shape, {"dtype": each.dtype, "device": each.device})
                for each in (output if returns_many else ())
            ]
            ctx.numbers = [None if isinstance(each, torch.Tensor) else each for each in inputs[:-1]]
            tensors = [each if isinstance(each, torch.Tensor) else None for each in inputs[:-1]]
            ctx.save_for_forward(*tensors)

        @staticmethod
        def backward(ctx, *grads):
            if returns_many:
                grads = [
                    torch.zeros(shape, **options) if grad is None else grad
                    for grad, (shape, options) in zip(grads, ctx.likes, strict=True)
                ]
            gradients = backward(ctx, grads if returns_many else grads[0])
            return (*_flatten(gradients, lists)[0], None)

        @staticmethod
        def jvp(ctx, *tangents):
            pairs = zip(ctx.saved_tensors, ctx.numbers, strict=True)
            inputs = [other if tensor is None else tensor for tensor, other in pairs]
            nested = _unflatten(inputs, ctx.counts)
            each = _tangents(nested, _unflatten(tangents[:-1], ctx.counts), lists)
            make = operator.Arguments._make
            result = derivatives.tangent(operator, make(nested), make(each))
            return tuple(result) if returns_many else result

        @staticmethod
        def vmap(info, in_dims, *args):
            dims = _unflatten(in_dims[:-1], args[-1])
            result, dims = mapped(info, dims, *_unflatten(args[:-1], args[-1]))
            return (tuple(result), tuple(dims)) if returns_many else (result, dims)

    Function.__name__ = f"Transformable_{operator.overload._opname}"

    @torch.compiler.disable  # the graph breaks here: dynamo doesn't trace a Function with a jvp
    def apply(*args):
        flat, counts = _flatten(args, lists)
        result = Function.apply(*flat, counts)
        return operator.gather(result) if returns_many else result

    return apply


def _tangents(inputs, tangents, lists):
    """A list of tensors has no tangents at all, or one for each tensor."""
    for place in lists:
        if all(each is None for each in tangents[place]):
            tangents[place] = None
        else:
            tangents[place] = [
                torch.zeros_like(value) if each is None else each
                for value, each in zip(inputs[place], tangents[place], strict=True)
            ]
    return tangents
