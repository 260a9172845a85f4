"""Options that are words in Python and numbers in the C ABI."""

from . import _structs
from ._errors import wrong_value

TAILS = {
    "zero": _structs.TAIL_ZERO,
    "untouched": _structs.TAIL_UNTOUCHED,
    "forbid": _structs.TAIL_FORBID,
}
PRECISIONS = {"default": _structs.PRECISION_DEFAULT, "tf32": _structs.PRECISION_TF32}


def _code(op, argument, value, codes):
    try:
        return codes[value]
    except (KeyError, TypeError):
        raise wrong_value(op, argument, repr(value), " or ".join(map(repr, codes))) from None


def tail(op, value):
    return _code(op, "tail", value, TAILS)


def precision(op, value):
    return _code(op, "precision", value, PRECISIONS)
