"""Which memory tensors cover. Only addresses are looked at, so they may lie on a GPU."""

import numpy as np


class _Memory:
    """The bytes of a tensor as NumPy describes an array."""

    def __init__(self, tensor):
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
        }


def share(first, second):
    """Whether two tensors share a byte."""
    if min(first.numel(), second.numel()) == 0:
        return False
    views = [np.asarray(_Memory(each)) for each in (first, second)]
    try:
        return np.shares_memory(*views, max_work=10**5)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(tensor):
    """Whether two elements have one address."""
    if tensor.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            break
        reach += (size - 1) * stride
    else:
        return False  # each stride passes what the smaller ones reach
    first = tensor[0]
    return overlaps_itself(first) or any(share(first, each) for each in tensor[1:])


def first_shared(tensors):
    """(i, j), i < j, of two tensors that share memory, or None. Tensors that lie apart are only sorted."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _reach_bytes(tensor), i)
        for i, tensor in enumerate(tensors)
        if tensor.numel() and not tensor.is_meta
    )
    open_spans = []
    for begin, end, i in spans:
        open_spans = [(other_end, j) for other_end, j in open_spans if other_end > begin]
        for _, j in open_spans:
            if share(tensors[i], tensors[j]):
                return min(i, j), max(i, j)
        open_spans.append((end, i))
    return None


def _reach_bytes(tensor):
    steps = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (steps + 1) * tensor.element_size()
