"""The names under which the ops appear in a profile."""

import functools

import jax


def scope(function):
    """The op under the name cadre.<op> in profiles and in the text of programs; gradients are found under it, too."""

    @functools.wraps(function)
    def named(*args, **options):
        with jax.named_scope(f"cadre.{function.__name__}"):
            return function(*args, **options)

    return named
