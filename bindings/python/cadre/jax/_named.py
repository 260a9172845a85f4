"""The names under which the ops appear in a profile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def scope(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The op under the name cadre.<op> in profiles and in the text of programs; gradients are found under it, too."""

    @functools.wraps(function)
    def named(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with jax.named_scope(f"cadre.{function.__name__}"):
            return function(*args, **options)

    return named
