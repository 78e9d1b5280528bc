"""Memory of a host image. Imports torch."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

_ALIGN = 64
_SLAB = 4 << 20


class ImageMemory:
    """Anonymous mappings for all tensors of one image, so that its memory goes back to the system with it: hundreds
    of small tensors on malloc's heap, which come and go by the adapter, leave holes between them.

    Small tensors lie in common slabs, whose unused end is never touched and so is not physical; a large one has a
    mapping of its own.
    """

    def __init__(self, pinned: bool = False) -> None:
        """``pinned``: pages that a device can copy from without the CPU. torch takes them, in powers of two."""
        self._pinned = pinned
        self._slab = torch.zeros(0, dtype=torch.uint8)
        self._next = 0

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        if size > _SLAB // 2:
            return self._mapping(size).view(dtype).view(shape)
        if self._next + size > self._slab.shape[0]:
            self._slab, self._next = self._mapping(_SLAB), 0
        begin, self._next = self._next, self._next + -(-size // _ALIGN) * _ALIGN
        return self._slab[begin : begin + size].view(dtype).view(shape)

    def copy(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy of the tensor in this memory."""
        return self.zeros(tuple(tensor.shape), dtype or tensor.dtype).copy_(tensor)

    def _mapping(self, size: int) -> Tensor:
        if self._pinned:
            return torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        return torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)


__all__ = ["ImageMemory"]
