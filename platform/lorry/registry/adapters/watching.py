"""Validations in progress, and who watches them. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lorry.adapters.report import Check
from lorry.errors import Draining, InternalError, LorryError, Overloaded, RequestCancelled
from lorry.registry.adapters.candidates import Candidate
from lorry.registry.db.tables import AdapterVersion, BaseModel

ENDED_KEPT = 64
"""Ended attempts that are still replayed by their upload's name."""
WATCHERS_MAX = 16
"""Of one upload."""
LOOK_S = 60.0
"""How often a watcher that waits for an attempt asks whether its upload is still there."""


@dataclass(frozen=True, slots=True)
class Examined:
    """How an attempt under ``validate_only`` ends: nothing was made."""

    candidate: Candidate
    base: BaseModel


Made = AdapterVersion | Examined


class Attempt:
    """One call on an upload: its rows so far, and how it ended."""

    def __init__(self) -> None:
        self.rows: list[Check] = []
        self.end: Made | LorryError | None = None
        self.running = False
        self.watchers = 0
        self.changed = asyncio.Event()
        """Set at the next change, and another one then: take it before looking, so that none is missed."""

    def row(self, check: Check) -> None:
        self.rows.append(check)
        self.change()

    def ended(self, how: Made | LorryError) -> None:
        self.end = how
        self.change()

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Attempts:
    """By upload (any key that names one). An attempt is kept while it runs or is watched; and one that made a version,
    and so was its upload's last, for a while after it has ended."""

    def __init__(self) -> None:
        self._open: dict[str, Attempt] = {}
        self._ended: OrderedDict[str, Attempt] = OrderedDict()
        self._closed = False

    def __len__(self) -> int:
        """Those that run or are waited for."""
        return len(self._open)

    @contextmanager
    def attempt(self, upload: str) -> Iterator[Attempt]:
        """Around one call, of which there is one at a time for an upload. ``ended`` is due within; an error that leaves
        the block ends the attempt for its watchers too."""
        found = self._open.setdefault(upload, Attempt())
        self._ended.pop(upload, None)
        found.running = True
        try:
            yield found
        except LorryError as error:
            found.ended(error)
            raise
        except Exception:  # watchers are told, and it is raised on
            found.ended(InternalError("the validation failed; the server's log says how"))
            raise
        finally:
            if found.end is None:
                found.ended(RequestCancelled("the call that was to make the version was cancelled; nothing was made"))
            del self._open[upload]
            if isinstance(found.end, AdapterVersion):
                self._ended[upload] = found
                while len(self._ended) > ENDED_KEPT:
                    self._ended.popitem(last=False)

    def knows(self, upload: str) -> bool:
        return upload in self._open or upload in self._ended

    @contextmanager
    def watch(self, upload: str, still_there: Callable[[], Awaitable[object]]) -> Iterator[AsyncIterator[Check | Made]]:
        """Rows of the attempt that runs or is the next, none of them missed from here on, or of that which has just
        made a version; then what it made, or its error. ``still_there`` raises when no attempt can come any more."""
        found = self._ended.get(upload) or self._open.setdefault(upload, Attempt())
        if found.watchers >= WATCHERS_MAX:
            raise Overloaded(f"name: {WATCHERS_MAX} watch this upload already; try again", retry_after_s=1.0)
        found.watchers += 1
        try:
            yield self._news(found, still_there)
        finally:
            found.watchers -= 1
            if not found.watchers and not found.running and self._open.get(upload) is found:
                del self._open[upload]

    def close(self) -> None:
        """Ends every watch with Draining, now and later."""
        self._closed = True
        for found in self._open.values():
            found.change()

    async def _news(self, found: Attempt, still_there: Callable[[], Awaitable[object]]) -> AsyncIterator[Check | Made]:
        seen = 0
        while True:
            changed = found.changed
            while seen < len(found.rows):
                seen += 1
                yield found.rows[seen - 1]
            if isinstance(found.end, LorryError):
                raise found.end
            if found.end is not None:
                yield found.end
                return
            if self._closed:
                raise Draining("this server is going down; watch again by the version's name", retry_after_s=1.0)
            try:
                async with asyncio.timeout(LOOK_S):
                    await changed.wait()
            except TimeoutError:
                if not found.running:
                    await still_there()


__all__ = ["Attempt", "Attempts", "Examined", "Made"]
