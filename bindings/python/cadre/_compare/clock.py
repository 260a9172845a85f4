"""Timing of several contenders: a first call that says how long one takes, a check, then turns in a new order each round."""

import dataclasses
import random
import statistics
import time

#: On a GPU a contender first runs so long in a loop of its own: its clocks then are what they are in training.
SUSTAINED_LEAD_S = 0.3
BATCH_S = 0.05
PAUSE_S = 0.02  # idle threads of the other runtime spin no longer than this
MOST_ROUNDS = 15
LONG_S = 0.3
_LOOK_S = 0.3


def _cpu_ticks():
    """(busy, all) ticks of all CPUs since the start of the system."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # without idle and iowait


def share_of_others():
    """The part of this machine's CPUs that other programs take, 0 if nobody knows. This process sleeps meanwhile."""
    try:
        before = _cpu_ticks()
        time.sleep(_LOOK_S)
        after = _cpu_ticks()
    except (OSError, ValueError, IndexError):
        return 0.0
    return (after[0] - before[0]) / max(1, after[1] - before[1])


@dataclasses.dataclass
class Timing:
    """What was measured of one contender: seconds of a call in each round."""

    contender: object
    first_s: float
    error: float = 0.0
    estimated: bool = False
    seconds: list = dataclasses.field(default_factory=list)

    @property
    def median_s(self):
        return statistics.median(self.seconds)


def _timed(contender, count):
    start = time.perf_counter()
    for _ in range(count):
        contender.call()
    contender.wait()
    return (time.perf_counter() - start) / count


def first_calls(contenders, case, left_out, limit_s, step):
    """Checks every contender, and keeps those whose result is right.

    A rival whose call would take longer than limit_s is not run: its time is estimated from fewer tokens. A wrong result of
    cadre's raises ArithmeticError.
    """
    kept = []
    for contender in contenders:
        step(f"check {contender.name}")
        try:
            if contender.probe is not None:
                estimate = contender.probe()
                if estimate > limit_s:
                    kept.append(Timing(contender, estimate, estimated=True, seconds=[estimate]))
                    continue
            start = time.perf_counter()
            result = contender.call()  # compiles, where there is something to compile
            contender.wait()
            seconds = time.perf_counter() - start
            error = case.error_of(contender.to_numpy(result))
            if seconds < LONG_S or contender.compiles:
                seconds = _timed(contender, 1)
        except Exception as failure:  # whatever a rival has to say
            if contender.is_cadre:
                raise
            left_out[contender.name] = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
            continue
        if error <= case.tolerance:
            kept.append(Timing(contender, seconds, error))
            continue
        message = f"its result is off by {error:.2g} of the norm, and {case.tolerance:g} is allowed"
        if contender.is_cadre:
            raise ArithmeticError(message)
        left_out[contender.name] = message
    return kept


def rounds(timings, budget_s, on_gpu, step, record=None, seed=1):
    """Fills each timing with a number for each round, until the budget is spent. `record(name, start, seconds, calls)` is told
    of every turn."""
    shuffled = random.Random(seed)
    open_ones = [timing for timing in timings if not timing.seconds]
    begin = time.perf_counter()
    done = 0
    while open_ones and done < MOST_ROUNDS:
        spent = time.perf_counter() - begin
        if done and spent + spent / done > budget_s:
            break
        shuffled.shuffle(open_ones)
        for timing in open_ones:
            step(f"round {done + 1}, {timing.contender.name}")
            timing.seconds.append(_turn(timing, on_gpu, record))
        done += 1
    return done


def _turn(timing, on_gpu, record):
    contender = timing.contender
    count = max(1, round(BATCH_S / max(timing.first_s, 1e-6)))
    if on_gpu:
        until = time.perf_counter() + SUSTAINED_LEAD_S
        while time.perf_counter() < until:
            _timed(contender, count)
    else:
        time.sleep(PAUSE_S)
        if timing.first_s < LONG_S:  # wakes its threads, which is no matter for a long call
            _timed(contender, 1)
    start = time.perf_counter()
    seconds = _timed(contender, count)
    if record is not None:
        record(contender.name, start, seconds * count, count)
    return seconds
