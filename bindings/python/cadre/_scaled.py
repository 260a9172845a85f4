"""ScaledTensor: FP8 data and their scales, as every front takes them; and the C ABI's form of one made of NumPy arrays."""

from ctypes import pointer
from typing import Any

from . import _dtypes, _structs, _views
from ._errors import wrong_type, wrong_value

#: "tensor", "row", "block_128" and "mx": what shares one scale.
MODES = {name: code for name, code in _structs.SCALE_MODES.items() if code}
#: Inner values that share a scale, in the modes with blocks.
BLOCKS = {MODES["block_128"]: 128, MODES["mx"]: 32}
#: The recipes of training, named after their modes, and the type that each quantises gradients to. All else is e4m3.
GRADIENTS = {
    "block_128": "float8_e4m3fn",
    "row": "float8_e4m3fn",
    "tensor": "float8_e5m2",
    "mx": "float8_e4m3fn",
}
#: Each group of a column-wise copy has a multiple of so many rows.
COLUMN_ALIGNMENT = 32


class ScaledTensor:
    """Quantised data: a value is `data` times the scale that belongs to it.

    data: e4m3 or e5m2 values, rows [m, k] or weights [g, n, k] (or [g, k, n], or a list of g matrices).
    scales, by mode, for rows | for weights (of a list: one tensor, or a list without the leading g):
      "tensor"     [1] f32                     | [1] or [g] f32
      "row"        [m] f32                     | [g, n] f32
      "block_128"  [m, ceil(k/128)] f32 or e8m0 | [g, ceil(n/128), ceil(k/128)] f32 or e8m0
      "mx"         [m, ceil(k/32)] e8m0        | [g, n, ceil(k/32)] e8m0
    Weights stored [g, k, n] have the last two dims of block and mx scales exchanged. Any strides do.
    columns: data is the column-wise copy that quantize makes for tgmm, [k, capacity], with scales along the rows of each
    group (docs/fp8.md has the layout).

    >>> import ml_dtypes
    >>> lhs = cadre.ScaledTensor(np.ones((6, 4), ml_dtypes.float8_e4m3fn), np.full(6, 0.5, np.float32), "row")
    >>> rhs = cadre.ScaledTensor(np.ones((3, 4, 5), ml_dtypes.float8_e4m3fn), np.ones((3, 5), np.float32), "row")
    >>> cadre.gmm(lhs, rhs, [2, 0, 4])[0, 0]
    2
    """

    __slots__ = ("columns", "data", "mode", "scales")

    def __init__(self, data: Any, scales: Any, mode: str, *, columns: bool = False) -> None:
        if mode not in MODES:
            raise wrong_value("ScaledTensor", "mode", repr(mode), " or ".join(map(repr, MODES)))
        if not isinstance(columns, bool):
            raise wrong_type("ScaledTensor", "columns", columns, "a bool")
        self.data, self.scales, self.mode, self.columns = data, scales, mode, columns

    def __repr__(self) -> str:
        listed = isinstance(self.data, (list, tuple))
        what = f"{len(self.data)} matrices" if listed else f"shape={tuple(getattr(self.data, 'shape', ()))}"
        copy = ", columns=True" if self.columns else ""
        return f"{type(self).__name__}({what}, mode={self.mode!r}{copy})"


def mode_of(op, mode):
    """The code of a mode's name."""
    if not isinstance(mode, str) or mode not in MODES:
        raise wrong_value(op, "mode", repr(mode), " or ".join(map(repr, MODES)))
    return MODES[mode]


def check_recipe(op, name):
    """Refuses what is no recipe's name."""
    if not isinstance(name, str) or name not in GRADIENTS:
        raise wrong_value(op, "recipe", repr(name), f"{', '.join(map(repr, GRADIENTS))} or None")


def _blocks(size, block):
    return -(-size // block)


def _blocks_at_most(m, num_groups, block):
    """How many blocks m rows in these groups may need: each group that has rows begins with a new one."""
    whole = isinstance(m, int) and isinstance(num_groups, int)  # JAX has dims that are known later
    groups_with_rows = min(m, num_groups) if whole else num_groups
    return (m + groups_with_rows * (block - 1)) // block


def scale_shape(mode, shape):
    """The scales of rows [m, k] or weights [g, n, k], along the last dim."""
    if mode == MODES["tensor"]:
        return (shape[0],) if len(shape) == 3 else (1,)
    if mode == MODES["row"]:
        return tuple(shape[:-1])
    block = BLOCKS[mode]
    inner = _blocks(shape[-1], block)
    if len(shape) == 3 and mode == MODES["block_128"]:
        return (shape[0], _blocks(shape[1], block), inner)
    return (*shape[:-1], inner)


def column_shapes(mode, shape, num_groups):
    """The data and the scales of the column-wise copy of rows [m, k] that has room for any sizes."""
    m, k = shape
    data = (k, _blocks_at_most(m, num_groups, COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT)
    if mode == MODES["tensor"]:
        return data, (1,)
    if mode == MODES["row"]:
        return data, (num_groups, k)
    return data, (_blocks_at_most(m, num_groups, BLOCKS[mode]), k)


def is_copy(value):
    """Whether an operand is a column-wise copy."""
    return isinstance(value, ScaledTensor) and value.columns


def data_of(op, argument, value, *, columns=False):
    """An operand without its scales. `columns`: whether it may be a column-wise copy."""
    if not isinstance(value, ScaledTensor):
        return value
    if value.columns and not columns:
        expected = f"False: {op} takes rows, a column-wise copy is for tgmm"
        raise wrong_value(op, f"{argument}.columns", True, expected)
    return value.data


def scales_of(op, argument, value):
    """A cadre_scales of the NumPy arrays in a ScaledTensor; None for any other value."""
    if not isinstance(value, ScaledTensor):
        return None
    result = _structs.Scales(mode=MODES[value.mode])
    name = f"{argument}.scales"
    if not isinstance(value.scales, (list, tuple)):
        view = _views.tensor(op, name, value.scales, _dtypes.SCALES)
        result.values, result.owner = view, view
        return result
    views, pointers = _views.list_of_one_form(op, name, value.scales, _dtypes.SCALES)
    result.values = views[0]
    result.values.data = None
    result.pointers = pointers
    result.owner = (views, pointers)
    return result


def reference(op, argument, value):
    """What a struct's pointer to scales takes. ctypes keeps what it points to alive."""
    scales = scales_of(op, argument, value)
    return None if scales is None else pointer(scales)
