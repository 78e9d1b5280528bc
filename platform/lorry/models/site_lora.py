"""Multi-LoRA at one kind of site, for both phases of a step, over the slot tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry.layers.page_arena import PageArena
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.slot_tables import SiteTables
from lorry.layers.spec import DecoderSpec
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing
from lorry_kernels.tuning import Phase

_PHASES: tuple[Phase, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Memory that every site of every layer uses in turn: float32, as much as the largest site's planes."""

    elements: Mapping[Phase, Tensor]

    @classmethod
    def of(cls, sites: Iterable[SiteLora], decode_rows: int, prefill_rows: int, device: torch.device) -> Workspaces:
        rows: dict[Phase, int] = {"decode": decode_rows, "prefill": prefill_rows}
        largest = {phase: max(site.plane_elements(phase) for site in sites) for phase in _PHASES}
        return cls(
            {
                phase: torch.empty(largest[phase] * count, dtype=torch.float32, device=device)
                for phase, count in rows.items()
            }
        )


class SiteLora:
    """Of all layers: they have the same shapes."""

    def __init__(self, spec: DecoderSpec, site: Site, blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        names = SITE_SLICES[site]
        widths, k = [spec.slice_shape(name)[0] for name in names], spec.slice_shape(names[0])[1]
        self._lora = {phase: MultiLora.of(phase, k, widths, blocks, dtype, device) for phase in _PHASES}

    def plane_elements(self, phase: Phase) -> int:
        """Of one row."""
        plan = self._lora[phase].shrink
        return plan.tiles.split * plan.a_slices * plan.rank

    def apply(
        self,
        y: Tensor,
        x: Tensor,
        tables: SiteTables,
        arena: PageArena,
        routing: Routing,
        bias: Tensor | None,
        workspaces: Workspaces,
    ) -> None:
        """Adds every routed row's delta to y ``[T, sum N]`` in place, then its slot's gain and addend. x ``[T, K]``."""
        lora = self._lora[routing.phase]
        plan, tokens = lora.shrink, routing.tokens
        planes = workspaces.elements[routing.phase][: self.plane_elements(routing.phase) * tokens]
        shaped = planes.view(plan.tiles.split, plan.a_slices, tokens, plan.rank)
        offsets = LoraTables(tables.a_offset, tables.b_offset, tables.scale)
        vectors = SiteVectors(arena.vectors, tables.gain_offset, tables.addend_offset, bias)
        lora(y, x, arena.elements, offsets, routing, shaped, vectors)


__all__ = ["SiteLora", "Workspaces"]
