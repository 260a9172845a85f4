"""The NumPy front: gmm, tgmm and bias_grad on the CPU. Inputs may also be DLPack tensors; results are NumPy arrays."""

from ctypes import byref

import numpy

from . import _dtypes, _options, _structs, _views
from ._errors import wrong_value
from ._library import check, context, library, new
from ._views import reference


def _output_dtype(op, lhs, rhs, asked):
    if asked is not None:
        code = _dtypes.code_of(asked)
        if not code:
            raise TypeError(f"{op}: out_dtype = {asked}, expected one of {_dtypes.known_names()}")
        return _dtypes.numpy_of(code)
    code = _dtypes.default_output(lhs, rhs)
    if not code:
        raise TypeError(
            f"{op}: rhs.dtype = {_dtypes.name_of(rhs)}, expected a type that multiplies with lhs.dtype = {_dtypes.name_of(lhs)}"
        )
    return _dtypes.numpy_of(code)


def _call_options(op, precision):
    options = new(_structs.CallOptions)
    options.precision = _options.precision(op, precision)
    return options


def _fill_scalars(op, args, alpha, beta, accumulate):
    args.alpha, per_group = _views.scalars(op, "alpha", alpha, 1.0)
    args.alpha_per_group = reference(per_group)
    args.beta, per_group_beta = _views.scalars(op, "beta", beta, 0.0)
    args.beta_per_group = reference(per_group_beta)
    args.accumulate = bool(accumulate)


def _needs_rank(op, argument, view, rank):
    if view.rank != rank:
        raise wrong_value(op, f"{argument}.rank", view.rank, rank)


def gmm(
    lhs,
    rhs,
    group_sizes,
    *,
    transpose_rhs=False,
    alpha=None,
    bias=None,
    bias_scale=None,
    row_scale=None,
    out=None,
    out_dtype=None,
    c=None,
    beta=None,
    accumulate=False,
    tail="zero",
    group_offset=0,
    precision="default",
):
    """out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs[g]) + bias_scale[r] * bias[g]) + beta_g * c[r], g the group of row r.

    lhs [m, k]; rhs [g, k, n] (or [g, n, k] with transpose_rhs), one array or a list of g matrices; group_sizes: integers,
    rows of each group, their sum at most m. bias [g, n], bias_scale [m] and row_scale [m] are optional; alpha and beta
    are numbers or [g] arrays. Rows behind the last group ("tail") become zero unless `tail` says "untouched" (needs out)
    or "forbid". With group_offset, rhs holds only the groups group_offset ... group_offset + g - 1 of group_sizes.
    Returns out, [m, n]: the array given as `out`, or a new one of out_dtype.
    """
    op = "gmm"
    lhs_view = _views.tensor(op, "lhs", lhs)
    rhs_view = _views.grouped(op, "rhs", rhs)
    _needs_rank(op, "lhs", lhs_view, 2)
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    if out is None:
        if tail == "untouched":
            raise wrong_value(
                op, "tail", "'untouched' without out", "an out whose tail rows are kept"
            )
        if c is None and (accumulate or beta is not None):
            raise wrong_value(op, "out", None, "an array, because accumulate or beta adds to it")
        n = rhs_view.rows.uniform if transpose_rhs else rhs_view.cols.uniform
        dtype = _output_dtype(op, lhs_view.dtype, rhs_view.dtype, out_dtype)
        # With beta the library keeps rows that no group covers, so they must hold something.
        make = numpy.zeros if c is not None else numpy.empty
        out = make((lhs_view.shape[0], n), dtype)
    elif out_dtype is not None:
        raise wrong_value(op, "out_dtype", out_dtype, "None because out is given")
    elif isinstance(out, (list, tuple)):
        for i, array in enumerate(out):
            _views.output(op, f"out[{i}]", array)
    else:
        _views.output(op, "out", out)

    args = new(_structs.GmmArgs)
    args.lhs = reference(lhs_view)
    args.rhs = reference(rhs_view)
    args.group_sizes = sizes  # a copy of the struct: `sizes` itself keeps the integers alive
    args.out = reference(_views.grouped(op, "out", out))
    args.transpose_rhs = bool(transpose_rhs)
    args.tail = _options.tail(op, tail)
    _fill_scalars(op, args, alpha, beta, accumulate)
    args.c = reference(_views.optional_grouped(op, "c", c))
    args.bias = reference(_views.optional_grouped(op, "bias", bias, vectors=True))
    args.bias_scale = reference(_views.optional_tensor(op, "bias_scale", bias_scale))
    args.row_scale = reference(_views.optional_tensor(op, "row_scale", row_scale))
    args.group_offset = _views.index(op, "group_offset", group_offset)
    args.options = reference(_call_options(op, precision))
    check(library.cadre_gmm(context(), byref(args)))
    return out


def tgmm(
    lhs,
    rhs,
    group_sizes,
    *,
    num_groups=None,
    alpha=None,
    out=None,
    out_dtype=None,
    c=None,
    beta=None,
    accumulate=False,
    group_offset=0,
    precision="default",
):
    """out[i] = alpha_i * (lhs[rows of group i]^T @ rhs[rows of group i]) + beta_i * c[i]: the weight gradient of gmm.

    lhs [m, k], rhs [m, n]. Returns out, [g, k, n], where g is num_groups (default: every group of group_sizes from
    group_offset on). `out` may be one array or a list of g matrices; an empty group gives beta_i * c[i], else zeros.
    """
    op = "tgmm"
    lhs_view = _views.tensor(op, "lhs", lhs)
    rhs_view = _views.tensor(op, "rhs", rhs)
    _needs_rank(op, "lhs", lhs_view, 2)
    _needs_rank(op, "rhs", rhs_view, 2)
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    group_offset = _views.index(op, "group_offset", group_offset)
    if out is None:
        if c is None and (accumulate or beta is not None):
            raise wrong_value(op, "out", None, "an array, because accumulate or beta adds to it")
        groups = (
            sizes.count - group_offset
            if num_groups is None
            else _views.index(op, "num_groups", num_groups)
        )
        if groups < 0:
            raise wrong_value(
                op,
                "group_offset" if num_groups is None else "num_groups",
                group_offset if num_groups is None else groups,
                f"0 to {sizes.count}",
            )
        dtype = _output_dtype(op, lhs_view.dtype, rhs_view.dtype, out_dtype)
        out = numpy.empty((groups, lhs_view.shape[1], rhs_view.shape[1]), dtype)
    elif out_dtype is not None or num_groups is not None:
        argument = "num_groups" if out_dtype is None else "out_dtype"
        raise wrong_value(
            op,
            argument,
            num_groups if out_dtype is None else out_dtype,
            "None because out is given",
        )
    elif isinstance(out, (list, tuple)):
        for i, array in enumerate(out):
            _views.output(op, f"out[{i}]", array)
    else:
        _views.output(op, "out", out)

    args = new(_structs.TgmmArgs)
    args.lhs = reference(lhs_view)
    args.rhs = reference(rhs_view)
    args.group_sizes = sizes
    args.out = reference(_views.grouped(op, "out", out))
    _fill_scalars(op, args, alpha, beta, accumulate)
    args.c = reference(_views.optional_grouped(op, "c", c))
    args.group_offset = group_offset
    args.options = reference(_call_options(op, precision))
    check(library.cadre_tgmm(context(), byref(args)))
    return out


def bias_grad(
    dy,
    group_sizes,
    *,
    bias=None,
    bias_scale=None,
    num_groups=None,
    out=None,
    accumulate=False,
    group_offset=0,
):
    """The gradients of gmm's bias and bias_scale from dy [m, n], the gradient of its output.

    Returns dbias [g, n], dbias[i] = sum of bias_scale[r] * dy[r] over group i's rows; where `bias` [g, n] is given,
    returns (dbias, dbias_scale [m]) with dbias_scale[r] = dot(dy[r], bias[g]), zero in rows that no group covers.
    `out` takes dbias, and with `accumulate` has it added. Results have dy's dtype.
    """
    op = "bias_grad"
    dy_view = _views.tensor(op, "dy", dy)
    _needs_rank(op, "dy", dy_view, 2)
    if dy_view.dtype not in _dtypes.FLOATS:
        raise TypeError(
            f"{op}: dy.dtype = {_dtypes.name_of(dy_view.dtype)}, expected f64, f32, bf16 or f16"
        )
    sizes = _views.sizes(op, "group_sizes", group_sizes)
    group_offset = _views.index(op, "group_offset", group_offset)
    bias_view = _views.optional_grouped(op, "bias", bias, vectors=True)
    dtype = _dtypes.numpy_of(dy_view.dtype)
    if out is None:
        if accumulate:
            raise wrong_value(op, "out", None, "an array, because accumulate adds to it")
        if num_groups is not None:
            groups = _views.index(op, "num_groups", num_groups)
        else:
            groups = bias_view.num_groups if bias_view is not None else sizes.count - group_offset
        if groups < 0:
            raise wrong_value(op, "the number of local groups", groups, "0 or more")
        out = numpy.empty((groups, dy_view.shape[1]), dtype)
    elif num_groups is not None:
        raise wrong_value(op, "num_groups", num_groups, "None because out is given")
    else:
        _views.output(op, "out", out)
    dbias_scale = None if bias is None else numpy.empty(dy_view.shape[0], dtype)

    args = new(_structs.BiasGradArgs)
    args.dy = reference(dy_view)
    args.group_sizes = sizes
    args.dbias = reference(_views.grouped(op, "out", out, vectors=True))
    args.dbias_scale = reference(_views.optional_tensor(op, "dbias_scale", dbias_scale))
    args.bias = reference(bias_view)
    args.bias_scale = reference(_views.optional_tensor(op, "bias_scale", bias_scale))
    args.accumulate = bool(accumulate)
    args.group_offset = group_offset
    check(library.cadre_bias_grad(context(), byref(args)))
    return out if bias is None else (out, dbias_scale)
