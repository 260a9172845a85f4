"""The experts of torchtitan: an override that has the products of its GroupedExperts computed by cadre.

    --override.imports cadre.torch.integrations.torchtitan.grouped_experts

Parameters, initialisation, sharding and checkpoints stay those of torchtitan: w1 and w3 [e, f, d] and w2 [e, d, f], each taken
as it lies: gate and up are two products, and nothing is joined. Any class of experts over torchtitan's `_grouped_mm` is taken,
gpt-oss's too; one whose products are somebody else's, quantised ones among them, is refused.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch import Tensor

try:
    from torchtitan.config import derive, override
    from torchtitan.models.common.moe import GroupedExperts
except ImportError as error:
    raise ImportError(
        "cadre.torch.integrations.torchtitan: no torchtitan with overrides of GroupedExperts here: "
        "pip install 'torchtitan>=0.3'"
    ) from error

from ..._errors import wrong_value
from .._grouped_mm import grouped_mm

_OP = "cadre.torch.integrations.torchtitan"
_QUANTISED = "torchtitan.components.quantization"


@override(target=GroupedExperts.Config, description="Grouped products by cadre: any sizes, no padding")
def grouped_experts(cfg: Any) -> Any:
    """The configuration of the same experts over cadre. Applied twice, it changes nothing.

    >>> config.experts = grouped_experts(config.experts)  # doctest: +SKIP
    """
    experts = type(cfg)._owner
    return cfg if issubclass(experts, _ByCadre) else derive(cfg, over_cadre(experts).Config)


@functools.cache
def over_cadre(experts: Any) -> Any:
    """A subclass of a class of torchtitan's experts, whose products are cadre's.

    >>> over_cadre(GroupedExperts).__name__  # doctest: +SKIP
    'CadreGroupedExperts'
    """
    if experts._grouped_mm is not GroupedExperts._grouped_mm or experts.__module__.startswith(_QUANTISED):
        expected = "experts whose products are torchtitan's own: those of another override or quantised ones are kept"
        raise wrong_value(_OP, "experts", experts.__qualname__, expected)

    class CadreExperts(_ByCadre, experts):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(experts.Config):
            pass

    CadreExperts.__name__ = CadreExperts.__qualname__ = f"Cadre{experts.__name__}"
    CadreExperts.Config.__qualname__ = f"{CadreExperts.__name__}.Config"  # what torchtitan logs
    return CadreExperts


class _ByCadre:
    def _grouped_mm(self, *, A: Tensor, B_t: Tensor, offs: Tensor) -> Tensor:
        """A [m, k], rows sorted by expert; B_t [e, k, n] in any strides; offs [e], the end of each expert's rows -> [m, n]."""
        return grouped_mm(A, B_t, offs=offs)
