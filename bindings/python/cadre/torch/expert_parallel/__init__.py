"""Experts on many devices: exchanges that bring tokens to their experts and back, and ExpertParallelMLP, a layer over one.

docs/expert-parallel.md has the contract. Collectives are torch's, or those of a library that it wraps: none is written here.
"""

from ._capacity import Capacity
from ._deep_ep import DeepEP
from ._exchange import AllToAll, Dispatched, Exchange
from ._layer import ExpertParallelMLP
from ._style import ExpertParallel
from ._symmetric import SymmetricMemory

__all__ = [
    "AllToAll",
    "Capacity",
    "DeepEP",
    "Dispatched",
    "Exchange",
    "ExpertParallel",
    "ExpertParallelMLP",
    "SymmetricMemory",
]
