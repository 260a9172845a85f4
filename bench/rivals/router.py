"""The router of bench/shapes/shapes.cc: the same group sizes, row by row, as the C++ benchmark draws."""

import bisect
import itertools

_WORDS, _MIDDLE = 312, 156
_MASK = (1 << 64) - 1


class Mt19937_64:
    """The standard's engine of this name (C++ [rand.predef])."""

    def __init__(self, seed=5489):
        self._state = [seed]
        for i in range(1, _WORDS):
            last = self._state[-1]
            self._state.append((6364136223846793005 * (last ^ (last >> 62)) + i) & _MASK)
        self._at = _WORDS

    def __call__(self):
        if self._at == _WORDS:
            self._refill()
        x = self._state[self._at]
        self._at += 1
        x ^= (x >> 29) & 0x5555555555555555
        x ^= (x << 17) & 0x71D67FFFEDA60000
        x ^= (x << 37) & 0xFFF7EEE000000000
        return x ^ (x >> 43)

    def _refill(self):
        state = self._state
        for i in range(_WORDS):
            x = (state[i] & 0xFFFFFFFF80000000) | (state[(i + 1) % _WORDS] & 0x7FFFFFFF)
            odd = 0xB5026F5AA96619E9 if x & 1 else 0
            state[i] = state[(i + _MIDDLE) % _WORDS] ^ (x >> 1) ^ odd
        self._at = 0


def group_sizes(num_groups, m, skew, seed=1):
    """Rows of each group when every row draws its group with probability 1 / rank^skew, ranks dealt at random."""
    engine = Mt19937_64(seed)
    group_of_rank = list(range(num_groups))
    for i in range(num_groups - 1, 0, -1):
        other = engine() % (i + 1)
        group_of_rank[i], group_of_rank[other] = group_of_rank[other], group_of_rank[i]
    cumulative = list(itertools.accumulate((rank + 1.0) ** -skew for rank in range(num_groups)))
    sizes = [0] * num_groups
    for _ in range(m):
        drawn = (engine() >> 11) * 2.0**-53 * cumulative[-1]
        sizes[group_of_rank[bisect.bisect_right(cumulative, drawn, hi=num_groups - 1)]] += 1
    return sizes
