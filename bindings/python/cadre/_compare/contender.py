"""One way to compute the layer, with all that a clock needs."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Contender:
    """`call` starts the work and returns its result; `wait` ends when what was started is done."""

    name: str
    call: Callable[[], object]
    wait: Callable[[], None]
    to_numpy: Callable[[object], object]
    compiles: bool = False  # in its first call
    probe: Callable[[], float] | None = None  # estimates the seconds of a call from fewer tokens

    @property
    def is_cadre(self):
        return self.name == "cadre"
