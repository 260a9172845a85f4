"""From the C ABI's status codes to Python exceptions, and the one form of every argument error."""

import re

from . import _structs

_WRONG_TYPE = re.compile(r"\w+: [\w.\[\]]+\.dtype = ")
_EXCEPTIONS = {
    _structs.INVALID: ValueError,
    _structs.UNSUPPORTED: NotImplementedError,
    _structs.INTERNAL: RuntimeError,
}


def exception_for(code, message):
    """TypeError for a wrong element type, ValueError for any other fault of the caller's, NotImplementedError if no
    backend takes the problem, else RuntimeError."""
    if code == _structs.INVALID and _WRONG_TYPE.match(message):
        return TypeError(message)
    if code == _structs.UNSUPPORTED and " on cuda:" in message and "; cuda: " not in message:
        message += (
            ". This libcadre was built without CUDA: in its sources, "
            "pip install -C cmake.define.CADRE_CUDA=ON ."
        )
    return _EXCEPTIONS.get(code, RuntimeError)(message)


def wrong_value(op, argument, received, expected):
    """A ValueError in the library's own form: `gmm: rhs.k = 512, expected lhs.k = 448`."""
    return ValueError(f"{op}: {argument} = {received}, expected {expected}")


def wrong_type(op, argument, received, expected):
    """A TypeError naming the argument, what was expected and the type that was received."""
    name = received.__name__ if isinstance(received, type) else type(received).__name__
    return TypeError(f"{op}: {argument} is {_with_article(name)}, expected {expected}")


def renamed(error, words):
    """The same exception in the caller's words. `words`: from those of the op that raised it to those of the call."""
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b")
    return type(error)(pattern.sub(lambda word: words[word.group()], str(error)))


def _with_article(name):
    return ("an " if name[:1].lower() in "aeiou" else "a ") + name
