"""What the report shows: a row for each measured case, whatever program measured it."""

import dataclasses

_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "i8": 1, "i32": 4, "e4m3": 1, "e5m2": 1}
#: Whole layers: how often a pass multiplies m x hidden x intermediate, moves all weights, and moves a token's row.
_PASSES = {"forward": (6, 1, 2), "step": (18, 3, 4)}


@dataclasses.dataclass
class Row:
    """One measured case. `seconds` is cadre's; `rivals` maps names to theirs; None is what a file doesn't say."""

    file: str
    device: str
    op: str
    case: str
    shape: str
    dtype: str
    condition: str
    seconds: float
    m: int | None = None  # of a layer: rows between its products
    k: int | None = None  # of a layer: hidden
    n: int | None = None  # of a layer: intermediate
    groups: int | None = None
    tokens: int | None = None  # of a layer
    layer_pass: str = ""  # of a layer: "forward" or "step"
    skew: float | None = None
    threads: int | None = None
    gflops: float | None = None
    of_dense: float | None = None
    dense_gflops: float | None = None
    weights_tb_per_s: float | None = None
    limits: dict | None = None
    kernel: str = ""
    rivals: dict = dataclasses.field(default_factory=dict)
    estimated: frozenset = frozenset()  # rivals whose time was not measured whole

    def __post_init__(self):
        if self.gflops is None and self.flop:
            self.gflops = self.flop / self.seconds / 1e9

    @property
    def rows_per_group(self):
        return self.m / self.groups if self.m and self.groups else None

    @property
    def flop(self):
        if not (self.m and self.k and self.n):
            return None
        return (_PASSES[self.layer_pass][0] if self.layer_pass else 2) * self.m * self.k * self.n

    @property
    def intensity(self):
        """FLOP for each byte that has to be moved once: rows, weights of experts that have rows, results.

        A training step of a layer reads its weights forward and backward, and writes their gradients.
        """
        if not (self.flop and self.groups and self.dtype in _BYTES):
            return None
        size = _BYTES[self.dtype]
        if self.layer_pass:
            _, weights, rows = _PASSES[self.layer_pass]
            moved = 3 * weights * min(self.groups, self.m) * self.k * self.n + rows * self.tokens * self.k
            return self.flop / (size * moved)
        weights = self.groups * self.k * self.n * size
        if self.weights_tb_per_s and self.op != "tgmm":
            weights = self.weights_tb_per_s * 1e12 * self.seconds
        return self.flop / (weights + size * self.m * (self.k + self.n))

    @property
    def best_rival(self):
        """(name, seconds) of the fastest, or None."""
        return min(self.rivals.items(), key=lambda item: item[1]) if self.rivals else None


@dataclasses.dataclass
class LayerTime:
    """A layer's time cut into parts, in seconds."""

    layer: str
    what: str  # "training step" or "forward pass"
    condition: str
    parts: dict
    seconds: float  # of the whole layer
    measured: bool  # whether the parts were; else they were put together of other times
    how: str  # in a sentence


@dataclasses.dataclass
class ResultFile:
    name: str
    command: str
    device: str
    notes: list  # sentences about the whole file
    rows: list
    layers: list  # LayerTime
    schedules: list  # what cadre schedule writes
    answers: list = dataclasses.field(default_factory=list)  # cadre compare's, in sentences
    copy_tb_per_s: float | None = None
