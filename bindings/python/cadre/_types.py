"""The types of the NumPy front's arguments, and those that all fronts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from ._scaled import ScaledTensor

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default; typing's own has one from Python 3.13 on

    #: What is given as `out`, and returned: a new array where nothing is given.
    Out = TypeVar("Out", default=NDArray[Any])
else:
    from typing import TypeVar

    Out = TypeVar("Out")


class SupportsDLPack(Protocol):
    """A tensor of any framework in host memory."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Array: TypeAlias = NDArray[Any] | SupportsDLPack
#: One array, or one for each group.
Arrays: TypeAlias = Array | Sequence[Array]
#: What is multiplied: FP8 data come with their scales.
Operand: TypeAlias = Array | ScaledTensor
Operands: TypeAlias = Arrays | ScaledTensor
#: Rows of each group.
Sizes: TypeAlias = Array | Sequence[int]
#: One number, or one for each group.
Scalars: TypeAlias = float | Array | Sequence[float]

Tail: TypeAlias = Literal["zero", "untouched", "forbid"]
Precision: TypeAlias = Literal["default", "tf32"]
Score: TypeAlias = Literal["softmax", "sigmoid"]
GroupScore: TypeAlias = Literal["max", "top_two"]
ScaleMode: TypeAlias = Literal["tensor", "row", "block_128", "mx"]
ActivationName: TypeAlias = Literal[
    "swiglu",
    "geglu",
    "geglu_tanh",
    "clamped_swiglu",
    "silu",
    "gelu",
    "gelu_tanh",
    "relu2",
    "none",
]
#: A gate or activation: its name, or the caller's own function.
Activation: TypeAlias = ActivationName | Callable[..., Any]
