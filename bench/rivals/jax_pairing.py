"""Times that are compared to the per cent: rounds that read the same forwards and backwards, and ratios within a round.

The clock of a GPU under full load moves by several per cent within a second, and with it every time. So the contenders that are
compared this closely are timed right after each other, in an order like A B C C B A, another one each round: what drifts evenly
during a round falls out of a ratio of two of them. The median of the rounds' ratios counts; its confidence interval, their quartiles, and
the same ratio of a contender to itself say how far it can be believed.
"""

import math
import statistics
import time

import numpy as np

#: Rounds: the least whose lowest and highest ratio hold the true median with 95 %.
ENOUGH_FOR_95 = 6


def heat(call, seconds):
    """Runs `call` for this long: a card that was idle has a higher clock than it can keep."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()


def rounds(names, clock, most, deadline, random, decided=None):
    """name -> one time for each round, the mean of its two timings. `clock(name)` takes one. At least three rounds, at most
    `most`, none that begins after the deadline or, from the seventh on, once `decided(times)`."""
    times = {name: [] for name in names}
    for turn in range(most):
        if turn >= 3 and time.perf_counter() > deadline:
            break
        if turn >= ENOUGH_FOR_95 and decided is not None and decided(times):
            break
        order = list(random.permutation(names))
        both = {name: 0.0 for name in names}
        for name in order + order[::-1]:
            both[name] += clock(name) / 2
        for name in names:
            times[name].append(both[name])
    return times


def ratio(above, below):
    """Of two lists of rounds: median, its confidence interval, quartiles and how many there are."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    low, high = (float(x) for x in np.quantile(ratios, (0.25, 0.75)))
    interval, confidence = median_interval(ratios)
    return {
        "median": statistics.median(ratios),
        "interval": interval,
        "confidence": confidence,
        "quartiles": [low, high],
        "rounds": len(ratios),
    }


def median_interval(ordered, confidence=0.95):
    """(two of the ordered values, how surely the true median lies between them), whatever the distribution is: each value
    lies below it with probability 1/2. The narrowest pair that is as sure as asked for, or the outermost, which fewer than six
    values make less sure."""
    count, rank, outside = len(ordered), 0, 2 * 0.5 ** len(ordered)
    while rank + 1 < (count + 1) // 2:
        more = outside + 2 * math.comb(count, rank + 1) * 0.5**count
        if more > 1 - confidence:
            break
        rank, outside = rank + 1, more
    return [ordered[rank], ordered[count - 1 - rank]], 1 - outside
