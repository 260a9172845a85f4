"""Operators called by the names of their schema, which cadre_torch.so declares and nobody repeats.

From the schema come the call, with a default for every argument that may be left out; the tuple in which fakes and
gradients see the arguments; and the plain form, an operator of fewer arguments for calls that leave out all others: each
argument costs host time.
"""

import collections

import torch
import torch.autograd.forward_ad as _forward_ad
from torch.library import register_fake

from .. import _structs
from .._errors import wrong_value
from . import _transforms

#: What an argument is where a call leaves it out. Lists of integers and what isn't named here must be given.
_OF_NAME = {
    "group_offset": 0,
    "alpha_value": 1.0,
    "beta_value": 0.0,
    "tail": _structs.TAIL_ZERO,
    "precision": _structs.PRECISION_DEFAULT,
    # Of operands that are not quantised.
    **dict.fromkeys(("lhs_mode", "rhs_mode", "a_mode", "b_mode"), 0),
    # Of no packed weights.
    **dict.fromkeys(("packed_rhs", "packed_w13", "packed_w2"), 0),
    # Of no operand; not empty, which would be taken for a list of tensors.
    "c_form": [0],
    "activation": _structs.NO_ACTIVATION,
    "clamp": [1.702, 7.0, 1.0],
    "amax_floor": 0.0,
    "num_rows": 0,
}
_OF_TYPE = {"bool": False, "List[Tensor]": []}


class Operator:
    """An operator of torch.ops.cadre. `op`: what errors call it. `plain`: the name of its plain form.

    call(**arguments) runs it: eagerly past torch.library's layer for autograd, which costs tens of microseconds; compiled,
    through it; inside torch.func's transforms and forward-mode AD, which that layer doesn't know, through an
    autograd.Function with a jvp. An operator that writes into a list of tensors raises their version counters, as torch's
    own out= does.
    """

    def __init__(self, name, op=None, plain=None):
        self.overload = getattr(torch.ops.cadre, name).default
        self.op = op or name
        arguments = self.overload._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        self.tensors = [each.name for each in arguments if str(each.type) == "Tensor"]
        self.lists = frozenset(
            argument.name for argument in arguments if str(argument.type) == "List[Tensor]"
        )
        self.may_be_tensors = frozenset(each.name for each in arguments if "Tensor" in str(each.type))
        returns = self.overload._schema.returns
        #: Whether a result is a list or a tuple of tensors.
        self.returns_many = len(returns) > 1 or "List[Tensor]" in map(str, (r.type for r in returns))
        self.gather = list if len(returns) == 1 else tuple
        self.written = [each.name for each in arguments if each.alias_info and each.alias_info.is_write]
        self.defaults = {}
        for argument in arguments:
            kind = str(argument.type)
            if argument.name in _OF_NAME:
                self.defaults[argument.name] = _OF_NAME[argument.name]
            elif kind.startswith("Optional"):
                self.defaults[argument.name] = None
            elif kind in _OF_TYPE and argument.name not in self.written:
                self.defaults[argument.name] = _OF_TYPE[kind]
        self.Arguments = collections.namedtuple(f"{name}_arguments", self.names)
        self.plain = None if plain is None else Operator(plain, self.op)
        if self.plain is not None:
            # The arguments of the operator itself, from those of its plain form.
            self.complete = self._function(
                "complete", self.plain.names, f"return Arguments({self._completed()})"
            )
        self.differentiable(None)

    def _completed(self):
        kept = self.plain.names
        return ", ".join(name if name in kept else repr(self.defaults[name]) for name in self.names)

    def _function(self, name, names, body, **scope):
        """A Python function of these arguments. Made of text, as namedtuple's are: a call by name costs what one that was
        written by hand does."""
        scope["Arguments"] = self.Arguments
        source = f"""
def make({", ".join(scope)}):
  def {name}({", ".join(names)}):
    {body}
  return {name}
"""
        made = {}
        exec(source, globals(), made)
        return made["make"](**scope)

    def differentiable(self, derivatives):
        """Gives the operator its derivatives (_transforms.Derivatives), or none, and makes its call."""
        everything = ", ".join(self.names)
        scope = {
            "op": self.overload._op,
            "overload": self.overload,
            "transform_level": torch._C._functorch.maybe_current_level,
            "forward_ad": _forward_ad,
            "is_compiling": torch.compiler.is_compiling,
            "is_grad_enabled": torch.is_grad_enabled,
            "any_requires_grad": torch._C._any_requires_grad,
            "below_autograd": torch._C._AutoDispatchBelowAutograd,
            "increment_version": torch.autograd.graph.increment_version,
        }
        if derivatives is None:
            lines = [f"result = overload({everything})"]
            for name in self.written:
                # A compiled call is functional: whoever writes its result back raises the counter.
                lines += ["if not is_compiling():", f"    increment_version({name})"]
            self._make_call("call", self, [*lines, "return result"], scope)
            return
        _transforms.register(self, derivatives)
        scope["transformable"] = _transforms.transformable(self, derivatives)
        scope["eager"] = _transforms.eager(self, derivatives)
        lines = []
        if self.plain is not None:
            plain = ", ".join(self.plain.names)
            scope["plain"] = self.plain.overload._op
            scope["eager_plain"] = _transforms.eager(self.plain, derivatives, of=self)
            wanted = " or ".join(f"{name}.requires_grad" for name in self.plain.tensors)
            self._make_call(
                "call_plain",
                self.plain,
                [
                    *_elsewhere(self._completed()),
                    f"if is_grad_enabled() and ({wanted}): return eager_plain({plain})",
                    f"return plain({plain})",
                ],
                scope,
            )
            by_name = ", ".join(f"{name}={name}" for name in self.plain.names)
            scope["call_plain"] = self.call_plain
            lines.append(f"if {self._is_plain()}: return call_plain({by_name})")
        lines += [
            *_elsewhere(everything),
            f"if is_grad_enabled() and any_requires_grad({everything}): return eager({everything})",
            f"with below_autograd(): return op({everything})",
        ]
        self._make_call("call", self, lines, scope)

    def _make_call(self, attribute, operator, lines, scope):
        """Sets the attribute to a function of an operator's arguments, with defaults, by name."""
        # A default of a list is empty and never written into.
        signature = [
            f"{name}={operator.defaults[name]!r}" if name in operator.defaults else name
            for name in operator.names
        ]
        body = "\n    ".join(lines)
        name = operator.overload._opname
        setattr(self, attribute, self._function(name, ["*", *signature], body, **scope))

    def _is_plain(self):
        left_out = [name for name in self.names if name not in self.plain.names]
        none = [name for name in left_out if self.defaults[name] is None]
        others = [f"{name} == {self.defaults[name]!r}" for name in left_out if name not in none]
        return " and ".join([" is ".join([*none, "None"]), *others])

    def fake(self, function):
        """Registers function(arguments) as the operator's result without values, and as that of its plain form."""

        def checked(*args):
            _check_meta(self, args)
            return function(self.Arguments._make(args))

        register_fake(f"cadre::{self.overload._opname}", checked)
        if self.plain is not None:
            self.plain.fake(lambda arguments: function(self.complete(*arguments)))
        return function


def _elsewhere(arguments):
    """Calls inside transforms, and calls that are compiled."""
    return [
        "if transform_level() is not None or forward_ad._current_level >= 0:",
        f"    return transformable({arguments})",
        f"if is_compiling(): return overload({arguments})",
    ]


def _check_meta(operator, args):
    """Tensors on `meta` have no memory, so all of a call are there or none; sizes beside them may be on the host."""
    first = None
    for name, arg in zip(operator.names, args, strict=True):
        is_list = isinstance(arg, (list, tuple))
        for i, each in enumerate(arg if is_list else (arg,)):
            if not isinstance(each, torch.Tensor):
                continue
            first = first or (name, each.device)
            if each.is_meta == (first[1].type == "meta"):
                continue
            sizes = name in ("group_sizes", "group_offset_tensor") or name.endswith(
                ("_rows", "_cols", "_offsets")
            )
            if not (sizes and each.device.type == "cpu"):
                argument = name.removesuffix("_tensor")
                if is_list and len(arg) > 1:
                    argument += f"[{i}]"
                expected = f"{first[0]}.device = {first[1]}"
                raise wrong_value(operator.op, f"{argument}.device", each.device, expected)
