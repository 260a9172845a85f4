"""The shortest way of gmm and tgmm, for calls with nothing but the product: every argument of an operator and every look
at one costs host time. Whatever asks for more, and every failure, takes the general path of _functional.py."""

import torch

from ._calls import call, is_transformed

_ops = torch.ops.cadre
_gmm = _ops.gmm.default
_tgmm = _ops.tgmm.default
# What an operator's __call__ calls, without the call of a Python function around it.
_gmm_plain = _ops.gmm_plain.default._op
_tgmm_plain = _ops.tgmm_plain.default._op

_Tensor = torch.Tensor
_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled


def gmm(lhs, rhs, group_sizes, transpose_rhs):
    """The product, or None if the call needs the general path. Not for calls that are being compiled."""
    if not isinstance(rhs, _Tensor) or is_transformed() or _any_autocast():
        return None
    try:
        if _is_grad_enabled() and (lhs.requires_grad or rhs.requires_grad):
            return _Gmm.apply(lhs, rhs, group_sizes, transpose_rhs)
        return _gmm_plain(lhs, rhs, group_sizes, transpose_rhs)
    except (RuntimeError, AttributeError, TypeError):
        return None  # the general path finds the words for it


def tgmm(lhs, rhs, group_sizes, num_groups):
    """As gmm, but only where no gradient is wanted."""
    if is_transformed() or _any_autocast():
        return None
    try:
        if _is_grad_enabled() and (lhs.requires_grad or rhs.requires_grad):
            return None
        return _tgmm_plain(lhs, rhs, group_sizes, num_groups)
    except (RuntimeError, AttributeError, TypeError):
        return None


class _Gmm(torch.autograd.Function):
    """gmm_plain with its gradient, made of the general operators if it is differentiated itself."""

    @staticmethod
    def forward(ctx, lhs, rhs, group_sizes, transpose_rhs):
        need_lhs, need_rhs, _, _ = ctx.needs_input_grad
        out = _gmm_plain(lhs, rhs, group_sizes, transpose_rhs)
        ctx.saved = transpose_rhs, lhs.dtype, rhs.dtype, rhs.shape[0]
        ctx.save_for_backward(lhs if need_rhs else None, rhs if need_lhs else None, group_sizes)
        return out

    @staticmethod
    def backward(ctx, dy):
        need_lhs, need_rhs, _, _ = ctx.needs_input_grad
        transpose_rhs, lhs_dtype, rhs_dtype, groups = ctx.saved
        lhs, rhs, sizes = ctx.saved_tensors
        plain = lhs_dtype == rhs_dtype == dy.dtype and not _is_grad_enabled()
        dlhs = drhs = None
        if need_lhs:
            if plain:
                dlhs = _gmm_plain(dy, rhs, sizes, not transpose_rhs)
            else:
                rest = (None, None, None, None, None, 0, not transpose_rhs, 1.0, 0, 0, lhs_dtype)
                dlhs = call(_gmm, dy, rhs, sizes, *rest)
        if need_rhs:
            # In the layout of rhs: [g, n, k] with transpose_rhs.
            first, second = (dy, lhs) if transpose_rhs else (lhs, dy)
            if plain:
                drhs = _tgmm_plain(first, second, sizes, groups)
            else:
                drhs = call(_tgmm, first, second, sizes, None, None, 0, groups, 1.0, 0, rhs_dtype)
        return dlhs, drhs, None, None
