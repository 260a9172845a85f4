"""The ops in f64, group by group, with a bound on each element's error; nothing of cadre is used here."""

import numpy

EPSILON = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Below these a float16 or bfloat16 result is rounded to a fixed step instead of relative to its size.
SMALLEST_STEP = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "bfloat16": 2.0**-133,
    "float16": 2.0**-24,
}


def groups_of(sizes, num_local, group_offset=0):
    """(local index, first row, end row) of each local group."""
    ends = numpy.cumsum(numpy.asarray(sizes, dtype=numpy.int64))
    starts = ends - numpy.asarray(sizes, dtype=numpy.int64)
    return [
        (i, int(starts[group_offset + i]), int(ends[group_offset + i])) for i in range(num_local)
    ]


def _f64(array):
    return None if array is None else numpy.asarray(array).astype(numpy.float64)


def gmm(
    lhs,
    rhs,
    sizes,
    *,
    transpose_rhs=False,
    alpha=None,
    bias=None,
    bias_scale=None,
    row_scale=None,
    group_offset=0,
):
    """(expected, magnitude): rows that no local group covers are zero. magnitude is the same sum over absolute values."""
    lhs, rhs, alpha, bias = _f64(lhs), _f64(rhs), _f64(alpha), _f64(bias)
    bias_scale, row_scale = _f64(bias_scale), _f64(row_scale)
    if transpose_rhs:
        rhs = rhs.transpose(0, 2, 1)
    expected = numpy.zeros((lhs.shape[0], rhs.shape[2]))
    magnitude = numpy.zeros_like(expected)
    for i, start, end in groups_of(sizes, rhs.shape[0], group_offset):
        rows = slice(start, end)
        factor = 1.0 if alpha is None else alpha[i] if alpha.ndim else alpha
        value = factor * (lhs[rows] @ rhs[i])
        size = abs(factor) * (abs(lhs[rows]) @ abs(rhs[i]))
        if bias is not None:
            scale = 1.0 if bias_scale is None else bias_scale[rows, None]
            value = value + scale * bias[i]
            size = size + abs(scale) * abs(bias[i])
        if row_scale is not None:
            value = row_scale[rows, None] * value
            size = abs(row_scale[rows, None]) * size
        expected[rows] = value
        magnitude[rows] = size
    return expected, magnitude


def tgmm(lhs, rhs, sizes, *, alpha=None, num_groups=None, group_offset=0):
    lhs, rhs, alpha = _f64(lhs), _f64(rhs), _f64(alpha)
    num_groups = len(sizes) - group_offset if num_groups is None else num_groups
    expected = numpy.zeros((num_groups, lhs.shape[1], rhs.shape[1]))
    magnitude = numpy.zeros_like(expected)
    for i, start, end in groups_of(sizes, num_groups, group_offset):
        rows = slice(start, end)
        factor = 1.0 if alpha is None else alpha[i] if alpha.ndim else alpha
        expected[i] = factor * (lhs[rows].T @ rhs[rows])
        magnitude[i] = abs(factor) * (abs(lhs[rows]).T @ abs(rhs[rows]))
    return expected, magnitude


def bias_grad(dy, sizes, *, bias_scale=None, num_groups=None, group_offset=0):
    scale = numpy.ones(dy.shape[0]) if bias_scale is None else _f64(bias_scale)
    expected, magnitude = tgmm(
        scale[:, None], dy, sizes, num_groups=num_groups, group_offset=group_offset
    )
    return expected[:, 0], magnitude[:, 0]


def bias_scale_grad(dy, bias, sizes, *, group_offset=0):
    """Not tgmm's form: the rows are kept and the columns summed."""
    dy, bias = _f64(dy), _f64(bias)
    expected, magnitude = numpy.zeros(dy.shape[0]), numpy.zeros(dy.shape[0])
    for i, start, end in groups_of(sizes, bias.shape[0], group_offset):
        expected[start:end] = dy[start:end] @ bias[i]
        magnitude[start:end] = abs(dy[start:end]) @ abs(bias[i])
    return expected, magnitude


def assert_close(actual, expected, magnitude, terms, compute="float32", dtype_name=None):
    """|actual - expected| <= terms * eps(compute) * magnitude + eps(actual's dtype) * |expected|, worst element named.

    dtype_name: the result's own dtype, where `actual` has been widened already.

    `terms` bounds the number of roundings on the way to an element: the length of its sum plus the epilogue's few.
    """
    actual = numpy.asarray(actual)
    name = dtype_name or actual.dtype.name
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if not actual.size:
        return
    # Twice the output's epsilon: once for the value, once for the error already in it.
    bound = (
        (terms + 8) * EPSILON[compute] * magnitude
        + 2 * EPSILON[name] * abs(expected)
        + SMALLEST_STEP[name]
    )
    excess = abs(actual.astype(numpy.float64) - expected) - bound
    excess[~numpy.isfinite(actual.astype(numpy.float64))] = numpy.inf
    worst = numpy.unravel_index(numpy.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"at {tuple(map(int, worst))}: {actual[worst]!r}, expected {expected[worst]!r} within {bound[worst]:.3g}; "
        f"{int((excess > 0).sum())} of {excess.size} elements are outside"
    )
