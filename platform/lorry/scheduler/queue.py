"""What waits in an engine, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lorry.ids import AdapterKey, RequestId, TenantId
from lorry.residency.host import R
from lorry.scheduler.entry import Entry, Place
from lorry.scheduler.reasons import WaitReason


@dataclass(frozen=True, slots=True)
class Waiting:
    """One sequence that waits. ``choice``: of its request. ``seconds``: since it came. ``preempted``: how often it ran
    and gave the device up."""

    request_id: RequestId
    tenant: TenantId
    adapter: AdapterKey | None
    choice: int
    seconds: float
    reason: WaitReason
    preempted: int
    priority: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences that run, and how many may."""

    running: int
    max_sequences: int


def list_waiting(live: Iterable[Entry[R]], reason_of: Callable[[Entry[R]], WaitReason], now: float) -> list[Waiting]:
    """By arrival."""
    return [
        Waiting(
            entry.request.request_id,
            entry.request.tenant,
            entry.adapter,
            entry.request.choice,
            now - entry.added_at,
            reason_of(entry),
            0 if entry.run is None else entry.run.preemptions,
            entry.request.priority,
            len(entry.request.prompt),
        )
        for entry in live
        if entry.place is not Place.RUNNING
    ]


__all__ = ["Load", "Waiting", "list_waiting"]
