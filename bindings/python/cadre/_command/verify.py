"""Compare random calls of every op with the same sums in NumPy.

Shapes, types, options and empty groups are random. Each case has a seed of its own: a case that fails prints the command
that repeats it.
"""

import ml_dtypes
import numpy

import cadre

EXAMPLE = "cadre verify --cases 1000 --seed 7"
OPS = ("gmm", "tgmm", "grouped_gemm", "bias_grad")
DTYPES = tuple(map(numpy.dtype, (numpy.float64, numpy.float32, ml_dtypes.bfloat16, numpy.float16)))
# Half the distance of neighbours, relative, and the smallest step of each type.
EPSILON = dict(zip(DTYPES, (2.0**-53, 2.0**-24, 2.0**-8, 2.0**-11)))
STEP = dict(zip(DTYPES, (2.0**-1074, 2.0**-149, 2.0**-133, 2.0**-24)))


def _whole_number(smallest):
    def parse(text):
        value = int(text)
        if value < smallest:
            raise ValueError
        return value

    parse.__name__ = f"whole number from {smallest} on"  # what argparse calls it in its message
    return parse


def add_arguments(parser):
    parser.add_argument("--cases", type=_whole_number(1), default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=_whole_number(0), default=1, help="of the first case; default: 1")
    parser.add_argument("--op", choices=OPS, help="default: all")


class Sum:
    """A sum in f64 and the same sum of absolute values, which bounds the error of any order of adding."""

    def __init__(self, value, magnitude, terms):
        self.value, self.magnitude, self.terms = value, magnitude, terms

    @staticmethod
    def of_product(left, right):
        left, right = left.astype(numpy.float64), right.astype(numpy.float64)
        return Sum(left @ right, abs(left) @ abs(right), left.shape[-1])

    def scaled(self, factor):
        return Sum(factor * self.value, abs(factor) * self.magnitude, self.terms + 1)

    def plus(self, other):
        other = numpy.asarray(other).astype(numpy.float64)
        return Sum(self.value + other, self.magnitude + abs(other), self.terms + 1)

    def worst(self, found):
        """The largest error over its bound; above 1 the result is wrong."""
        dtype, got = found.dtype, found.astype(numpy.float64)
        if got.shape != self.value.shape:
            return numpy.inf
        compute = EPSILON[DTYPES[0 if dtype == numpy.float64 else 1]]
        bound = (self.terms + 8) * compute * self.magnitude
        bound += 2 * EPSILON[dtype] * abs(self.value) + STEP[dtype]
        error = numpy.where(numpy.isfinite(got), abs(got - self.value), numpy.inf)
        return float((error / bound).max(initial=0.0))


class Case:
    """One random call. `describe` is what is printed of it; `run` returns the worst error over its bound."""

    def __init__(self, seed, op=None):
        self.random = numpy.random.default_rng(seed)
        self.op = op or str(self.random.choice(OPS))
        self.dtype = DTYPES[self.random.integers(len(DTYPES))]
        self.k, self.n = (int(self.random.integers(1, 70)) for _ in range(2))
        groups = int(self.random.integers(1, 9))
        self.sizes = self.random.integers(0, 30, groups) * (self.random.random(groups) < 0.7)
        self.ends = numpy.cumsum(self.sizes)
        self.tail = int(self.random.integers(0, 4))
        self.m = int(self.ends[-1]) + self.tail
        self.flag = bool(self.random.integers(2))  # transposed weights, or what the op has instead
        self.extra = bool(self.random.integers(2))  # the epilogue

    def describe(self):
        return (
            f"{self.op} {self.dtype.name} m={self.m} k={self.k} n={self.n} sizes={self.sizes.tolist()}"
            f"{' transposed' if self.flag else ''}{' with options' if self.extra else ''}"
        )

    def array(self, *shape):
        """Random values; rows may have gaps."""
        gap = int(self.random.integers(0, 3))
        wide = self.random.standard_normal((*shape[:-1], shape[-1] + gap)).astype(self.dtype)
        return wide[..., : shape[-1]]

    def rows(self, group):
        return slice(int(self.ends[group] - self.sizes[group]), int(self.ends[group]))

    def run(self):
        return getattr(self, "run_" + self.op)()

    def run_gmm(self):
        groups = len(self.sizes)
        lhs = self.array(self.m, self.k)
        lhs[self.m - self.tail :] = numpy.nan  # rows of no group must not be read
        rhs = self.array(groups, self.n, self.k) if self.flag else self.array(groups, self.k, self.n)
        options = {}
        if self.extra:
            options = {"bias": self.array(groups, self.n), "alpha": self.random.standard_normal(groups)}
        out = cadre.gmm(lhs, rhs, self.sizes, transpose_rhs=self.flag, **options)
        worst = 0.0 if (out[self.m - self.tail :] == 0).all() else numpy.inf
        for i in range(groups):
            expected = Sum.of_product(lhs[self.rows(i)], rhs[i].T if self.flag else rhs[i])
            if options:
                expected = expected.scaled(options["alpha"][i]).plus(options["bias"][i])
            worst = max(worst, expected.worst(out[self.rows(i)]))
        return worst

    def run_tgmm(self):
        lhs, rhs = self.array(self.m, self.k), self.array(self.m, self.n)
        groups = len(self.sizes)
        out = None
        before = numpy.zeros((groups, self.k, self.n))
        if self.extra:
            out = numpy.ascontiguousarray(self.array(groups, self.k, self.n))
            before = out.astype(numpy.float64)
        out = cadre.tgmm(lhs, rhs, self.sizes, out=out, accumulate=self.extra)
        return max(
            Sum.of_product(lhs[self.rows(i)].T, rhs[self.rows(i)]).plus(before[i]).worst(out[i])
            for i in range(groups)
        )

    def run_grouped_gemm(self):
        dims = [tuple(int(d) for d in self.random.integers(0, 40, 3)) for _ in self.sizes]
        a = [self.array(k, m).T if self.flag else self.array(m, k) for m, k, n in dims]
        b = [self.array(k, n) for m, k, n in dims]
        alpha = self.random.standard_normal(len(dims)) if self.extra else numpy.ones(len(dims))
        out = cadre.grouped_gemm(a, b, alpha=alpha)
        return max(
            Sum.of_product(a[i], b[i]).scaled(alpha[i]).worst(out[i]) for i in range(len(dims))
        )

    def run_bias_grad(self):
        dy = self.array(self.m, self.n)
        scale = self.array(self.m) if self.extra else numpy.ones(self.m, self.dtype)
        out = cadre.bias_grad(dy, self.sizes, bias_scale=scale if self.extra else None)
        return max(
            Sum.of_product(scale[None, self.rows(i)], dy[self.rows(i)]).worst(out[i : i + 1])
            for i in range(len(self.sizes))
        )


def run(options):
    failed = 0
    for seed in range(options.seed, options.seed + options.cases):
        case = Case(seed, options.op)
        worst = case.run()
        if worst > 1:
            failed += 1
            repeat = f"cadre verify --cases 1 --seed {seed}" + (
                f" --op {options.op}" if options.op else ""
            )
            print(f"FAIL {case.describe()}: error {worst:.3g} times its bound; repeat: {repeat}")
    verdict = "FAIL" if failed else "pass"
    print(f"{verdict} {options.cases} cases from seed {options.seed}, {failed} failed")
    return 1 if failed else 0
