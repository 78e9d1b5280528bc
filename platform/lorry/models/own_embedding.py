"""Embeddings of any mix of adapters and the base, for both phases of a step, over the slot tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lorry.layers.embedding_tables import EmbeddingTables
from lorry.layers.extras_arena import ExtrasArena
from lorry.models.site_lora import Routed, Workspaces
from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.expand import ExpandPlan, SiteVectors, expand
from lorry_kernels.ops.launch import architecture
from lorry_kernels.ops.lora_tiles import RANKS
from lorry_kernels.tuning import Phase

_PHASES: tuple[Phase, ...] = ("decode", "prefill")


class OwnEmbedding:
    """Whole matrices, LoRA and DoRA on ids, rows that stand for ids. Launched only for steps where a row may have one;
    the base's rows are copied bit for bit. A step can be captured."""

    def __init__(self, weight: Tensor, tables: EmbeddingTables, arena: ExtrasArena, blocks: int) -> None:
        """``weight`` ``[V, H]``: the base's."""
        self._weight, self._tables, self._arena, self._rank = weight, tables, arena, blocks * RANKS
        widths, dtype, device = [weight.shape[1]], weight.dtype, weight.device
        arch = architecture(device)
        self._plans = {phase: ExpandPlan.of(phase, arch, widths, blocks, 1, dtype, device) for phase in _PHASES}

    def __call__(self, ids: Tensor, routed: Sequence[Routed], workspaces: Workspaces) -> Tensor:
        """ids int64 ``[T]`` -> ``[T, H]``; ``routed`` are all of the rows. An id that its row's vocabulary lacks is
        NaN."""
        tables, arena = self._tables, self._arena
        out = torch.empty(len(ids), self._weight.shape[1], dtype=self._weight.dtype, device=ids.device)
        matrices = OwnMatrices(arena.elements, tables.weight, tables.ids)
        single = OwnRows(arena.maps, tables.row_of, tables.ids, arena.vectors, tables.rows)
        lora = tables.lora
        gains = SiteVectors(arena.vectors, lora.gain, lora.addend)
        for rows, routing in routed:
            own, y = ids[rows], out[rows]
            planes = workspaces.elements[routing.phase][: len(own) * self._rank].view(1, 1, -1, self._rank)
            embed(own, self._weight, y, routing, matrices)
            embedding_planes(own, arena.elements, lora.a, tables.ids, routing, planes)
            plan = self._plans[routing.phase]
            expand(y, planes, arena.elements, lora.b, lora.scale, routing, plan, gains)
            replace_rows(y, own, routing, single)
        return out


__all__ = ["OwnEmbedding"]
