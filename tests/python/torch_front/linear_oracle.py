"""What the tests of GroupedLinear share: a small layer in every form, and the same by torch.nn.functional.linear."""

import cadre.torch
import torch
import torch.nn.functional as F
from torch_oracle import random

G, K, N = 3, 4, 6
SPLITS = [3, 0, 5]
M = 10
COVERED = sum(SPLITS)
#: (single_grouped_weight, single_grouped_bias)
FORMS = [(False, False), (True, True), (True, False), (False, True)]
FORM_NAMES = ["listed", "single", "single weight", "single bias"]


def make(
    device="cpu", form=(False, False), dtype=torch.float64, cls=cadre.torch.GroupedLinear, **options
):
    """A layer whose biases are not zero."""
    weight, bias = form
    options |= {"single_grouped_weight": weight, "single_grouped_bias": bias}
    layer = cls(G, K, N, device=device, dtype=dtype, **options)
    with torch.no_grad():
        for each in layer.biases():
            each.normal_()
    return layer


def matrices(tensors):
    """One for each expert, from parameters of either form."""
    return list(tensors[0]) if len(tensors) == 1 else list(tensors)


def reference(layer, x, scales=None):
    """The same by F.linear, with zeros behind the last split."""
    rows, start = [], 0
    weights, biases = matrices(layer.weights()), matrices(layer.biases() or [None] * G)
    for i, size in enumerate(SPLITS):
        part = F.linear(x[start : start + size], weights[i])
        if layer.apply_bias:
            factor = 1.0 if scales is None else scales[start : start + size, None]
            part = part + factor * biases[i]
        rows.append(part)
        start += size
    return torch.cat([*rows, x.new_zeros(M - start, N)])


def poisoned(*shape, device="cpu", dtype=torch.float64):
    return torch.full(shape, float("nan"), device=device, dtype=dtype)


def give_main_grads(layer, dtype=None):
    """Random flat buffers, as a distributed optimizer has them; returns what they hold."""
    for weight in layer.weights():
        weight.main_grad = random(weight.numel(), dtype=dtype or weight.dtype, device=weight.device)
    return [weight.main_grad.clone() for weight in layer.weights()]
