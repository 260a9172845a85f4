"""A progress bar with the time left on stderr: rich's on a terminal, else a plain line for each phase.

The bar counts seconds, because what it shows ends when its time is spent. It is drawn between two steps, never by a thread
beside what is measured.
"""

import sys
import time


class Progress:
    """with Progress(40.0) as progress: progress.phase("PyTorch"); progress.step("check cadre")"""

    def __init__(self, total_s, stream=None):
        self._stream = sys.stderr if stream is None else stream
        self._total_s, self._bar, self._phase = total_s, None, ""

    def __enter__(self):
        self._begin = time.perf_counter()
        if self._stream.isatty():
            self._bar = _rich_bar(self._stream)
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total_s, left=_minutes(self._total_s))
        return self

    def __exit__(self, *_):
        if self._bar:
            self._bar.stop()

    def phase(self, text):
        """What runs now; the only thing that is printed where there is no terminal."""
        self._phase = text
        if self._bar:
            self.step("")
        else:
            print(f"{text} ...", file=self._stream, flush=True)

    def step(self, text):
        if self._bar:
            spent = min(time.perf_counter() - self._begin, self._total_s)
            shown = f"{self._phase}: {text}" if text else self._phase
            self._bar.update(self._task, completed=spent, description=shown, left=_minutes(self._total_s - spent))
            self._bar.refresh()


def _minutes(seconds):
    """ "1:05" """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _rich_bar(stream):
    """None if rich isn't installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]} left"))
    return Bar(*columns, console=Console(file=stream), transient=True, auto_refresh=False)
