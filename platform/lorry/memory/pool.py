"""Bytes of one kind under a cap: free, taken, or pending until a step is done."""

from __future__ import annotations

from lorry.errors import InternalError


class BytePool:
    """Why not an ``IdArena``: what is taken is any number of bytes and has no place, since the device allocates it
    anew each time. So nothing that is free has memory behind it.

    free -> taken -> pending(step) -> free; ``release`` at a step that is already done skips the third.
    """

    def __init__(self, name: str, cap: int) -> None:
        self.name = name
        self.cap = cap
        self._held = 0
        self._waiting = 0
        self._pending: dict[int, int] = {}
        self._done_step = -1

    @property
    def held(self) -> int:
        """Taken or pending."""
        return self._held

    @property
    def free(self) -> int:
        """What can be taken now. Pending bytes do not count."""
        return self.cap - self._held

    @property
    def pending(self) -> int:
        return self._waiting

    @property
    def used(self) -> int:
        return self._held - self._waiting

    def take(self, count: int) -> None:
        """Raises InternalError where less than ``count`` is free."""
        if not 0 <= count <= self.free:
            raise InternalError(f"{count} bytes of {self.name} were taken but {self.free} are free")
        self._held += count

    def release(self, count: int, at_step: int) -> None:
        """Free ``count`` bytes once ``at_step`` is done. Raises InternalError where fewer are taken."""
        if not 0 <= count <= self.used:
            raise InternalError(f"{count} bytes of {self.name} were freed but {self.used} are taken")
        if at_step <= self._done_step:
            self._held -= count
        elif count:
            self._waiting += count
            self._pending[at_step] = self._pending.get(at_step, 0) + count

    def step_done(self, step: int) -> None:
        """Steps up to ``step`` are done: what was freed at them is usable."""
        self._done_step = max(self._done_step, step)
        for at_step in [s for s in self._pending if s <= step]:
            count = self._pending.pop(at_step)
            self._waiting -= count
            self._held -= count

    def check_integrity(self) -> None:
        """Raises InternalError where the counts contradict each other or the cap."""
        if self._waiting != sum(self._pending.values()):
            raise InternalError(f"{self.name}: the count of bytes that wait for a step is wrong")
        if any(step <= self._done_step for step in self._pending):
            raise InternalError(f"{self.name}: bytes wait for a step that is done")
        if not self._waiting <= self._held <= self.cap:
            raise InternalError(
                f"{self.name}: {self._held} bytes are taken or pending, {self._waiting} pending; the cap is {self.cap}"
            )


__all__ = ["BytePool"]
