"""GroupedTensor: one matrix for each group, of shapes that may differ. Views of the caller's tensors, nothing owned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import _structs
from .._errors import wrong_type, wrong_value
from .._types import ScaleMode
from . import _arguments, _scaled
from ._quantize import quantize
from ._scaled import ScaledTensor
from ._types import Sizes, Tensor


class GroupedTensor:
    """Operands and results of grouped_gemm, in one of three forms.

    GroupedTensor.stacked(tensor)          one [g, rows, cols] tensor
    GroupedTensor.list(tensors)            g matrices, each of its own shape
    GroupedTensor.packed(buffer, rows, cols, ...)  row-major matrices in one 1-D buffer, back to back or at `offsets`

    In a packed one, rows and cols are ints, or tensors (or lists) with one value for each group; values on a CUDA device
    are never read by the host, so max_rows and max_cols must bound them.

    Rows of one matrix that are divided into groups are a packed one: GroupedTensor.of_rows(x, group_sizes).

    FP8 data come with scales and their mode, as in a ScaledTensor: quantised(scales, mode) of any of the forms, or
    quantize(mode) of float data. `columns` is the copy for a product that sums over the other dim, if there is one.

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
        self.scales, self.mode, self.columns = None, None, None

    def quantised(
        self,
        scales: Tensor | Sequence[Tensor],
        mode: ScaleMode,
        *,
        columns: ScaledTensor | None = None,
    ) -> GroupedTensor:
        """The same data with their scales: one tensor, or one for each matrix of a list. columns: as quantize makes them."""
        _scaled.ScaledTensor(None, scales, mode)  # knows the modes
        scales = _scaled.checked("GroupedTensor.quantised", "scales", scales)
        return self._scaled_by(self.tensors, scales, mode, columns)

    def _scaled_by(self, tensors, scales, mode, columns):
        result = self.with_tensors(tensors)
        result.scales, result.mode, result.columns = scales, mode, columns
        return result

    def quantize(
        self, mode: ScaleMode, *, rows: bool = True, columns: bool = False, **options: Any
    ) -> GroupedTensor:
        """FP8 of these float matrices, a GroupedTensor of the same form with scales by `mode`. Nothing is read by the host.

        A stack [g, n, k] or a list of [n, k] is quantised as weights, one of_rows as rows, each as cadre.torch.quantize
        does it; options are that function's. `columns` makes the copies scaled along the other dim, for the gradients of a
        product's input and weights; without `rows` they are all that is kept.

        >>> x = cadre.torch.GroupedTensor.of_rows(torch.ones(6, 4), [2, 0, 4])
        >>> fp8 = x.quantize("row", columns=True)
        >>> fp8
        GroupedTensor(packed, num_groups=3, dtype=torch.float8_e4m3fn, device=cpu, mode='row', columns)
        >>> fp8.columns.data.shape  # room for three groups of any sizes
        torch.Size([4, 96])
        """
        wanted = {"rows": rows, "columns": columns, **options}
        of_rows = self.as_rows()
        if of_rows is not None:
            made = _each(quantize(of_rows[0], mode, of_rows[1], **wanted), rows)
            data = made[0] and [made[0].data.view(-1)]
        elif self.placement == _structs.PACKED:
            raise wrong_value("GroupedTensor.quantize", "placement", "packed", "stacked, list or rows of one width")
        elif self.placement == _structs.STACKED:
            made = _each(quantize(self.tensors[0], mode, **wanted), rows)
            data = made[0] and [made[0].data]
        else:
            each = [_each(quantize(tensor.unsqueeze(0), mode, **wanted), rows) for tensor in self.tensors]
            made = [None if part[0] is None else _scaled.listed(part) for part in zip(*each, strict=True)]
            data = made[0] and made[0].data
        return self._scaled_by(data, made[0] and made[0].scales, mode, made[1])

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

    @classmethod
    def of_rows(cls, x: Tensor, group_sizes: Sizes) -> GroupedTensor:
        """The rows of x [m, k] in groups of group_sizes, as gmm's lhs has them: packed, over the same memory.

        >>> cadre.torch.GroupedTensor.of_rows(torch.ones(6, 4), [2, 0, 4]).shape_of(2)
        (4, 4)
        """
        op = "GroupedTensor.of_rows"
        _check_tensor(op, "x", x, 2)
        if not x.is_contiguous():
            raise wrong_value(op, "x.strides", list(x.stride()), f"{[x.shape[1], 1]}: a contiguous tensor")
        return cls.packed(x.view(-1), group_sizes, x.shape[1], max_rows=x.shape[0])

    @classmethod
    def of_columns(cls, columns: ScaledTensor, group_sizes: Sizes) -> GroupedTensor:
        """Rows in groups of which there is the column-wise copy alone, [k, capacity]: for weight gradients."""
        op = "GroupedTensor.of_columns"
        if not isinstance(columns, ScaledTensor):
            raise wrong_type(op, "columns", columns, "a ScaledTensor")
        if not columns.columns:
            raise wrong_value(op, "columns.columns", False, "True: a copy that quantize made with columns=True")
        width, capacity = columns.data.shape
        form = packed_form(op, group_sizes, width, None, capacity, None, capacity * width)
        result = cls(_structs.PACKED, None, form, _arguments.sizes(op, "group_sizes", group_sizes))
        result.mode, result.columns = columns.mode, columns
        return result

    def as_rows(self) -> tuple[Any, Tensor] | None:
        """(rows [m, k], group_sizes) of a packed one whose matrices have one width and lie back to back, else None.

        Of FP8 the rows are a ScaledTensor, and None where there are columns alone.
        """
        width = self.form[3]
        if self.placement != _structs.PACKED or self.rows is None or self.offsets is not None or width <= 0:
            return None
        if self.tensors is None:
            return None, self.rows
        height = self.form[6] // width
        data = self.tensors[0][: height * width].view(height, width)
        return data if self.mode is None else _scaled.ScaledTensor(data, self.scales, self.mode), self.rows

    @property
    def num_groups(self) -> int:
        return self.form[1]

    @property
    def dtype(self) -> torch.dtype:
        return self._first().dtype

    @property
    def device(self) -> torch.device:
        return self._first().device

    def _first(self):
        if self.tensors is not None:
            return self.tensors[0]
        return self.columns.data[0]

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
        scaled += "" if self.columns is None else ", columns" if self.tensors else ", columns alone"
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


def _each(made, rows):
    """(rows, columns) out of what quantize returns, None for what wasn't wanted."""
    return made if isinstance(made, tuple) else (made, None) if rows else (None, made)


def _check_tensor(op, argument, tensor, rank):
    if not isinstance(tensor, torch.Tensor):
        raise wrong_type(op, argument, tensor, "a torch.Tensor")
    if tensor.dim() != rank:
        raise _arguments.wrong_rank(op, argument, tensor, rank)


def as_grouped(op, argument, value):
    """A GroupedTensor from what grouped_gemm accepts: one, a 3-D tensor, a list of matrices, or a ScaledTensor of them."""
    if isinstance(value, GroupedTensor):
        if value.tensors is None:
            raise wrong_value(op, f"{argument}.tensors", None, "row-wise data, because there are columns alone")
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
