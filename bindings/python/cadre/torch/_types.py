"""The types of the PyTorch front's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from .._scaled import ScaledTensor

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default; typing's own has one from Python 3.13 on

    from ._grouped_tensor import GroupedTensor

    #: What is given as `out`, and returned: a new tensor where nothing is given.
    Out = TypeVar("Out", default=Tensor)
else:
    from typing import TypeVar

    Out = TypeVar("Out")

#: One tensor, or one for each group.
Tensors: TypeAlias = Tensor | Sequence[Tensor]
#: What is multiplied: FP8 data come with their scales.
Operand: TypeAlias = Tensor | ScaledTensor
Operands: TypeAlias = Tensors | ScaledTensor
#: Rows of each group, on either device.
Sizes: TypeAlias = Tensor | Sequence[int]
#: An operand of grouped_gemm.
Grouped: TypeAlias = "GroupedTensor | ScaledTensor | Tensor | Sequence[Tensor]"
