"""Options that are words in Python and numbers in the C ABI."""

import numpy

from . import _structs
from ._errors import wrong_type, wrong_value

TAILS = {
    "zero": _structs.TAIL_ZERO,
    "untouched": _structs.TAIL_UNTOUCHED,
    "forbid": _structs.TAIL_FORBID,
}
SCORES = {"softmax": _structs.SCORE_SOFTMAX, "sigmoid": _structs.SCORE_SIGMOID}
GROUP_SCORES = {"max": _structs.GROUP_SCORE_MAX, "top_two": _structs.GROUP_SCORE_TOP_TWO}
PRECISIONS = {"default": _structs.PRECISION_DEFAULT, "tf32": _structs.PRECISION_TF32}

ACTIVATIONS = {
    "swiglu": _structs.SWIGLU,
    "geglu": _structs.GEGLU_ERF,
    "geglu_tanh": _structs.GEGLU_TANH,
    "clamped_swiglu": _structs.CLAMPED_SWIGLU,
    "silu": _structs.SILU,
    "gelu": _structs.GELU_ERF,
    "gelu_tanh": _structs.GELU_TANH,
    "relu2": _structs.RELU2,
    "none": _structs.NO_ACTIVATION,
}


def _code(op, argument, value, codes):
    try:
        return codes[value]
    except (KeyError, TypeError):
        raise wrong_value(op, argument, repr(value), " or ".join(map(repr, codes))) from None


def flag(op, argument, value):
    """True or False from a bool, Python's or NumPy's. What is merely truthy, an array or "no", is an argument in the wrong place."""
    if isinstance(value, (bool, numpy.bool_)):
        return bool(value)
    raise wrong_type(op, argument, value, "a bool")


def tail(op, value):
    return _code(op, "tail", value, TAILS)


def precision(op, value):
    return _code(op, "precision", value, PRECISIONS)


def expert_score(op, value):
    return _code(op, "score", value, SCORES)


def expert_group_score(op, value):
    return _code(op, "group_score", value, GROUP_SCORES)
