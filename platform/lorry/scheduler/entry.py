"""A live request inside the scheduler, wherever it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic

from lorry.ids import AdapterKey
from lorry.kvcache import BlockHash
from lorry.residency.host import R
from lorry.scheduler.requests import ScheduledRequest

if TYPE_CHECKING:
    from lorry.scheduler.reasons import WaitReason
    from lorry.scheduler.running import Running


class Lack(StrEnum):
    """The device resource for want of which a request was passed over."""

    MEMORY = "memory"
    """KV pages, or bytes for its adapter."""
    ROOM = "room"
    """A slot, or chunks or extras under the adapters' bounds."""


class Place(StrEnum):
    """Where a live request is. FOLLOWING: choice 0 of its request has not computed the prompt yet. PARKED: preempted,
    and a step that it was in is still under way."""

    FOLLOWING = "following"
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"


@dataclass(slots=True, eq=False)
class Entry(Generic[R]):
    """``arrival`` counts up over all requests: the order of first come, first served. ``tokens``: the most
    positions the sequence can have. The ``blocked_*`` fields belong to Ageing.

    ``root`` None: nothing of it enters the prefix index. ``keys``: of its full blocks in order, as far as they are
    known. ``private``: the chain is one request's own, for its choices. ``run``: how far it has come, once it ran.
    ``judged``: the last plan that passed it over, and ``reason`` why.
    """

    request: ScheduledRequest[R]
    arrival: int
    tokens: int
    added_at: float
    tier: str
    adapter: AdapterKey | None
    place: Place = Place.WAITING
    ready_at: float | None = None
    root: BlockHash | None = None
    keys: list[BlockHash] = field(default_factory=list)
    private: bool = False
    run: Running[R] | None = None
    lack: Lack | None = None
    blocked_plan: int = 0
    blocked_at: float = 0.0
    judged: int = -1
    reason: WaitReason | None = None
    rank: tuple[int, int] = field(init=False)
    """Who runs before whom, and is preempted after whom."""

    def __post_init__(self) -> None:
        self.rank = (-self.request.priority, self.arrival)


__all__ = ["Entry", "Lack", "Place"]
