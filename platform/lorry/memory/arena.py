"""Ids 0 .. size-1 of equal pieces of device memory: free, taken, or pending until a step is done."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from lorry.errors import InternalError


class IdArena:
    """Hands out the lowest free ids, so that what is in use stays a dense range from 0.

    A sorted list rather than a set or a heap: a contiguous run must be found as well as the lowest id,
    and arenas are small (thousands), where one memmove is cheaper than a tree.

    Every id is in exactly one of three states: free -> taken -> pending(step) -> free. ``release`` at a
    step that is already done skips the middle one.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._free = list(range(size))
        self._taken = bytearray(size)
        self._pending: dict[int, list[int]] = {}
        self._done_step = -1

    @property
    def free(self) -> int:
        """Ids that can be taken now. Pending ones do not count."""
        return len(self._free)

    @property
    def pending(self) -> int:
        return sum(len(ids) for ids in self._pending.values())

    @property
    def used(self) -> int:
        return self.size - self.free - self.pending

    def take(self, count: int) -> tuple[int, ...] | None:
        """The ``count`` lowest free ids, or None and nothing taken."""
        if count > len(self._free):
            return None
        return self._take_at(range(count))

    def take_run(self, count: int) -> tuple[int, ...] | None:
        """A contiguous run; else as ``take``. Of the holes that hold it those come first where it can start at a
        multiple of ``count`` rounded up to a power of two (equal adapters then tile the arena, and a batch of
        them is one strided view), then the smallest hole, then the lowest."""
        if count > len(self._free):
            return None
        start = self._best_run(count)
        return self._take_at(range(count) if start is None else range(start, start + count))

    def release(self, ids: Iterable[int], at_step: int) -> None:
        """Free ``ids`` once ``at_step`` is done. Raises InternalError for an id that is not taken."""
        released = list(ids)
        for piece in released:
            if not (0 <= piece < self.size and self._taken[piece]):
                raise InternalError(f"{self.name} {piece} was freed but is not taken; an owner freed it twice")
            self._taken[piece] = 0
        if at_step > self._done_step:
            self._pending.setdefault(at_step, []).extend(released)
        else:
            self._add_free(released)

    def step_done(self, step: int) -> None:
        """Steps up to ``step`` are done: what was freed at them is usable."""
        self._done_step = max(self._done_step, step)
        for at_step in [s for s in self._pending if s <= step]:
            self._add_free(self._pending.pop(at_step))

    def check_integrity(self) -> None:
        """Raises InternalError unless every id is in exactly one state."""
        pending = [piece for ids in self._pending.values() for piece in ids]
        taken = [piece for piece in range(self.size) if self._taken[piece]]
        if sorted([*self._free, *pending, *taken]) != list(range(self.size)):
            raise InternalError(f"{self.name} arena: an id is in no state or in two")
        if any(a >= b for a, b in zip(self._free, self._free[1:], strict=False)):
            raise InternalError(f"{self.name} arena: the free list is not sorted")
        if any(step <= self._done_step for step in self._pending):
            raise InternalError(f"{self.name} arena: an id waits for a step that is done")

    def _best_run(self, count: int) -> int | None:
        """Index into the free list."""
        align = 1 << (count - 1).bit_length()
        best: tuple[bool, int, int] | None = None
        begin = 0
        for index in range(1, len(self._free) + 1):
            if index < len(self._free) and self._free[index] == self._free[index - 1] + 1:
                continue
            length, skip = index - begin, -self._free[begin] % align
            aligned = skip + count <= length
            if length >= count:
                found = (not aligned, length, begin + (skip if aligned else 0))
                best = found if best is None else min(best, found)
            begin = index
        return None if best is None else best[2]

    def _take_at(self, span: range) -> tuple[int, ...]:
        taken = tuple(self._free[span.start : span.stop])
        del self._free[span.start : span.stop]
        for piece in taken:
            self._taken[piece] = 1
        return taken

    def _add_free(self, ids: list[int]) -> None:
        if len(ids) <= 4:
            for piece in ids:
                insort(self._free, piece)
        else:
            self._free.extend(ids)
            self._free.sort()


__all__ = ["IdArena"]
