"""Where each slot's LoRA on a matrix with a row an id lies in the extras' arena, for the kernels. Imports torch.

Beside ``lorry.layers.slot_tables`` and with its generations: rows are routed there, and what is here is read for routed
rows alone. A slot whose adapter has none has -1 everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lorry.ids import SlotId
from lorry.layers.extras_arena import ExtrasArena

NOTHING = -1


class WideTables:
    """``a`` and ``b`` int64 ``[slots, 1, blocks]``, ``gain`` and ``addend`` int64 ``[slots, 1]``: places in elements of
    the arena in the type of what lies there; ``scale`` float32 ``[slots, 1]``, 1 always: it is inside the matrices.
    Enqueued on the current stream, as ``SlotTables`` are."""

    def __init__(self, blocks: int, slots: int, device: torch.device) -> None:
        self._blocks = blocks
        self._places = torch.full((slots, 2 * blocks + 2), NOTHING, dtype=torch.int64, device=device)
        self.a: Tensor = self._places[:, None, :blocks]
        self.b: Tensor = self._places[:, None, blocks : 2 * blocks]
        self.gain: Tensor = self._places[:, 2 * blocks : 2 * blocks + 1]
        self.addend: Tensor = self._places[:, 2 * blocks + 1 :]
        self.scale = torch.ones((slots, 1), dtype=torch.float32, device=device)

    def publish(
        self,
        slot: SlotId,
        arena: ExtrasArena,
        a: Tensor | None,
        b: Tensor | None,
        gain: Tensor | None = None,
        addend: Tensor | None = None,
    ) -> None:
        """``a`` and ``b`` in chunks ``[blocks, R, 16]`` or ``[blocks, 16, R]``, all of it in ``arena``. Before the
        slot's generation: until that is there no row is routed to it. Raises InternalError, nothing published, for what
        lies elsewhere."""
        row = np.full(2 * self._blocks + 2, NOTHING, np.int64)
        for first, matrix in ((0, a), (self._blocks, b)):
            if matrix is not None:
                count = matrix.shape[0]
                row[first : first + count] = arena.element(matrix) + np.arange(count) * matrix[0].numel()
        row[-2], row[-1] = (NOTHING if part is None else arena.element(part) for part in (gain, addend))
        put(self._places[slot], torch.from_numpy(row))

    def clear(self, slot: SlotId) -> None:
        """Nothing in it is followed any more."""
        self._places[slot].fill_(NOTHING)


def put(target: Tensor, source: Tensor) -> None:
    """torch's allocator of pinned memory keeps the staging block until the stream has read it."""
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


__all__ = ["NOTHING", "WideTables", "put"]
