"""What adapters do at one kind of site, for both phases of a step, over the slot tables: input gains, LoRA, gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lorry.layers.page_arena import PageArena
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.slot_tables import SiteTables
from lorry.layers.spec import DecoderSpec
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing
from lorry_kernels.tuning import Phase

_PHASES: tuple[Phase, ...] = ("decode", "prefill")

Routed = tuple[slice, Routing]
"""Rows of a step, and who of them meets which adapter."""


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
        self._widths = widths
        self._lora = {phase: MultiLora.of(phase, k, widths, blocks, dtype, device) for phase in _PHASES}

    def plane_elements(self, phase: Phase) -> int:
        """Of one row."""
        plan = self._lora[phase].shrink
        return plan.tiles.split * plan.a_slices * plan.rank

    def gained(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tables: SiteTables,
        arena: PageArena,
        routed: Sequence[Routed],
        slices: Sequence[int],
    ) -> Tensor:
        """``x W^T + bias``, where x of some rows is first multiplied by their slot's input gain; x itself stays as it
        was for LoRA. ``slices``: those of the site that some row may have a gain at; ``routed`` are all of the rows.

        A site of one slice has one product, of x with the gains in it. Of more, the slices named have another one
        each, of which only rows with a gain are taken. So all other rows are the bits that they are without.
        """

        def times_gain(offset: Tensor) -> Tensor:
            found = torch.empty_like(x)
            for rows, routing in routed:
                input_gain(x[rows], found[rows], arena.vectors, offset, routing)
            return found

        if len(self._widths) == 1:
            return F.linear(times_gain(tables.in_gain_offset[:, 0]), weight, bias)
        y = F.linear(x, weight, bias)
        for index in slices:
            first = sum(self._widths[:index])
            columns, offset = slice(first, first + self._widths[index]), tables.in_gain_offset[:, index]
            own = F.linear(times_gain(offset), weight[columns], None if bias is None else bias[columns])
            for rows, routing in routed:
                take_gained(y[rows, columns], own[rows], offset, routing)
        return y

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


__all__ = ["Routed", "SiteLora", "Workspaces"]
