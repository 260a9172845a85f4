"""The types of the JAX front's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.typing import ArrayLike, DTypeLike

#: Rows of each group; tokamax's GroupSizes, too.
Sizes: TypeAlias = ArrayLike | Sequence[int]
#: What lax.dot takes.
Precision: TypeAlias = str | jax.lax.Precision | Any | None

__all__ = ["ArrayLike", "DTypeLike", "Precision", "Sizes"]
