"""A live request inside the scheduler: waiting, then running."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic

from lorry.ids import AdapterDigest
from lorry.residency.host import R
from lorry.scheduler.requests import ScheduledRequest


class Lack(StrEnum):
    """The device resource for want of which a request was passed over."""

    PAGES = "pages"
    ROOM = "room"
    """A slot, or adapter chunks."""


@dataclass(slots=True, eq=False)
class Entry(Generic[R]):
    """``arrival`` counts up over all requests: the order of first come, first served. ``tokens``: the most
    positions the sequence can have. The ``blocked_*`` fields belong to Ageing."""

    request: ScheduledRequest[R]
    arrival: int
    tokens: int
    pages: int
    added_at: float
    tier: str
    ready_at: float | None = None
    lack: Lack | None = None
    blocked_plan: int = 0
    blocked_at: float = 0.0

    @property
    def digest(self) -> AdapterDigest | None:
        ref = self.request.ref
        return None if ref is None else ref.digest


__all__ = ["Entry", "Lack"]
