"""Times that are compared to the per cent: rounds that read the same forwards and backwards, and ratios within a round.

The clock of a GPU under full load moves by several per cent within a second, and with it every time. So the contenders that are
compared this closely are timed right after each other, in an order like A B C C B A, another one each round: what drifts evenly
during a round falls out of a ratio of two of them. The median of the rounds' ratios counts; their quartiles, and the same ratio
of a contender to itself, say how far it can be believed.
"""

import statistics
import time

import numpy as np


def heat(call, seconds):
    """Runs `call` for this long: a card that was idle has a higher clock than it can keep."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()


def rounds(names, clock, most, deadline, random):
    """name -> one time for each round, the mean of its two timings. `clock(name)` takes one. At least three rounds, at most
    `most`, none that begins after the deadline."""
    times = {name: [] for name in names}
    for turn in range(most):
        if turn >= 3 and time.perf_counter() > deadline:
            break
        order = list(random.permutation(names))
        both = {name: 0.0 for name in names}
        for name in order + order[::-1]:
            both[name] += clock(name) / 2
        for name in names:
            times[name].append(both[name])
    return times


def ratio(above, below):
    """Of two lists of rounds: median, quartiles and how many there are."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, high = (float(x) for x in np.quantile(ratios, (0.25, 0.75)))
    return {
        "median": statistics.median(ratios),
        "quartiles": [low, high],
        "rounds": len(ratios),
    }
