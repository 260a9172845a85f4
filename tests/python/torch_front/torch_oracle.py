"""The ops as a loop over groups in plain torch, differentiable; and comparison with a derived tolerance."""

import numpy
import oracle
import torch


def groups_of(sizes, num_local, group_offset=0):
    return oracle.groups_of([int(size) for size in sizes], num_local, group_offset)


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
    """Rows that no local group covers are zero and are not read."""
    n = rhs[0].shape[0 if transpose_rhs else 1]
    out = torch.zeros((lhs.shape[0], n), dtype=lhs.dtype, device=lhs.device)
    for i, start, end in groups_of(sizes, len(rhs), group_offset):
        value = lhs[start:end] @ (rhs[i].t() if transpose_rhs else rhs[i])
        if alpha is not None:
            value = alpha[i] * value
        if bias is not None:
            scale = 1.0 if bias_scale is None else bias_scale[start:end, None]
            value = value + scale * bias[i]
        if row_scale is not None:
            value = row_scale[start:end, None] * value
        rows = torch.arange(start, end, device=lhs.device)
        out = out.index_add(0, rows, value)
    return out


def tgmm(lhs, rhs, sizes, *, alpha=None, num_groups=None, group_offset=0):
    groups = len(sizes) - group_offset if num_groups is None else num_groups
    products = [
        lhs[start:end].t() @ rhs[start:end]
        for _, start, end in groups_of(sizes, groups, group_offset)
    ]
    out = torch.stack(products)
    return out if alpha is None else alpha[:, None, None] * out


def as_numpy(tensor):
    """The values on the host in f64: reading them waits for the device."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def assert_close(actual, expected, magnitude, terms, compute="float32"):
    """oracle.assert_close for a torch result, whose own dtype sets the tolerance."""
    name = str(actual.dtype).removeprefix("torch.")
    values = as_numpy(actual)
    # numpy knows no bf16: the bound takes the dtype's name, the comparison the values.
    oracle.assert_close(values, expected, magnitude, terms, compute, name)


def random(*shape, dtype=torch.float64, device="cpu", requires_grad=False):
    return torch.randn(*shape, dtype=torch.float64).to(device, dtype).requires_grad_(requires_grad)


def nan_rows(tensor, keep):
    """A copy whose rows outside `keep` (a list of (start, end)) are NaN."""
    result = torch.full_like(tensor, float("nan"))
    for start, end in keep:
        result[start:end] = tensor[start:end]
    return result


def compute_of(*dtypes):
    return "float64" if torch.float64 in dtypes else "float32"


def equal(first, second):
    return numpy.array_equal(as_numpy(first), as_numpy(second), equal_nan=True)
