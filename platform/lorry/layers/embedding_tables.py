"""Where each slot's own embedding lies in the extras' arena, for the kernels. Imports torch.

As ``lorry.layers.wide_tables``, whose rules it has.
"""

from __future__ import annotations

import numpy as np
import torch

from lorry.ids import SlotId
from lorry.layers.extras import ChunkedEmbedding
from lorry.layers.extras_arena import ExtrasArena
from lorry.layers.wide_tables import NOTHING, WideTables, put


class EmbeddingTables:
    """``weight``, ``row_of``, ``rows`` and ``ids`` int64 ``[slots]``: places in elements of the arena in the type of
    what lies there, and the size of the vocabulary; ``lora``: chunks and gain."""

    def __init__(self, blocks: int, slots: int, device: torch.device) -> None:
        self.lora = WideTables(blocks, slots, device)
        self._singles = torch.full((4, slots), NOTHING, dtype=torch.int64, device=device)
        self.weight, self.row_of, self.rows, self.ids = self._singles.unbind()

    def publish(self, slot: SlotId, own: ChunkedEmbedding, arena: ExtrasArena) -> None:
        """As ``WideTables.publish``; ``own`` lies in ``arena``."""
        places = [NOTHING if part is None else arena.element(part) for part in (own.weight, own.row_of, own.rows)]
        self.lora.publish(slot, arena, own.a, own.b, own.gain)
        put(self._singles[:, slot], torch.from_numpy(np.array([*places, own.ids], np.int64)))

    def clear(self, slot: SlotId) -> None:
        """Nothing in it is followed any more."""
        self.lora.clear(slot)
        self._singles[:, slot].fill_(NOTHING)


__all__ = ["EmbeddingTables"]
