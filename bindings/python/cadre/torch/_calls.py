"""How the operators are called. Eagerly they go past torch.library's layer for autograd, which costs tens of microseconds a
call; compiled, through it; and inside torch.func's transforms and forward-mode AD, which it doesn't know, through an
autograd.Function with a jvp."""

import torch
import torch.autograd.forward_ad as _forward_ad
from torch.library import register_autograd, register_vmap

_below_autograd = torch._C._AutoDispatchBelowAutograd
_any_requires_grad = torch._C._any_requires_grad
_transform_level = torch._C._functorch.maybe_current_level

_increment_version = torch.autograd.graph.increment_version

_eager = {}
_transformable = {}


def call(op, *args):
    """op(*args) for an OpOverload that `differentiable` knows."""
    if is_transformed():
        return _transformable[op](*args)
    if torch.compiler.is_compiling():
        return op(*args)
    if torch.is_grad_enabled() and _any_requires_grad(*args):
        return _eager[op](*args)
    with _below_autograd():
        return op(*args)


def is_transformed():
    """True inside torch.func's transforms and inside forward-mode AD."""
    return _transform_level() is not None or _forward_ad._current_level >= 0


def into(op, *args, written):
    """op(*args, written), for an operator that writes into the tensors of that list.

    Their version counters are raised, as torch's own out= does, so that autograd refuses to use what it had saved of
    them. (A compiled call is functional: whoever writes its result back raises the counter.)
    """
    op(*args, written)
    if not torch.compiler.is_compiling():
        _increment_version(written)


def differentiable(op, setup, backward, tangent, *, returns_list=False):
    """Gives an operator its gradient and its vmap rule, in torch.library's form and in torch.func's, and its tangent.

    setup(ctx, inputs, output) finds in ctx.needs which inputs want a gradient, in the structure of the inputs.
    tangent(op, inputs, tangents) is the forward derivative, with None for an input that has no tangent.
    """

    def library_setup(ctx, inputs, output):
        ctx.needs = _needs(ctx, inputs)
        setup(ctx, inputs, output)

    register_autograd(op, backward, setup_context=library_setup)
    register_vmap(op, _loop(op))
    _transformable[op] = _transformable_function(op, setup, backward, tangent, returns_list)
    lists = [
        i for i, argument in enumerate(op._schema.arguments) if str(argument.type) == "List[Tensor]"
    ]
    if lists:
        _eager[op] = _eager_list_function(op, setup, backward, lists, returns_list)
    else:
        _eager[op] = _eager_function(op, setup, backward)


def _needs(ctx, inputs):
    """needs_input_grad, which is flat while the context is set up, in the structure of the inputs."""
    flat = iter(ctx.needs_input_grad)
    return [[next(flat) for _ in each] if _is_list(each) else next(flat) for each in inputs]


def _is_list(value):
    """A list of tensors, empty or not; a list of numbers is one input."""
    return isinstance(value, (list, tuple)) and all(
        isinstance(each, torch.Tensor) for each in value
    )


def _element(value, dim, i):
    if _is_list(value):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return [_element(each, d, i) for each, d in zip(value, dims, strict=True)]
    return value if dim is None else value.select(dim, i)


def _loop(op):
    """vmap as one call for each element of the mapped dim, since each has group sizes of its own."""

    def mapped(info, in_dims, *args):
        results = [
            call(op, *(_element(arg, dim, i) for arg, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        if isinstance(results[0], (list, tuple)):
            stacked = [torch.stack(each) for each in zip(*results, strict=True)]
            return stacked, [0] * len(stacked)
        return torch.stack(results), 0

    return mapped


def _flatten(args):
    """(flat arguments, length of each that is a list of tensors, else None)."""
    flat, counts = [], []
    for arg in args:
        counts.append(len(arg) if _is_list(arg) else None)
        flat.extend(arg if _is_list(arg) else [arg])
    return flat, counts


def _unflatten(flat, counts):
    rest = iter(flat)
    return [next(rest) if count is None else [next(rest) for _ in range(count)] for count in counts]


def _eager_function(op, setup, backward):
    """The operator with its gradient as an autograd.Function; for operators without lists of tensors."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            with _below_autograd():
                result = op(*args)
            ctx.needs = ctx.needs_input_grad
            setup(ctx, args, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            return backward(ctx, grad)

    Function.__name__ = f"Eager_{op._opname}"
    return Function.apply


def _eager_list_function(op, setup, backward, lists, returns_list):
    """The same for operators with lists of tensors at the places `lists`: autograd counts each tensor as an input."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, counts, *flat):
            args, ctx.needs = _nested(flat, counts), _nested(ctx.needs_input_grad[1:], counts)
            with _below_autograd():
                result = op(*args)
            ctx.input_counts = counts
            setup(ctx, args, result)
            return tuple(result) if returns_list else result

        @staticmethod
        def backward(ctx, *grads):
            results = backward(ctx, list(grads)) if returns_list else backward(ctx, *grads)
            flat = [None]
            for place, result in enumerate(results):
                if place in ctx.input_counts:
                    flat.extend(result or [None] * ctx.input_counts[place])
                else:
                    flat.append(result)
            return tuple(flat)

    Function.__name__ = f"Eager_{op._opname}"

    def apply(*args):
        counts = {place: len(args[place]) for place in lists}
        flat = []
        for place, arg in enumerate(args):
            flat.extend(arg) if place in counts else flat.append(arg)
        result = Function.apply(counts, *flat)
        return list(result) if returns_list else result

    return apply


def _nested(flat, counts):
    """A flat sequence with the elements of each list, `counts` by place, together again."""
    nested, position = [], 0
    for place in range(len(flat) - sum(counts.values()) + len(counts)):
        count = counts.get(place)
        if count is None:
            nested.append(flat[position])
            position += 1
        else:
            nested.append(list(flat[position : position + count]))
            position += count
    return nested


def _transformable_function(op, setup, backward, tangent, returns_list):
    mapped = _loop(op)

    class Function(torch.autograd.Function):
        """Its last argument says which of the others are lists."""

        @staticmethod
        def forward(*args):
            result = op(*_unflatten(args[:-1], args[-1]))
            return tuple(result) if returns_list else result

        @staticmethod
        def setup_context(ctx, inputs, output):
            nested = _unflatten(inputs[:-1], inputs[-1])
            ctx.needs = _needs(ctx, nested)
            ctx.input_counts = inputs[-1]
            # An input without a tangent has None, not zeros that would cost a product.
            ctx.set_materialize_grads(False)
            ctx.likes = [_like(each) for each in (output if returns_list else ())]
            ctx.others = [None if isinstance(each, torch.Tensor) else each for each in inputs[:-1]]
            tensors = [each if isinstance(each, torch.Tensor) else None for each in inputs[:-1]]
            ctx.save_for_forward(*tensors)
            setup(ctx, nested, output)

        @staticmethod
        def backward(ctx, *grads):
            if returns_list:
                grads = [
                    torch.zeros(shape, **options) if grad is None else grad
                    for grad, (shape, options) in zip(grads, ctx.likes, strict=True)
                ]
            results = backward(ctx, grads) if returns_list else backward(ctx, *grads)
            flat = []
            for result, count in zip(results, ctx.input_counts, strict=True):
                flat.extend([result] if count is None else result)
            return (*flat, None)

        @staticmethod
        def jvp(ctx, *tangents):
            pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
            inputs = [other if tensor is None else tensor for tensor, other in pairs]
            nested = _unflatten(inputs, ctx.input_counts)
            result = tangent(op, nested, _tangents(nested, tangents[:-1], ctx.input_counts))
            return tuple(result) if returns_list else result

        @staticmethod
        def vmap(info, in_dims, *args):
            result, dims = mapped(
                info, _unflatten(in_dims[:-1], args[-1]), *_unflatten(args[:-1], args[-1])
            )
            return (tuple(result), tuple(dims)) if returns_list else (result, dims)

    Function.__name__ = f"Transformable_{op._opname}"

    def apply(*args):
        flat, counts = _flatten(args)
        result = Function.apply(*flat, counts)
        return list(result) if returns_list else result

    return apply


def _like(tensor):
    return tensor.shape, {"dtype": tensor.dtype, "device": tensor.device}


def _tangents(inputs, flat, counts):
    """Tangents in the structure of the inputs: a list has none at all, or one for each tensor."""
    nested = _unflatten(flat, counts)
    for place, (values, tangents) in enumerate(zip(inputs, nested, strict=True)):
        if counts[place] is None:
            continue
        if all(each is None for each in tangents):
            nested[place] = None
        else:
            nested[place] = [
                torch.zeros_like(value) if each is None else each
                for value, each in zip(values, tangents, strict=True)
            ]
    return nested
