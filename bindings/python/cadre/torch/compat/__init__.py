"""Other packages' interfaces over cadre: change one import."""

from . import grouped_gemm, transformer_engine, transformer_engine_ops

__all__ = ["grouped_gemm", "transformer_engine", "transformer_engine_ops"]
