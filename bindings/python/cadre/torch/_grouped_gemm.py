"""grouped_gemm: D_i = alpha_i op(A_i) op(B_i) + beta_i C_i, every group of its own m, n and k; differentiable."""

import torch

from .. import _options, _structs
from .._errors import wrong_value
from . import _arguments, _dtypes
from ._calls import call, differentiable, into
from ._errors import translated
from ._grouped_tensor import GroupedTensor, as_grouped

_OP = "grouped_gemm"
_op = torch.ops.cadre.grouped_gemm.default
_out_op = torch.ops.cadre.grouped_gemm_out.default
# Its form is not empty: an empty list would be taken for one of tensors.
_NO_OPERAND = ([], None, None, None, [0])


def _flat(operand):
    """An operand as the operator takes it: tensors, rows, cols, offsets, form."""
    if operand is None:
        return _NO_OPERAND
    return operand.tensors, operand.rows, operand.cols, operand.offsets, operand.form


def grouped_gemm(
    a,
    b,
    *,
    transa=False,
    transb=False,
    alpha=None,
    beta=None,
    c=None,
    d=None,
    accumulate=False,
    out_dtype=None,
    capacity=None,
    precision="default",
):
    """D_i = alpha_i op(A_i) op(B_i) + beta_i C_i, where op transposes if transa (transb) is set.

    a, b, c and d are GroupedTensors, 3-D tensors or lists of matrices. Without d the result is new and has the form that
    a and b imply: stacked if both are, packed if one is, else a list; it is returned as a plain tensor or list where no
    GroupedTensor was given. Where dims of a packed a or b lie on a CUDA device, `capacity` must say how many elements the
    packed result has room for. a, b, c, alpha and beta are differentiable. With d, the result is written there (beta and
    accumulate then add to what d holds, unless c is given), which is not differentiable.
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
    scalars = (alpha, beta, alpha_value, beta_value, transa, transb, precision_code)
    try:
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
            operands = (*_flat(a), *_flat(b), *_flat(c), *_flat(result)[1:])
            into(_out_op, *operands, *scalars, written=result.tensors)
            return d
        shape = _result(a, b, transa, transb, capacity)
        dtype = out_dtype or _dtypes.product(_OP, a.dtype, b.dtype, ("a", "b"))
        tensors = call(_op, *_flat(a), *_flat(b), *_flat(c), *_flat(shape)[1:], *scalars, dtype)
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


def _setup(ctx, inputs, output):
    a, b, c, d = inputs[0:5], inputs[5:10], inputs[10:15], inputs[15:19]
    alpha, beta, ctx.alpha_value, ctx.beta_value, ctx.transa, ctx.transb, ctx.precision, _ = inputs[
        19:
    ]
    ctx.counts = [len(each[0]) for each in (a, b, c)]
    ctx.forms = [each[4] for each in (a, b, c)] + [d[3]]
    ctx.save_for_backward(alpha, beta, *a[1:4], *b[1:4], *c[1:4], *d[0:3], *a[0], *b[0], *c[0])


def _backward(ctx, dd):
    alpha, beta, *rest = ctx.saved_tensors
    extents, tensors = [rest[3 * i : 3 * i + 3] for i in range(4)], rest[12:]
    a_count, b_count, c_count = ctx.counts
    a = (tensors[:a_count], *extents[0], ctx.forms[0])
    b = (tensors[a_count : a_count + b_count], *extents[1], ctx.forms[1])
    c = (tensors[a_count + b_count :], *extents[2], ctx.forms[2])
    if ctx.forms[3][0] != _structs.STACKED:
        # A packed buffer has no strides, and a list's matrices share theirs: a sum's gradient, say, has others.
        dd = [each.contiguous() for each in dd]
    dd = (list(dd), *extents[3], ctx.forms[3])
    needs = ctx.needs
    scalars = (alpha, None, ctx.alpha_value, 0.0)

    def product(x, y, transx, transy, like):
        return call(
            _op,
            *x,
            *y,
            *_NO_OPERAND,
            *like[1:],
            *scalars,
            transx,
            transy,
            ctx.precision,
            like[0][0].dtype,
        )

    da, db, dc = [None] * a_count, [None] * b_count, [None] * c_count
    dalpha = dbeta = None
    if any(needs[0]):
        da = (
            product(b, dd, ctx.transb, True, a)
            if ctx.transa
            else product(dd, b, False, not ctx.transb, a)
        )
    if any(needs[5]):
        db = (
            product(dd, a, True, ctx.transa, b)
            if ctx.transb
            else product(a, dd, not ctx.transa, False, b)
        )
    if any(needs[10]):
        dc = [_times_groups(each, beta, ctx.beta_value, i, c) for i, each in enumerate(dd[0])]
    if needs[19]:
        dtype = _dtypes.accumulator(dd[0][0].dtype)
        again = call(
            _op,
            *a,
            *b,
            *_NO_OPERAND,
            *dd[1:],
            None,
            None,
            1.0,
            0.0,
            ctx.transa,
            ctx.transb,
            ctx.precision,
            dtype,
        )
        dalpha = _dots(again, dd, alpha)
    if needs[20]:
        dbeta = _dots(c[0], dd, beta)
    nothing = (None, None, None, None)
    return (
        da,
        *nothing,
        db,
        *nothing,
        dc,
        *nothing,
        *nothing,
        dalpha,
        dbeta,
        None,
        None,
        None,
        None,
        None,
        None,
    )


def _per_element(scalars, operand):
    """scalars[g] for every element of a packed buffer, from per-group dims on the host or the device."""
    _, rows, cols, offsets, form = operand
    if offsets is not None:
        raise NotImplementedError(
            "grouped_gemm: gradients through c, alpha or beta for a packed tensor with offsets"
        )
    groups = form[1]
    device = scalars.device
    each = [
        torch.full((groups,), uniform, device=device)
        if values is None
        else values.to(device=device, dtype=torch.int64)
        for uniform, values in ((form[2], rows), (form[3], cols))
    ]
    ends = torch.cumsum(each[0] * each[1], 0)
    index = torch.searchsorted(ends, torch.arange(form[6], device=device), right=True)
    # Behind the last group: zero.
    return torch.cat([scalars, scalars.new_zeros(1)])[index], index


def _times_groups(dd, beta, beta_value, i, c):
    """beta_g * dd for one of C's tensors."""
    if beta is None:
        return (dd * beta_value).to(c[0][i].dtype)
    placement = c[4][0]
    if placement == _structs.STACKED:
        factor = beta[:, None, None]
    elif placement == _structs.LIST:
        factor = beta[i]
    else:
        factor, _ = _per_element(beta, c)
    return (dd * factor).to(c[0][i].dtype)


def _dots(tensors, dd, like):
    """The sum of tensors * dd over each group, in the dtype of `like`."""
    dtype = _dtypes.accumulator(dd[0][0].dtype)
    placement = dd[4][0]
    if placement == _structs.STACKED:
        sums = (tensors[0].to(dtype) * dd[0][0].to(dtype)).sum((1, 2))
    elif placement == _structs.LIST:
        sums = torch.stack([(x.to(dtype) * y.to(dtype)).sum() for x, y in zip(tensors, dd[0])])
    else:
        groups = dd[4][1]
        _, index = _per_element(like, dd)
        products = tensors[0].to(dtype) * dd[0][0].to(dtype)
        sums = products.new_zeros(groups + 1).index_add(0, index, products)[:groups]
    return sums.to(like.dtype)


def _tangent(op, inputs, tangents):
    """The product is linear in a, b and alpha, the rest in c and beta."""
    c, beta, beta_value = inputs[10:15], inputs[20], inputs[22]
    dtype = inputs[26]
    terms = []
    for place in (0, 5, 19):
        if tangents[place] is not None:
            arguments = [*inputs[:10], *_NO_OPERAND, *inputs[15:]]
            arguments[place], arguments[20], arguments[22] = tangents[place], None, 0.0
            terms.append(call(op, *arguments))
    if (tangents[10] is not None or tangents[20] is not None) and c[4][0] != inputs[18][0]:
        raise NotImplementedError(
            "grouped_gemm: tangents of c or beta where c and the result have different forms"
        )
    if tangents[10] is not None:
        scaled = (
            _times_groups(each, beta, beta_value, i, c) for i, each in enumerate(tangents[10])
        )
        terms.append([each.to(dtype) for each in scaled])
    if tangents[20] is not None:
        scaled = (_times_groups(each, tangents[20], 0.0, i, c) for i, each in enumerate(c[0]))
        terms.append([each.to(dtype) for each in scaled])
    return [sum(each[1:], start=each[0]) for each in zip(*terms, strict=True)]


differentiable(_op, _setup, _backward, _tangent, returns_list=True)
