"""How long one call takes while others wait in the queue behind it.

On a GPU JAX's dispatch of a first call and its waking from a wait take 0.2 to 0.4 ms together, however many calls lie between.
A program that keeps the GPU busy pays this once, so it must not be counted in with a few calls. Both clocks here therefore run
from the end of one call to the end of another one, with calls queued behind all the while: JAX's as the host sees two results
become ready, the library's by CUDA events. What the host sees comes 0.1 to 0.3 ms late, now more and now less: a timing of JAX
should be a hundred times as long.
"""

import collections
import ctypes
import time

#: In the queue at once; JAX holds back whoever queues many more.
MOST_QUEUED = 16


def lead_of(calls):
    """Calls before the clock starts, enough to queue others meanwhile."""
    return max(1, min(calls // 2, MOST_QUEUED // 2))


def jax_seconds(function, arguments, calls, queued=MOST_QUEUED):
    """Of one call of a function that returns an array. Where the queue ran empty, calls cost the host more than the GPU, and the
    whole time counts."""
    lead, queue, ready = lead_of(calls), collections.deque(), []
    ran_empty = False
    begin = time.perf_counter()

    def wait_for_oldest():
        nonlocal ran_empty
        oldest = queue.popleft()
        ran_empty |= len(ready) == lead - 1 and oldest.is_ready()
        while not oldest.is_ready():  # a wait would be woken late
            pass
        ready.append(time.perf_counter())

    for _ in range(lead + calls):
        if len(queue) == queued:
            wait_for_oldest()
        queue.append(function(*arguments))
    while queue:
        wait_for_oldest()
    if ran_empty:
        return (ready[-1] - begin) / (lead + calls)
    return (ready[-1] - ready[lead - 1]) / calls


def library_seconds(function, arguments, calls):
    """The same for a function that launches on the default stream."""
    for _ in range(lead_of(calls)):
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
