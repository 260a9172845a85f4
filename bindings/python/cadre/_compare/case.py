"""One layer with its numbers: how much of it fits, random operands, and the check of a result.

Operands are made once in NumPy and handed to every front. Random numbers for gigabytes of weights would take longer than
the comparison, so each expert has the same random values, shifted by another number of places.
"""

import dataclasses
import os

import ml_dtypes
import numpy

from .models import Layer

DTYPES = {
    "bf16": numpy.dtype(ml_dtypes.bfloat16),
    "f16": numpy.dtype(numpy.float16),
    "f32": numpy.dtype(numpy.float32),
}
#: What a layer's result may differ by, relative to its norm: three roundings to the type, with room for other orders.
TOLERANCE = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-5}
_CHECKED_TOKENS = 6
_SHIFT = 7919
ALPHA, LIMIT, UP_OFFSET = 1.702, 7.0, 1.0  # of gpt-oss's activation


def free_bytes():
    """Memory that this process may still take."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo") as lines:
            found = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
        free = 1024 * found["MemAvailable"]
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in (("memory.max", "memory.current"),):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as a, open(f"/sys/fs/cgroup/{used}") as b:
                free = min(free, int(a.read()) - int(b.read()))
        except (OSError, ValueError):
            pass
    return free


@dataclasses.dataclass(frozen=True)
class Cut:
    """How much of a layer is measured. Rows of each expert stay what they are in the whole layer."""

    experts: int
    tokens: int
    reason: str = ""  # empty: all of it


def cut_to(layer, tokens, itemsize, room_bytes, copies):
    """The largest part of the layer that fits into room_bytes, with `copies` of its weights."""
    whole_bytes = copies * layer.weight_elements() * itemsize
    if whole_bytes <= room_bytes:
        return Cut(layer.experts, tokens)
    experts = layer.experts
    while experts > layer.top_k and copies * layer.weight_elements(experts) * itemsize > room_bytes:
        experts = max(layer.top_k, experts // 2)
    if copies * layer.weight_elements(experts) * itemsize > room_bytes:
        raise MemoryError(
            f"{layer.name}: {layer.top_k} experts need {copies * layer.weight_elements(experts) * itemsize / 1e9:.1f} GB, "
            f"and {room_bytes / 1e9:.1f} GB are free"
        )
    fewer = max(1, tokens * experts // layer.experts)
    return Cut(
        experts,
        fewer,
        f"{experts} of {layer.experts} experts and {fewer} of {tokens} tokens: the weights of all experts need "
        f"{whole_bytes / 1e9:.1f} GB, and {room_bytes / 1e9:.1f} GB may be used",
    )


class Case:
    """Operands of a layer in NumPy arrays: w13 [g, 2i, h] and w2 [g, h, i], gate before up."""

    def __init__(self, layer: Layer, cut: Cut, dtype: str, seed=1):
        self.layer, self.cut, self.dtype = layer, cut, dtype
        self.experts, self.tokens, self.top_k = cut.experts, cut.tokens, layer.top_k
        self.hidden, self.intermediate = layer.hidden, layer.intermediate
        random = numpy.random.default_rng(seed)
        element = DTYPES[dtype]

        def normal(*shape, scale=1.0):
            return (scale * random.standard_normal(shape, numpy.float32)).astype(element)

        self.x = normal(self.tokens, self.hidden)
        self.w13 = self._shifted(normal(2 * self.intermediate, self.hidden, scale=self.hidden**-0.5))
        self.w2 = self._shifted(normal(self.hidden, self.intermediate, scale=self.intermediate**-0.5))
        self.bias13 = normal(self.experts, 2 * self.intermediate) if layer.clamped else None
        self.bias2 = normal(self.experts, self.hidden) if layer.clamped else None
        # A balanced router: the best top_k of random scores.
        scores = random.random((self.tokens, self.experts), numpy.float32)
        self.ids = numpy.argsort(-scores, axis=1)[:, : self.top_k].astype(numpy.int32)
        chosen = numpy.exp(numpy.take_along_axis(scores, self.ids.astype(numpy.int64), 1))
        self.weights = (chosen / chosen.sum(1, keepdims=True)).astype(element)
        self._expected = None

    @property
    def rows(self):
        return self.tokens * self.top_k

    def _shifted(self, first):
        weights = numpy.empty((self.experts, *first.shape), first.dtype)
        for expert in range(self.experts):
            shift = expert * _SHIFT % first.size
            flat = weights[expert].reshape(-1)
            flat[shift:], flat[:shift] = first.reshape(-1)[: first.size - shift], first.reshape(-1)[first.size - shift :]
        return weights

    def sorted_rows(self):
        """(the token of each row, rows sorted by expert; the rows of each expert)."""
        flat = self.ids.reshape(-1)
        order = numpy.argsort(flat, kind="stable")
        return order, numpy.bincount(flat, minlength=self.experts)

    def checked_tokens(self):
        return numpy.unique(numpy.linspace(0, self.tokens - 1, _CHECKED_TOKENS).astype(int))

    def activated(self, pre):
        gate, up = pre[: self.intermediate], pre[self.intermediate :]
        if self.layer.clamped:
            gate, up = numpy.minimum(gate, LIMIT), numpy.clip(up, -LIMIT, LIMIT)
            return gate / (1 + numpy.exp(-ALPHA * gate)) * (up + UP_OFFSET)
        return gate / (1 + numpy.exp(-gate)) * up

    def expected(self):
        """The layer's result for a few tokens, in f64."""
        if self._expected is None:
            rows = []
            for token in self.checked_tokens():
                total = numpy.zeros(self.hidden)
                for expert, weight in zip(self.ids[token], self.weights[token], strict=True):
                    pre = self.w13[expert].astype(numpy.float64) @ self.x[token].astype(numpy.float64)
                    pre = pre if self.bias13 is None else pre + self.bias13[expert].astype(numpy.float64)
                    out = self.w2[expert].astype(numpy.float64) @ self.activated(pre)
                    out = out if self.bias2 is None else out + self.bias2[expert].astype(numpy.float64)
                    total += float(weight) * out
                rows.append(total)
            self._expected = numpy.stack(rows)
        return self._expected

    def error_of(self, result):
        """The distance of a result [tokens, hidden] from the expected one, relative to its norm; infinite if not finite."""
        found = numpy.asarray(result).astype(numpy.float64)
        if found.shape != (self.tokens, self.hidden) or not numpy.isfinite(found).all():
            return numpy.inf
        expected = self.expected()
        return float(
            numpy.linalg.norm(found[self.checked_tokens()] - expected) / numpy.linalg.norm(expected)
        )

    @property
    def tolerance(self):
        return TOLERANCE[self.dtype]
