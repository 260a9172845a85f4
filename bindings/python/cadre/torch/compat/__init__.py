"""Other packages' interfaces over cadre: change one import."""

from . import grouped_gemm

__all__ = ["grouped_gemm"]
