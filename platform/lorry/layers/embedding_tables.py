"""Where each slot's own embedding lies in the extras' arena, for the kernels. Imports torch.

Beside ``lorry.layers.slot_tables`` and with its generations: rows are routed there, and what is here is read for routed
rows alone. A slot whose adapter has the base's embedding has -1 everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lorry.ids import SlotId
from lorry.layers.extras import ChunkedEmbedding
from lorry.layers.extras_arena import ExtrasArena

_WEIGHT, _ROW_OF, _ROWS, _IDS = range(4)
_NOTHING = -1


class EmbeddingTables:
    """``weight``, ``row_of``, ``rows`` and ``ids`` int64 ``[slots]``; ``a`` and ``b`` int64 ``[slots, 1, blocks]``;
    ``gain`` and ``addend`` (-1 always) int64, ``scale`` (1 always) float32 ``[slots, 1]``. Places are elements of the
    arena in the type of what lies there. Enqueued on the current stream, as ``SlotTables`` are."""

    def __init__(self, blocks: int, slots: int, device: torch.device) -> None:
        self._blocks = blocks
        self._singles = torch.full((4, slots), _NOTHING, dtype=torch.int64, device=device)
        self._chunks = torch.full((slots, 2 * blocks + 1), _NOTHING, dtype=torch.int64, device=device)
        self.weight, self.row_of, self.rows, self.ids = self._singles.unbind()
        self.a: Tensor = self._chunks[:, None, :blocks]
        self.b: Tensor = self._chunks[:, None, blocks : 2 * blocks]
        self.gain: Tensor = self._chunks[:, 2 * blocks :]
        self.addend = torch.full((slots, 1), _NOTHING, dtype=torch.int64, device=device)
        self.scale = torch.ones((slots, 1), dtype=torch.float32, device=device)

    def publish(self, slot: SlotId, own: ChunkedEmbedding, arena: ExtrasArena) -> None:
        """``own`` lies in ``arena``. Before its generation: until that is there no row is routed to the slot. Raises
        InternalError, nothing published, for what lies elsewhere."""

        def at(tensor: Tensor | None) -> int:
            return _NOTHING if tensor is None else arena.place(tensor) // tensor.dtype.itemsize

        singles = np.array([at(own.weight), at(own.row_of), at(own.rows), own.ids], np.int64)
        chunks = np.full(2 * self._blocks + 1, _NOTHING, np.int64)
        for first, matrix in ((0, own.a), (self._blocks, own.b)):
            if matrix is not None:
                count = matrix.shape[0]
                chunks[first : first + count] = at(matrix) + np.arange(count) * matrix[0].numel()
        chunks[-1] = at(own.gain)
        self._put(self._singles[:, slot], torch.from_numpy(singles))
        self._put(self._chunks[slot], torch.from_numpy(chunks))

    def clear(self, slot: SlotId) -> None:
        """Nothing in it is followed any more."""
        self._singles[:, slot].fill_(_NOTHING)
        self._chunks[slot].fill_(_NOTHING)

    def _put(self, target: Tensor, source: Tensor) -> None:
        """torch's allocator of pinned memory keeps the staging block until the stream has read it."""
        if target.is_cuda:
            source = source.pin_memory()
        target.copy_(source, non_blocking=True)


__all__ = ["EmbeddingTables"]
