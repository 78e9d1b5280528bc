"""One buffer for what adapters bring beside pages: embeddings and heads. Imports torch.

A page is too small for a matrix with a row an id, and a captured graph can only follow places in memory that stays. So
these have an arena of their own, as large as the ledger lets all of them be together: each tensor lies in one piece in
it. Where what is free is in pieces, those that are there move together (``compact``): what the ledger granted always
finds room.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lorry.errors import InternalError
from lorry.layers.extras import AdapterExtras
from lorry.layers.slot_row import ALIGN

_MOVED_AT_ONCE = 64 << 20
"""Bytes: pieces move through memory beside the arena."""


def arena_bytes(extras: AdapterExtras | None) -> int:
    """What they take in an arena: each tensor whole cache lines, one that embedding and head share once."""
    if extras is None:
        return 0
    return sum({tensor.data_ptr(): _rounded(tensor.nbytes) for tensor in extras.tensors()}.values())


class ExtrasArena:
    """One thread (the step loop) owns it; what it enqueues is ordered by the current stream."""

    def __init__(self, nbytes: int, dtype: torch.dtype, device: torch.device) -> None:
        """``dtype``: of the base's weights there."""
        self.bytes = torch.zeros(max(_rounded(nbytes), ALIGN), dtype=torch.uint8, device=device)
        self.elements: Tensor = self.bytes.view(dtype)
        self.vectors: Tensor = self.bytes.view(torch.float32)
        self.maps: Tensor = self.bytes.view(torch.int32)
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(self._taken.values())

    def place(self, tensor: Tensor) -> int:
        """Bytes from the arena's beginning. Raises InternalError for a tensor that does not begin where something was
        taken."""
        found = tensor.data_ptr() - self.bytes.data_ptr()
        if found not in self._taken:
            raise InternalError(f"{tensor.nbytes} bytes at {found} of the extras' arena were not taken there")
        return found

    def element(self, tensor: Tensor) -> int:
        """``place`` in elements of the tensor's own type."""
        return self.place(tensor) // tensor.dtype.itemsize

    def take(self, like: Tensor) -> Tensor | None:
        """Uninitialised room for a tensor, None where no piece is large enough. First fit."""
        size, begin = _rounded(like.nbytes), 0
        for at in sorted(self._taken):
            if at - begin >= size:
                break
            begin = at + self._taken[at]
        if begin + size > self.bytes.numel():
            return None
        self._taken[begin] = size
        return self._view(begin, like)

    def give_back(self, tensor: Tensor) -> None:
        del self._taken[self.place(tensor)]

    def release(self, extras: AdapterExtras | None) -> None:
        """All that an adapter took."""
        if extras is not None:
            for tensor in {tensor.data_ptr(): tensor for tensor in extras.tensors()}.values():
                self.give_back(tensor)

    def compact(self) -> Callable[[Tensor], Tensor]:
        """Moves all that is taken to the beginning. Answers where a tensor is now: those of before are nobody's."""
        moved, end = {}, 0
        for begin, size in sorted(self._taken.items()):
            for first in range(0, size, _MOVED_AT_ONCE) if begin != end else ():
                count = min(_MOVED_AT_ONCE, size - first)
                source = self.bytes[begin + first : begin + first + count]
                self.bytes[end + first : end + first + count] = source.clone()  # the two may overlap
            moved[begin] = end
            end += size
        start = self.bytes.data_ptr()
        self._taken = {moved[begin]: size for begin, size in self._taken.items()}
        return lambda tensor: self._view(moved[tensor.data_ptr() - start], tensor)

    def _view(self, begin: int, like: Tensor) -> Tensor:
        return self.bytes[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


__all__ = ["ExtrasArena", "arena_bytes"]
