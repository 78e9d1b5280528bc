"""Heads of any mix of adapters that are the base's with LoRA, a gain or an addend, over the slot tables."""

from __future__ import annotations

import torch
from torch import Tensor

from lorry.layers.extras_arena import ExtrasArena
from lorry.layers.wide_tables import WideTables
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing, route


class OwnHead:
    """Two launches for rows of any number of adapters. A step with it can be captured. A head that is a matrix of its
    own, or of another vocabulary, is not here."""

    def __init__(
        self, hidden: int, vocabulary: int, tables: WideTables, arena: ExtrasArena, blocks: int, dtype: torch.dtype
    ) -> None:
        device = arena.elements.device
        self._tables, self._arena = tables, arena
        self._lora = MultiLora.of("decode", hidden, [vocabulary], blocks, dtype, device)

    def routing(self, slot: Tensor, generation: Tensor) -> Routing:
        """Of rows that need not be a step's, with ``slot`` int32 ``[R]`` as a step routed them; ``generation`` int64
        ``[slots]`` as it was then. Rows of a prompt take decode tiles too: a row has one answer."""
        made = Routing.allocate("decode", slot.shape[0], generation.shape[0], slot.device)
        route(slot, generation.index_select(0, slot.clamp(min=0)), generation, made)
        return made

    def __call__(self, logits: Tensor, x: Tensor, routing: Routing) -> None:
        """Adds to ``logits`` float32 ``[R, V]`` in place, which are ``x W^T`` of the base's W; x ``[R, H]``."""
        tables, arena = self._tables, self._arena
        vectors = SiteVectors(arena.vectors, tables.gain, tables.addend)
        planes = self._lora.planes(routing.tokens, x.device)
        self._lora(logits, x, arena.elements, LoraTables(tables.a, tables.b, tables.scale), routing, planes, vectors)


__all__ = ["OwnHead"]
