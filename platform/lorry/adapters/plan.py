"""What a validated adapter applies, and where: the result of validation that the image is built from. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModulePlan:
    """One linear's delta: ``y += scale * B (A x)``.

    ``a_tensor`` is ``[rank, K]`` and ``b_tensor`` is ``[N, rank]`` in the weights file. ``scale`` is PEFT's,
    resolved for this module (patterns and rsLoRA included); finite.
    """

    rank: int
    scale: float
    a_tensor: str
    b_tensor: str


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Every tensor of the weights file is in exactly one ModulePlan; a key not here gets no delta.

    ``modules`` is keyed by (layer, slice name as in lorry.layers.sites) and is never empty.
    """

    weights: str
    modules: Mapping[tuple[int, str], ModulePlan]

    @property
    def rank(self) -> int:
        """The largest rank of a module, >= 1."""
        return max(module.rank for module in self.modules.values())

    @property
    def tensors(self) -> int:
        return 2 * len(self.modules)


__all__ = ["AdapterPlan", "ModulePlan"]
