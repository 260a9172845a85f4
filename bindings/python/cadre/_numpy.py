"""The NumPy front: gmm, tgmm, grouped_gemm and bias_grad on the CPU. Inputs may also be DLPack tensors; results are NumPy arrays."""

from __future__ import annotations

from ctypes import byref
from typing import Any, SupportsIndex, overload

import numpy
from numpy.typing import DTypeLike, NDArray

from . import _dtypes, _options, _pack, _scaled, _structs, _views
from ._errors import wrong_value
from ._library import check, context, library, new
from ._pack import PackedWeights
from ._types import Array, Arrays, Operand, Operands, Out, Precision, Scalars, Sizes, Tail
from ._views import reference


def _output_dtype(op, names, lhs, rhs, asked):
    """The NumPy dtype of a new result. `names` are what the op calls its operands."""
    if asked is not None:
        try:
            code = _dtypes.code_of(asked)
        except TypeError:
            code = 0
        if code not in _dtypes.RESULTS:
            expected = _dtypes.numpy_names(_dtypes.RESULTS)
            raise TypeError(f"{op}: out_dtype = {asked!r}, expected {expected}")
        return _dtypes.numpy_of(code)
    code = _dtypes.default_output(lhs, rhs)
    if not code:
        left, right = (f"{name}.dtype = {_dtypes.numpy_of(code)}" for name, code in zip(names, (lhs, rhs), strict=True))
        partners = _dtypes.partners(lhs)
        if not partners:
            raise TypeError(f"{op}: {left}, expected {_dtypes.numpy_names(_dtypes.OPERANDS)}")
        raise TypeError(f"{op}: {right}, expected {_dtypes.numpy_names(partners)} because {left}")
    return _dtypes.numpy_of(code)


def _local_groups(op, num_groups, group_offset, count):
    """How many groups a new result has."""
    if num_groups is None:
        if not 0 <= group_offset <= count:
            raise wrong_value(op, "group_offset", group_offset, f"0 to {count}")
        return count - group_offset
    groups = _views.index(op, "num_groups", num_groups)
    if not 0 <= groups <= count:
        raise wrong_value(op, "num_groups", groups, f"0 to {count}, the number of group_sizes")
    return groups


def _call_options(op, precision):
    options = new(_structs.CallOptions)
    options.precision = _options.precision(op, precision)
    return options


def _fill_scalars(op, args, alpha, beta, accumulate):
    args.alpha, per_group = _views.scalars(op, "alpha", alpha, 1.0)
    args.alpha_per_group = reference(per_group)
    args.beta, per_group_beta = _views.scalars(op, "beta", beta, 0.0)
    args.beta_per_group = reference(per_group_beta)
    args.accumulate = _options.flag(op, "accumulate", accumulate)


def gmm(
    lhs: Operand,
    rhs: Operands,
    group_sizes: Sizes,
    *,
    transpose_rhs: bool = False,
    alpha: Scalars | None = None,
    bias: Arrays | None = None,
    bias_scale: Array | None = None,
    row_scale: Array | None = None,
    out: Out | None = None,
    out_dtype: DTypeLike | None = None,
    c: Arrays | None = None,
    beta: Scalars | None = None,
    accumulate: bool = False,
    tail: Tail = "zero",
    group_offset: SupportsIndex = 0,
    precision: Precision = "default",
    packed_rhs: PackedWeights | None = None,
) -> Out:
    """out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs[g]) + bias_scale[r] * bias[g]) + beta_g * c[r], g the group of row r.

    lhs [m, k]; rhs [g, k, n] (or [g, n, k] with transpose_rhs), one array or a list of g matrices; group_sizes: integers,
    rows of each group, their sum at most m. bias [g, n], bias_scale [m] and row_scale [m] are optional; alpha and beta
    are numbers or [g] arrays. Rows behind the last group ("tail") become zero unless `tail` says "untouched" (needs out)
    or "forbid". With group_offset, rhs holds only the groups group_offset ... group_offset + g - 1 of group_sizes.
    packed_rhs is what pack_weights made of rhs. FP8 operands are ScaledTensors, both of them.
    Returns out, [m, n]: the array given as `out`, or a new one of out_dtype.

    >>> lhs, rhs = np.ones((6, 4)), np.ones((3, 4, 5))
    >>> rhs[2] *= 10
    >>> cadre.gmm(lhs, rhs, [2, 0, 4])[:, 0]  # two rows for group 0, none for group 1, four for group 2
    array([ 4.,  4., 40., 40., 40., 40.])
    """
    op = "gmm"
    transpose_rhs = _options.flag(op, "transpose_rhs", transpose_rhs)
    lhs_scales = _scaled.reference(op, "lhs", lhs)
    rhs_scales = _scaled.reference(op, "rhs", rhs)
    lhs, rhs = _scaled.data_of(op, "lhs", lhs), _scaled.data_of(op, "rhs", rhs)
    lhs_view = _views.tensor(op, "lhs", lhs)
    rhs_view = _views.grouped(
        op, "rhs", rhs, "[g, n, k]" if transpose_rhs else "[g, k, n]"
    )
    _views.needs_rank(op, "lhs", lhs_view, 2, "[m, k]")
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    if out is None:
        if tail == "untouched":
            raise wrong_value(
                op, "tail", "'untouched' without out", "an out whose tail rows are kept"
            )
        if c is None and (accumulate or beta is not None):
            raise wrong_value(op, "out", None, "an array, because accumulate or beta adds to it")
        n = rhs_view.rows.uniform if transpose_rhs else rhs_view.cols.uniform
        dtype = _output_dtype(op, ("lhs", "rhs"), lhs_view.dtype, rhs_view.dtype, out_dtype)
        # With beta the library keeps rows that no group covers, so they must hold something.
        make = numpy.zeros if c is not None else numpy.empty
        result: Any = make((lhs_view.shape[0], n), dtype)
    elif out_dtype is not None:
        raise wrong_value(op, "out_dtype", out_dtype, "None because out is given")
    else:
        _views.outputs(op, "out", out)
        result = out

    args = new(_structs.GmmArgs)
    args.lhs = reference(lhs_view)
    args.rhs = reference(rhs_view)
    args.group_sizes = sizes  # a copy of the struct: `sizes` itself keeps the integers alive
    args.out = reference(_views.grouped(op, "out", result, "[m, n]", _dtypes.RESULTS))
    args.transpose_rhs = transpose_rhs
    args.tail = _options.tail(op, tail)
    _fill_scalars(op, args, alpha, beta, accumulate)
    args.c = reference(_views.optional_grouped(op, "c", c, "[m, n]", _dtypes.RESULTS))
    args.bias = reference(_views.optional_grouped(op, "bias", bias, "[g, n]", _dtypes.FLOATS, vectors=True))
    args.bias_scale = reference(_views.vector(op, "bias_scale", bias_scale))
    args.row_scale = reference(_views.vector(op, "row_scale", row_scale))
    args.group_offset = _views.index(op, "group_offset", group_offset)
    args.packed_rhs = _pack.handle_of(op, packed_rhs)
    args.lhs_scales, args.rhs_scales = lhs_scales, rhs_scales
    args.options = reference(_call_options(op, precision))
    check(library.cadre_gmm(context(), byref(args)))
    return result


def tgmm(
    lhs: Operand,
    rhs: Operand,
    group_sizes: Sizes,
    *,
    num_groups: SupportsIndex | None = None,
    alpha: Scalars | None = None,
    out: Out | None = None,
    out_dtype: DTypeLike | None = None,
    c: Arrays | None = None,
    beta: Scalars | None = None,
    accumulate: bool = False,
    group_offset: SupportsIndex = 0,
    precision: Precision = "default",
) -> Out:
    """out[i] = alpha_i * (lhs[rows of group i]^T @ rhs[rows of group i]) + beta_i * c[i]: the weight gradient of gmm.

    lhs [m, k], rhs [m, n]. Returns out, [g, k, n], where g is num_groups (default: every group of group_sizes from
    group_offset on). `out` may be one array or a list of g matrices; an empty group gives beta_i * c[i], else zeros.
    FP8 operands are ScaledTensors, and column-wise copies unless their mode is "tensor".

    >>> lhs, rhs = np.ones((6, 4)), np.ones((6, 5))
    >>> cadre.tgmm(lhs, rhs, [2, 0, 4])[:, 0, 0]
    array([2., 0., 4.])
    """
    op = "tgmm"
    lhs_scales = _scaled.reference(op, "lhs", lhs)
    rhs_scales = _scaled.reference(op, "rhs", rhs)
    columns = _scaled.is_copy(lhs), _scaled.is_copy(rhs)
    lhs, rhs = (_scaled.data_of(op, name, each, columns=True) for name, each in (("lhs", lhs), ("rhs", rhs)))
    lhs_view = _views.tensor(op, "lhs", lhs)
    rhs_view = _views.tensor(op, "rhs", rhs)
    _views.needs_rank(op, "lhs", lhs_view, 2, "[m, k]")
    _views.needs_rank(op, "rhs", rhs_view, 2, "[m, n]")
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    group_offset = _views.index(op, "group_offset", group_offset)
    if out is None:
        if c is None and (accumulate or beta is not None):
            raise wrong_value(op, "out", None, "an array, because accumulate or beta adds to it")
        groups = _local_groups(op, num_groups, group_offset, sizes.count)
        dtype = _output_dtype(op, ("lhs", "rhs"), lhs_view.dtype, rhs_view.dtype, out_dtype)
        k, n = (view.shape[0 if copy else 1] for view, copy in zip((lhs_view, rhs_view), columns))
        result: Any = numpy.empty((groups, k, n), dtype)
    elif out_dtype is not None or num_groups is not None:
        argument = "num_groups" if out_dtype is None else "out_dtype"
        raise wrong_value(
            op,
            argument,
            num_groups if out_dtype is None else out_dtype,
            "None because out is given",
        )
    else:
        _views.outputs(op, "out", out)
        result = out

    args = new(_structs.TgmmArgs)
    args.lhs = reference(lhs_view)
    args.rhs = reference(rhs_view)
    args.group_sizes = sizes
    args.out = reference(_views.grouped(op, "out", result, "[g, k, n]", _dtypes.RESULTS))
    _fill_scalars(op, args, alpha, beta, accumulate)
    args.c = reference(_views.optional_grouped(op, "c", c, "[g, k, n]", _dtypes.RESULTS))
    args.group_offset = group_offset
    args.lhs_scales, args.rhs_scales = lhs_scales, rhs_scales
    args.lhs_columns, args.rhs_columns = columns
    args.options = reference(_call_options(op, precision))
    check(library.cadre_tgmm(context(), byref(args)))
    return result


def grouped_gemm(
    a: Operands,
    b: Operands,
    *,
    transa: bool = False,
    transb: bool = False,
    alpha: Scalars | None = None,
    beta: Scalars | None = None,
    c: Arrays | None = None,
    d: Out | None = None,
    accumulate: bool = False,
    out_dtype: DTypeLike | None = None,
    precision: Precision = "default",
) -> Out:
    """D_i = alpha_i * op(A_i) @ op(B_i) + beta_i * C_i, where op transposes if transa (transb) is set.

    A_i is [m_i, k_i], or [k_i, m_i] with transa, B_i [k_i, n_i], or [n_i, k_i] with transb, C_i and D_i [m_i, n_i]: 3-D
    arrays, or lists of matrices. Returns d, or a new result of out_dtype: one array where a and b are arrays, else a list.
    beta and accumulate add c, or what d holds. FP8 operands are ScaledTensors.

    >>> a = [np.ones((2, 3)), np.ones((4, 5))]
    >>> b = [np.ones((3, 6)), np.ones((5, 1))]
    >>> [d.shape for d in cadre.grouped_gemm(a, b, alpha=0.5)]
    [(2, 6), (4, 1)]
    """
    op = "grouped_gemm"
    a_scales, b_scales = _scaled.reference(op, "a", a), _scaled.reference(op, "b", b)
    a, b = _scaled.data_of(op, "a", a), _scaled.data_of(op, "b", b)
    transa, transb = _options.flag(op, "transa", transa), _options.flag(op, "transb", transb)
    a_view, b_view = _views.matrices(op, "a", a), _views.matrices(op, "b", b)
    if d is None:
        if c is None and (accumulate or beta is not None):
            raise wrong_value(op, "c", None, "matrices, because accumulate or beta adds them")
        dtype = _output_dtype(op, ("a", "b"), a_view.dtype, b_view.dtype, out_dtype)
        result: Any = _new_products(op, (a, b), (a_view, b_view), (transa, transb), dtype)
    elif out_dtype is not None:
        raise wrong_value(op, "out_dtype", out_dtype, "None because d is given")
    else:
        _views.outputs(op, "d", d)
        result = d

    args = new(_structs.GroupedGemmArgs)
    args.a, args.b = reference(a_view), reference(b_view)
    args.c = reference(None if c is None else _views.matrices(op, "c", c, _dtypes.RESULTS))
    args.d = reference(_views.matrices(op, "d", result, _dtypes.RESULTS, written=True))
    args.transa, args.transb = transa, transb
    args.a_scales, args.b_scales = a_scales, b_scales
    _fill_scalars(op, args, alpha, beta, accumulate)
    args.options = reference(_call_options(op, precision))
    check(library.cadre_grouped_gemm(context(), byref(args)))
    return result


def _new_products(op, operands, views, transposed, dtype):
    """Room for every D_i: one array for two arrays, else a list."""
    (a, b), (a_view, b_view) = operands, views
    if a_view.num_groups != b_view.num_groups:
        raise wrong_value(op, "len(b)", b_view.num_groups, f"len(a) = {a_view.num_groups}")
    # The row of op(A) and the column of op(B).
    shapes = [
        (numpy.shape(a[i])[1 if transposed[0] else 0], numpy.shape(b[i])[0 if transposed[1] else 1])
        for i in range(a_view.num_groups)
    ]
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return [numpy.empty(shape, dtype) for shape in shapes]
    m = (a_view.cols if transposed[0] else a_view.rows).uniform
    n = (b_view.rows if transposed[1] else b_view.cols).uniform
    return numpy.empty((a_view.num_groups, m, n), dtype)


@overload
def bias_grad(
    dy: Array,
    group_sizes: Sizes,
    *,
    bias: None = None,
    bias_scale: Array | None = None,
    num_groups: SupportsIndex | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: SupportsIndex = 0,
) -> Out: ...


@overload
def bias_grad(
    dy: Array,
    group_sizes: Sizes,
    *,
    bias: Arrays,
    bias_scale: Array | None = None,
    num_groups: SupportsIndex | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: SupportsIndex = 0,
) -> tuple[Out, NDArray[Any]]: ...


def bias_grad(
    dy: Array,
    group_sizes: Sizes,
    *,
    bias: Arrays | None = None,
    bias_scale: Array | None = None,
    num_groups: SupportsIndex | None = None,
    out: Out | None = None,
    accumulate: bool = False,
    group_offset: SupportsIndex = 0,
) -> Any:
    """The gradients of gmm's bias and bias_scale from dy [m, n], the gradient of its output.

    Returns dbias [g, n], dbias[i] = sum of bias_scale[r] * dy[r] over group i's rows; where `bias` [g, n] is given,
    returns (dbias, dbias_scale [m]) with dbias_scale[r] = dot(dy[r], bias[g]), zero in rows that no group covers.
    `out` takes dbias, and with `accumulate` has it added. Results have dy's dtype.

    >>> dy = np.ones((6, 2))
    >>> cadre.bias_grad(dy, [2, 0, 4])
    array([[2., 2.],
           [0., 0.],
           [4., 4.]])
    """
    op = "bias_grad"
    dy_view = _views.tensor(op, "dy", dy, _dtypes.FLOATS)
    _views.needs_rank(op, "dy", dy_view, 2, "[m, n]")
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    group_offset = _views.index(op, "group_offset", group_offset)
    bias_view = _views.optional_grouped(op, "bias", bias, "[g, n]", _dtypes.FLOATS, vectors=True)
    dtype = _dtypes.numpy_of(dy_view.dtype)
    if out is None:
        if accumulate:
            raise wrong_value(op, "out", None, "an array, because accumulate adds to it")
        if num_groups is None and bias_view is not None:
            groups = bias_view.num_groups
        else:
            groups = _local_groups(op, num_groups, group_offset, sizes.count)
        dbias: Any = numpy.empty((groups, dy_view.shape[1]), dtype)
    elif num_groups is not None:
        raise wrong_value(op, "num_groups", num_groups, "None because out is given")
    else:
        _views.output(op, "out", out)
        dbias = out
    dbias_scale = None if bias is None else numpy.empty(dy_view.shape[0], dtype)

    args = new(_structs.BiasGradArgs)
    args.dy = reference(dy_view)
    args.group_sizes = sizes
    args.dbias = reference(_views.grouped(op, "out", dbias, "[g, n]", _dtypes.FLOATS, vectors=True))
    args.dbias_scale = reference(_views.vector(op, "dbias_scale", dbias_scale))
    args.bias = reference(bias_view)
    args.bias_scale = reference(_views.vector(op, "bias_scale", bias_scale))
    args.accumulate = _options.flag(op, "accumulate", accumulate)
    args.group_offset = group_offset
    check(library.cadre_bias_grad(context(), byref(args)))
    return dbias if bias is None else (dbias, dbias_scale)
