"""The package grouped_gemm (tgale96 and its forks) over cadre: its modules `ops` and `backend`, and ops.gmm here too."""

from . import backend, ops
from .ops import gmm

__all__ = ["backend", "gmm", "ops"]
