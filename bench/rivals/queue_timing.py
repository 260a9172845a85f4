"""How long one call takes while others wait in the queue behind it.

On a GPU JAX's dispatch of a first call and its waking from a wait take 0.2 to 0.4 ms together, however many calls lie between.
A program that keeps the GPU busy pays this once, so it must not be counted in with a few calls. Both clocks here therefore run
from the end of one call to the end of another one, with everything queued before: JAX's as the host sees two results become
ready, the library's by CUDA events. The host sees a result 0.1 to 0.3 ms late, now more and now less, so JAX's times scatter by a
per cent or two around the right one. Longer timings are no better: the card's clock moves more in them
(docs/lab/2026-11-15-timing-jax.md).
"""

import ctypes
import time

import jax

#: With half as many before the clock starts. JAX holds back whoever queues more than 32.
MOST_CALLS = 20


def jax_seconds(function, arguments, calls, lead):
    """Of one call of a function that returns an array, behind `lead` others. Where the queue ran empty, calls cost the host more
    than the GPU, and the whole time counts."""
    begin = time.perf_counter()
    for _ in range(lead):
        first = function(*arguments)
    for _ in range(calls):
        last = function(*arguments)
    ran_empty = first.is_ready()
    jax.block_until_ready(first)
    start = time.perf_counter()
    jax.block_until_ready(last)
    end = time.perf_counter()
    return (end - begin) / (calls + lead) if ran_empty else (end - start) / calls


def library_seconds(function, arguments, calls, lead):
    """The same for a function that launches on the default stream."""
    for _ in range(lead):
        function(*arguments)
    events = _Events()
    for _ in range(calls):
        function(*arguments)
    return events.seconds() / calls


class _Events:
    """Two CUDA events of the driver on the default stream, the first recorded at once."""

    def __init__(self):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._marks = [ctypes.c_void_p(), ctypes.c_void_p()]
        for mark in self._marks:
            self._call("cuEventCreate", ctypes.byref(mark), 0)
        self._call("cuEventRecord", self._marks[0], None)

    def seconds(self):
        """From the first to now, once the stream gets here."""
        milliseconds = ctypes.c_float()
        self._call("cuEventRecord", self._marks[1], None)
        self._call("cuEventSynchronize", self._marks[1])
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), *self._marks)
        for mark in self._marks:
            self._call("cuEventDestroy_v2", mark)
        return milliseconds.value * 1e-3

    def _call(self, name, *arguments):
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")
