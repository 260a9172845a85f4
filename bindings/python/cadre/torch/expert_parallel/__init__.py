"""Experts on many devices: exchanges that bring tokens to their experts and back, and ExpertParallelMLP, a layer over one.

docs/expert-parallel.md has the contract. Collectives are torch's, or those of a library that it wraps: none is written here.
"""

from ._capacity import Capacity
from ._exchange import AllToAll, Dispatched, Exchange
from ._layer import ExpertParallelMLP
from ._style import ExpertParallel

__all__ = [
    "AllToAll",
    "Capacity",
    "Dispatched",
    "Exchange",
    "ExpertParallel",
    "ExpertParallelMLP",
]
