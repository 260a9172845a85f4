"""What cadre compare ran when, in the Trace Event Format that Perfetto (ui.perfetto.dev) and chrome://tracing read."""

import json
import os
import time
from pathlib import Path

#: The process under which each kind of event stands in the viewer.
_TURNS, _OPS = "turns", "ops of one call"
_KEPT = ("X", "M", "s", "f")  # of a profiler's events: spans, names, and the arrows from a launch to its kernel


class Trace:
    """Events in microseconds since it was made."""

    def __init__(self):
        self._begin = time.perf_counter()
        self._events = []
        self._tracks = {}

    def _at(self, seconds):
        return (seconds - self._begin) * 1e6

    def _track(self, name):
        """The thread id of a track, named when it is first asked for."""
        if name not in self._tracks:
            self._tracks[name] = thread = len(self._tracks) + 1
            for kind, value in (("process_name", _TURNS), ("thread_name", name)):
                named = {"ph": "M", "name": kind, "pid": _TURNS, "tid": thread, "args": {"name": value}}
                self._events.append(named)
        return self._tracks[name]

    def turn(self, layer, contender, start, seconds, calls):
        """`calls` calls of a contender in a row, whose mean is one of the times that compare takes the median of."""
        self._events.append(
            {
                "ph": "X",
                "cat": "turn",
                "name": f"{contender} x {calls}",
                "pid": _TURNS,
                "tid": self._track(f"{layer}: {contender}"),
                "ts": self._at(start),
                "dur": seconds * 1e6,
                "args": {"calls": calls, "seconds_each": seconds / calls},
            }
        )

    def ops(self, layer, contender, start, events):
        """A profiler's own events of one call, which began at `start`, under a process of their own."""
        events = [dict(each) for each in events if each.get("ph") in _KEPT]
        times = [each["ts"] for each in events if each.get("ph") == "X"]
        process = f"{_OPS}: {layer}, {contender}"
        for each in events:
            each["tid"] = f"{each.get('pid')}/{each.get('tid')}"
            each["pid"] = process
            if "ts" in each:
                each["ts"] += self._at(start) - min(times)
            if "id" in each:
                each["id"] = f"{process} {each['id']}"
        self._events += events

    def write(self, path, about):
        """Writes the file whole or not at all."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
        document = {"traceEvents": self._events, "displayTimeUnit": "ms", "otherData": about}
        try:
            partial.write_text(json.dumps(document), encoding="utf-8")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
