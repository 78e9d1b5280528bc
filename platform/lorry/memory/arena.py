"""Ids 0 .. size-1 of equal pieces of device memory: free, taken, or pending until a step is done."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from lorry.errors import InternalError


class IdArena:
    """Hands out the lowest free ids, so that what is in use stays a dense range from 0.

    A sorted list rather than a set or a heap: a contiguous run must be found as well as the lowest id. It holds the
    ids negated, so that the lowest lie at its end, where ids come and go as a rule and nothing has to be moved.

    Every id is in exactly one of three states: free -> taken -> pending(step) -> free. ``release`` at a
    step that is already done skips the middle one.

    Apart from that an id is *backed* or not: whether there is physical memory behind it. The ledger backs what is
    taken, and takes the backing of free ids back where another arena wants the bytes.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._free = [-piece for piece in range(size - 1, -1, -1)]
        self._taken = bytearray(size)
        self._pending: dict[int, list[int]] = {}
        self._done_step = -1
        self._backed = bytearray(size)
        self._backed_count = 0

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

    @property
    def backed(self) -> int:
        return self._backed_count

    def back(self, ids: Iterable[int]) -> int:
        """Mark ids as backed; how many were not."""
        fresh = [piece for piece in ids if not self._backed[piece]]
        for piece in fresh:
            self._backed[piece] = 1
        self._backed_count += len(fresh)
        return len(fresh)

    def unback(self, count: int) -> tuple[int, ...]:
        """Take the backing of at most ``count`` free ids away, the highest first; these ids."""
        found: list[int] = []
        for negated in self._free:
            if len(found) >= count:
                break
            if self._backed[-negated]:
                self._backed[-negated] = 0
                found.append(-negated)
        self._backed_count -= len(found)
        return tuple(found)

    def bare(self) -> tuple[int, ...]:
        """Ids that are taken or pending without memory behind them."""
        waiting = {piece for ids in self._pending.values() for piece in ids}
        return tuple(
            piece for piece in range(self.size) if not self._backed[piece] and (self._taken[piece] or piece in waiting)
        )

    def take(self, count: int) -> tuple[int, ...] | None:
        """The ``count`` lowest free ids, or None and nothing taken."""
        if count > len(self._free):
            return None
        if not count:
            return ()
        taken = tuple(-negated for negated in self._free[: -count - 1 : -1])
        del self._free[-count:]
        return self._mark(taken)

    def take_run(self, count: int) -> tuple[int, ...] | None:
        """A contiguous run; else as ``take``. Of the holes that hold it those come first where it can start at a
        multiple of ``count`` rounded up to a power of two (equal adapters then tile the arena, and a batch of
        them is one strided view), then the smallest hole, then the lowest."""
        if count > len(self._free):
            return None
        ids = [-negated for negated in reversed(self._free)]
        start = self._best_run(ids, count)
        if start is None:
            return self.take(count)
        taken = tuple(ids[start : start + count])
        del ids[start : start + count]
        self._free = [-piece for piece in reversed(ids)]
        return self._mark(taken)

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
        free = [-negated for negated in self._free]
        if sorted([*free, *pending, *taken]) != list(range(self.size)):
            raise InternalError(f"{self.name} arena: an id is in no state or in two")
        if any(a >= b for a, b in zip(self._free, self._free[1:], strict=False)):
            raise InternalError(f"{self.name} arena: the free list is not sorted")
        if self._backed_count != sum(self._backed):
            raise InternalError(f"{self.name} arena: the count of backed ids is wrong")
        if any(step <= self._done_step for step in self._pending):
            raise InternalError(f"{self.name} arena: an id waits for a step that is done")

    @staticmethod
    def _best_run(ids: list[int], count: int) -> int | None:
        """Index into ``ids``, which are sorted."""
        align = 1 << (count - 1).bit_length()
        best: tuple[bool, int, int] | None = None
        begin = 0
        for index in range(1, len(ids) + 1):
            if index < len(ids) and ids[index] == ids[index - 1] + 1:
                continue
            length, skip = index - begin, -ids[begin] % align
            aligned = skip + count <= length
            if length >= count:
                found = (not aligned, length, begin + (skip if aligned else 0))
                best = found if best is None else min(best, found)
            begin = index
        return None if best is None else best[2]

    def _mark(self, taken: tuple[int, ...]) -> tuple[int, ...]:
        for piece in taken:
            self._taken[piece] = 1
        return taken

    def _add_free(self, ids: list[int]) -> None:
        if len(ids) <= 4:
            for piece in ids:
                insort(self._free, -piece)
        else:
            self._free.extend(-piece for piece in ids)
            self._free.sort()


__all__ = ["IdArena"]
