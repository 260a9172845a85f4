"""GroupedTensor: one matrix for each group, of shapes that may differ. Views of the caller's tensors, nothing owned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .. import _structs
from .._errors import wrong_type, wrong_value
from .._types import ScaleMode
from . import _arguments, _scaled
from ._types import Sizes, Tensor


class GroupedTensor:
    """Operands and results of grouped_gemm, in one of three forms.

    GroupedTensor.stacked(tensor)          one [g, rows, cols] tensor
    GroupedTensor.list(tensors)            g matrices, each of its own shape
    GroupedTensor.packed(buffer, rows, cols, ...)  row-major matrices in one 1-D buffer, back to back or at `offsets`

    In a packed one, rows and cols are ints, or tensors (or lists) with one value for each group; values on a CUDA device
    are never read by the host, so max_rows and max_cols must bound them.

    FP8 data come with scales and their mode, as in a ScaledTensor: quantised(scales, mode) of any of the forms.

    >>> buffer = torch.ones(2 * 4 + 3 * 4)  # a [2, 4] matrix and a [3, 4] one behind it
    >>> cadre.torch.GroupedTensor.packed(buffer, rows=[2, 3], cols=4)
    GroupedTensor(packed, num_groups=2, dtype=torch.float32, device=cpu)
    """

    def __init__(
        self,
        placement: int,
        tensors: Sequence[Tensor],
        form: Sequence[int],
        rows: Tensor | None = None,
        cols: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        self.placement, self.tensors, self.form = placement, tensors, form
        self.rows, self.cols, self.offsets = rows, cols, offsets
        self.scales, self.mode = None, None

    def quantised(self, scales: Tensor | Sequence[Tensor], mode: ScaleMode) -> GroupedTensor:
        """The same data with their scales: one tensor, or one for each matrix of a list."""
        _scaled.ScaledTensor(None, scales, mode)  # knows the modes
        result = self.with_tensors(self.tensors)
        result.scales = _scaled.checked("GroupedTensor.quantised", "scales", scales)
        result.mode = mode
        return result

    @classmethod
    def stacked(cls, tensor: Tensor) -> GroupedTensor:
        _check_tensor("GroupedTensor.stacked", "tensor", tensor, 3)
        return cls(_structs.STACKED, [tensor], [_structs.STACKED, *tensor.shape])

    @classmethod
    def list(cls, tensors: Iterable[Tensor]) -> GroupedTensor:
        return _listed("GroupedTensor.list", "tensors", tensors)

    @classmethod
    def packed(
        cls,
        buffer: Tensor,
        rows: int | Sizes,
        cols: int | Sizes,
        *,
        offsets: Sizes | None = None,
        max_rows: int | None = None,
        max_cols: int | None = None,
    ) -> GroupedTensor:
        op = "GroupedTensor.packed"
        _check_tensor(op, "buffer", buffer, 1)
        form = packed_form(op, rows, cols, offsets, max_rows, max_cols, buffer.shape[0])
        extents = [
            None if isinstance(value, int) or value is None else _arguments.sizes(op, name, value)
            for name, value in (("rows", rows), ("cols", cols), ("offsets", offsets))
        ]
        return cls(_structs.PACKED, [buffer], form, *extents)

    @property
    def num_groups(self) -> int:
        return self.form[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def with_tensors(self, tensors: Sequence[Tensor]) -> GroupedTensor:
        """The same form over other tensors, without scales: a gradient, a copy in another dtype."""
        return GroupedTensor(self.placement, tensors, self.form, self.rows, self.cols, self.offsets)

    def shape_of(self, group: int) -> tuple[int, int]:
        """(rows, cols) of one group; only where they are known to the host."""
        if self.placement == _structs.STACKED:
            return self.form[2], self.form[3]
        if self.placement == _structs.LIST:
            return self.form[2 + 2 * group], self.form[3 + 2 * group]
        dims = []
        for name, uniform, per_group in (
            ("rows", self.form[2], self.rows),
            ("cols", self.form[3], self.cols),
        ):
            if per_group is not None and per_group.is_cuda:
                raise wrong_value(
                    "GroupedTensor.shape_of",
                    f"{name}.device",
                    per_group.device,
                    "cpu: the host reads no device",
                )
            dims.append(uniform if per_group is None else int(per_group[group]))
        return tuple(dims)

    def __repr__(self) -> str:
        kind = {_structs.STACKED: "stacked", _structs.LIST: "list", _structs.PACKED: "packed"}[
            self.placement
        ]
        scaled = "" if self.mode is None else f", mode={self.mode!r}"
        return f"GroupedTensor({kind}, num_groups={self.num_groups}, dtype={self.dtype}, device={self.device}{scaled})"


def packed_form(op, rows, cols, offsets, max_rows, max_cols, capacity):
    """The integers that travel with a packed tensor: see FormIndex in bindings/torch/grouped_gemm.h."""
    groups = None
    for name, value in (("rows", rows), ("cols", cols), ("offsets", offsets)):
        if value is None or isinstance(value, int):
            continue
        count = len(value)
        if groups is not None and count != groups:
            raise wrong_value(op, f"len({name})", count, groups)
        groups = count
    if groups is None:
        raise wrong_type(
            op, "rows", rows, "a tensor or list, where cols and offsets are none (else use stacked)"
        )
    bounds = []
    for name, value, bound in (("rows", rows, max_rows), ("cols", cols, max_cols)):
        on_device = isinstance(value, torch.Tensor) and value.is_cuda
        if on_device and bound is None:
            raise wrong_value(
                op, f"max_{name}", None, f"a bound, because {name} is on {value.device}"
            )
        bounds.append(bound or 0)
    uniform = [value if isinstance(value, int) else -1 for value in (rows, cols)]
    return [_structs.PACKED, groups, *uniform, *bounds, capacity]


def _listed(op, argument, tensors):
    tensors = [*tensors]
    if not tensors:
        raise wrong_value(op, f"len({argument})", 0, "at least 1")
    form = [_structs.LIST, len(tensors)]
    for i, tensor in enumerate(tensors):
        _check_tensor(op, f"{argument}[{i}]", tensor, 2)
        form += tensor.shape
    return GroupedTensor(_structs.LIST, tensors, form)


def _check_tensor(op, argument, tensor, rank):
    if not isinstance(tensor, torch.Tensor):
        raise wrong_type(op, argument, tensor, "a torch.Tensor")
    if tensor.dim() != rank:
        raise _arguments.wrong_rank(op, argument, tensor, rank)


def as_grouped(op, argument, value):
    """A GroupedTensor from what grouped_gemm accepts: one, a 3-D tensor, a list of matrices, or a ScaledTensor of them."""
    if isinstance(value, GroupedTensor):
        return value
    if isinstance(value, _scaled.ScaledTensor):
        data = _scaled.data_of(op, argument, value)
        scales = _scaled.checked(op, f"{argument}.scales", value.scales)
        return as_grouped(op, argument, data).quantised(scales, value.mode)
    if isinstance(value, torch.Tensor):
        if value.dim() != 3:
            raise _arguments.wrong_rank(op, argument, value, 3)
        return GroupedTensor.stacked(value)
    if isinstance(value, (list, tuple)):
        return _listed(op, argument, value)
    raise wrong_type(op, argument, value, "a GroupedTensor, a 3-D tensor or a list of matrices")
