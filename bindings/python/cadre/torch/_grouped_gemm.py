"""grouped_gemm: D_i = alpha_i op(A_i) op(B_i) + beta_i C_i, every group of its own m, n and k; differentiable."""

from __future__ import annotations

from typing import Any

import torch

from .. import _options, _structs
from .._errors import wrong_value
from .._types import Precision
from . import _arguments, _dtypes, _operators, _scaled
from ._errors import translated
from ._grouped_tensor import GroupedTensor, as_grouped
from ._transforms import Derivatives
from ._types import Grouped, Out, Tensor

_OP = "grouped_gemm"
_NAMES = {
    role: (role, f"{role}_rows", f"{role}_cols", f"{role}_offsets", f"{role}_form")
    for role in "abcd"
}


def _form(grouped, role):
    """The operator's arguments for an operand in that role, but for its tensors."""
    values = grouped.rows, grouped.cols, grouped.offsets, grouped.form
    return dict(zip(_NAMES[role][1:], values, strict=True))


def _named(grouped, role):
    """The operator's arguments for an operand in that role."""
    values = grouped.tensors, grouped.rows, grouped.cols, grouped.offsets, grouped.form
    return dict(zip(_NAMES[role], values, strict=True))


def _operand(arguments, role, tensors):
    """The operand of that role; d's tensors are not among the arguments."""
    rows, cols, offsets, form = (getattr(arguments, name) for name in _NAMES[role][1:])
    return GroupedTensor(form[0], tensors, form, rows, cols, offsets)


def grouped_gemm(
    a: Grouped,
    b: Grouped,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: float | Tensor | None = None,
    beta: float | Tensor | None = None,
    c: Grouped | None = None,
    d: Out | None = None,
    accumulate: bool = False,
    out_dtype: torch.dtype | None = None,
    capacity: int | None = None,
    precision: Precision = "default",
    fast_accumulation: bool = False,
) -> Any:
    """D_i = alpha_i op(A_i) op(B_i) + beta_i C_i, where op transposes if transa (transb) is set.

    A_i is [m_i, k_i], or [k_i, m_i] with transa, B_i [k_i, n_i], or [n_i, k_i] with transb, C_i and D_i [m_i, n_i]. a, b, c
    and d are GroupedTensors, 3-D tensors or lists of matrices. Without d the result is new and has the form that
    a and b imply: stacked if both are, packed if one is, else a list; it is returned as a plain tensor or list where no
    GroupedTensor was given. Where dims of a packed a or b lie on a CUDA device, `capacity` must say how many elements the
    packed result has room for. a, b, c, alpha and beta are differentiable. With d, the result is written there (beta and
    accumulate then add to what d holds, unless c is given), which is not differentiable.

    >>> a = [torch.ones(2, 3), torch.ones(4, 5)]
    >>> b = [torch.ones(3, 6), torch.ones(5, 1)]
    >>> [tuple(d.shape) for d in cadre.torch.grouped_gemm(a, b)]
    [(2, 6), (4, 1)]
    """
    wrapped = any(isinstance(each, GroupedTensor) for each in (a, b, c, d))
    a, b = as_grouped(_OP, "a", a), as_grouped(_OP, "b", b)
    c = None if c is None else as_grouped(_OP, "c", c)
    transa, transb = _options.flag(_OP, "transa", transa), _options.flag(_OP, "transb", transb)
    if _options.flag(_OP, "accumulate", accumulate) and beta is not None:
        raise wrong_value(_OP, "beta", beta, "None because accumulate is given")
    alpha_value, alpha = _arguments.scalars(_OP, "alpha", alpha, 1.0)
    beta_value, beta = (1.0, None) if accumulate else _arguments.scalars(_OP, "beta", beta, 0.0)
    if c is None and d is None and (beta is not None or beta_value):
        raise wrong_value(_OP, "c", None, "a grouped tensor, because beta or accumulate adds it")
    precision_code = _options.precision(_OP, precision)
    shared = {
        **_named(a, "a"),
        **_named(b, "b"),
        **({} if c is None else _named(c, "c")),
        "alpha": alpha,
        "beta": beta,
        "alpha_value": alpha_value,
        "beta_value": beta_value,
        "transa": transa,
        "transb": transb,
        "precision": precision_code,
        "fast_accumulation": _options.flag(_OP, "fast_accumulation", fast_accumulation),
        **_scaled.of_groups(a, "a"),
        **_scaled.of_groups(b, "b"),
    }
    try:
        if a.mode or b.mode:
            given = {"a": a.tensors, "b": b.tensors, "a.scales": a.scales, "b.scales": b.scales}
            given |= {"c": c.tensors if c else [], "alpha": alpha, "beta": beta}
            _scaled.refuse_gradients(_OP, given)
        if d is not None:
            if out_dtype is not None:
                raise wrong_value(_OP, "out_dtype", out_dtype, "None because d is given")
            result = as_grouped(_OP, "d", d)
            given = {
                "a": a.tensors,
                "b": b.tensors,
                "c": c.tensors if c else [],
                "alpha": alpha,
                "beta": beta,
            }
            _arguments.refuse_gradients(_OP, given)
            listed = result.placement == _structs.LIST
            _arguments.outputs(_OP, "d", result.tensors if listed else result.tensors[0])
            _operators.grouped_gemm_out.call(**shared, **_named(result, "d"))
            return d
        shape = _result(a, b, transa, transb, capacity)
        dtype = out_dtype or _dtypes.product(_OP, a.dtype, b.dtype, ("a", "b"))
        tensors = _operators.grouped_gemm.call(**shared, **_form(shape, "d"), out_dtype=dtype)
    except RuntimeError as error:
        tensors = {
            "a": a.tensors,
            "b": b.tensors,
            "c": c.tensors if c else None,
            "alpha": alpha,
            "beta": beta,
        }
        raise translated(_OP, error, tensors, out_dtype) from None
    if wrapped:
        return shape.with_tensors(tensors)
    return tensors[0] if shape.placement == _structs.STACKED else tensors


def _result(a, b, transa, transb, capacity):
    """The form of a new D, without tensors."""
    if a.num_groups != b.num_groups:
        raise wrong_value(_OP, "b.num_groups", b.num_groups, f"a.num_groups = {a.num_groups}")
    if _structs.PACKED in (a.placement, b.placement):
        return _packed_result(a, b, transa, transb, capacity)
    shapes = []
    for i in range(a.num_groups):
        a_shape, b_shape = a.shape_of(i), b.shape_of(i)
        m, k = reversed(a_shape) if transa else a_shape
        b_k, n = reversed(b_shape) if transb else b_shape
        if k != b_k:
            raise wrong_value(_OP, f"b[{i}].k", b_k, f"a[{i}].k = {k}")
        shapes.append((m, n))
    if a.placement == b.placement == _structs.STACKED:
        m, n = shapes[0] if shapes else (a.form[3 if transa else 2], b.form[2 if transb else 3])
        return GroupedTensor(_structs.STACKED, None, [_structs.STACKED, a.num_groups, m, n])
    return GroupedTensor(
        _structs.LIST,
        None,
        [_structs.LIST, a.num_groups, *(dim for shape in shapes for dim in shape)],
    )


def _dim(operand, rows):
    """(uniform value or -1, per-group tensor or None, bound) of an operand's rows or cols."""
    index = 0 if rows else 1
    if operand.placement == _structs.LIST:
        return (
            -1,
            torch.tensor(operand.form[2 + index :: 2], dtype=torch.int64),
            max(operand.form[2 + index :: 2]),
        )
    per_group = operand.rows if rows else operand.cols
    uniform = operand.form[2 + index]
    if per_group is None:
        return uniform, None, uniform
    return (
        -1,
        per_group,
        operand.form[4 + index]
        if per_group.is_cuda
        else int(per_group.to(torch.int64).max())
        if len(per_group)
        else 0,
    )


def _packed_result(a, b, transa, transb, capacity):
    m, rows, max_m = _dim(a, rows=not transa)
    n, cols, max_n = _dim(b, rows=transb)
    if capacity is None:
        for name, values in (("a", rows), ("b", cols)):
            if values is not None and values.is_cuda:
                raise wrong_value(
                    _OP,
                    "capacity",
                    None,
                    f"elements of the result, because dims of {name} are on {values.device}",
                )
        each_m = torch.full((a.num_groups,), m) if rows is None else rows.to(torch.int64)
        each_n = torch.full((a.num_groups,), n) if cols is None else cols.to(torch.int64)
        capacity = int((each_m * each_n).sum())
    form = [_structs.PACKED, a.num_groups, m, n, max_m, max_n, capacity]
    return GroupedTensor(_structs.PACKED, None, form, rows, cols)


def _kept(needs):
    """All of them: the forms of a, b and c are needed with their tensors."""
    extents = [f"{role}_{field}" for role in "abcd" for field in ("rows", "cols", "offsets")]
    return ["a", "b", "c", "alpha", "beta", *extents]


def _product(x, y, transx, transy, like, *, dtype=None, **scalars):
    """op(x) op(y) in the form of `like`, and of its dtype unless another is given."""
    return _operators.grouped_gemm.call(
        **_named(x, "a"),
        **_named(y, "b"),
        **_form(like, "d"),
        transa=transx,
        transb=transy,
        out_dtype=dtype or like.tensors[0].dtype,
        **scalars,
    )


def _backward(arguments, needs, dd):
    a, b, c = (_operand(arguments, role, getattr(arguments, role)) for role in "abc")
    if arguments.d_form[0] != _structs.STACKED:
        # A packed buffer has no strides, and a list's matrices share theirs: a sum's gradient, say, has others.
        dd = [each.contiguous() for each in dd]
    dd = _operand(arguments, "d", list(dd))
    alpha, beta, precision = arguments.alpha, arguments.beta, arguments.precision
    scalars = {"alpha": alpha, "alpha_value": arguments.alpha_value, "precision": precision}
    transa, transb = arguments.transa, arguments.transb
    gradients = {}
    if needs.a:
        gradients["a"] = (
            _product(b, dd, transb, True, a, **scalars)
            if transa
            else _product(dd, b, False, not transb, a, **scalars)
        )
    if needs.b:
        gradients["b"] = (
            _product(dd, a, True, transa, b, **scalars)
            if transb
            else _product(a, dd, not transa, False, b, **scalars)
        )
    if needs.c:
        gradients["c"] = [
            _times_groups(each, beta, arguments.beta_value, i, c)
            for i, each in enumerate(dd.tensors)
        ]
    if needs.alpha:
        dtype = _dtypes.accumulator(dd.tensors[0].dtype)
        again = _product(a, b, transa, transb, dd, dtype=dtype, precision=precision)
        gradients["alpha"] = _dots(again, dd, alpha)
    if needs.beta:
        gradients["beta"] = _dots(c.tensors, dd, beta)
    return gradients


def _per_element(scalars, operand):
    """scalars[g] for every element of a packed buffer, from per-group dims on the host or the device."""
    if operand.offsets is not None:
        raise NotImplementedError(
            "grouped_gemm: gradients through c, alpha or beta for a packed tensor with offsets"
        )
    device = scalars.device
    each = [
        torch.full((operand.num_groups,), uniform, device=device)
        if values is None
        else values.to(device=device, dtype=torch.int64)
        for uniform, values in ((operand.form[2], operand.rows), (operand.form[3], operand.cols))
    ]
    ends = torch.cumsum(each[0] * each[1], 0)
    index = torch.searchsorted(ends, torch.arange(operand.form[6], device=device), right=True)
    # Behind the last group: zero.
    return torch.cat([scalars, scalars.new_zeros(1)])[index], index


def _times_groups(dd, beta, beta_value, i, c):
    """beta_g * dd for one of C's tensors."""
    dtype = c.tensors[i].dtype
    if beta is None:
        return (dd * beta_value).to(dtype)
    if c.placement == _structs.STACKED:
        factor = beta[:, None, None]
    elif c.placement == _structs.LIST:
        factor = beta[i]
    else:
        factor, _ = _per_element(beta, c)
    return (dd * factor).to(dtype)


def _dots(tensors, dd, like):
    """The sum of tensors * dd over each group, in the dtype of `like`."""
    dtype = _dtypes.accumulator(dd.tensors[0].dtype)
    products = [x.to(dtype) * y.to(dtype) for x, y in zip(tensors, dd.tensors, strict=True)]
    if dd.placement == _structs.STACKED:
        sums = products[0].sum((1, 2))
    elif dd.placement == _structs.LIST:
        sums = torch.stack([each.sum() for each in products])
    else:
        _, index = _per_element(like, dd)
        sums = products[0].new_zeros(dd.num_groups + 1).index_add(0, index, products[0])
        sums = sums[: dd.num_groups]
    return sums.to(like.dtype)


def _tangent(operator, arguments, tangents):
    """The product is linear in a, b and alpha, the rest in c and beta."""
    c, beta = _operand(arguments, "c", arguments.c), arguments.beta
    given = arguments._asdict()
    terms = []
    for name in ("a", "b", "alpha"):
        if (tangent := getattr(tangents, name)) is not None:
            without_c = {key: operator.defaults[key] for key in _NAMES["c"]}
            alone = {**without_c, "beta": None, "beta_value": 0.0, name: tangent}
            terms.append(operator.call(**{**given, **alone}))
    if (tangents.c is not None or tangents.beta is not None) and c.placement != arguments.d_form[0]:
        raise NotImplementedError(
            "grouped_gemm: tangents of c or beta where c and the result have different forms"
        )
    scaled = []
    if tangents.c is not None:
        scaled.append((tangents.c, beta, arguments.beta_value))
    if tangents.beta is not None:
        scaled.append((c.tensors, tangents.beta, 0.0))
    for tensors, factors, factor in scaled:
        each = (_times_groups(tensor, factors, factor, i, c) for i, tensor in enumerate(tensors))
        terms.append([tensor.to(arguments.out_dtype) for tensor in each])
    return [sum(each[1:], start=each[0]) for each in zip(*terms, strict=True)]


_operators.grouped_gemm.differentiable(Derivatives(_kept, _backward, _tangent))
