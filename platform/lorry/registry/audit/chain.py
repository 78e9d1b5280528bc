"""What an event's hash covers, and the walk that checks a chain. No SQL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

GENESIS = "0" * 64
"""The hash before a tenant's first event."""
_DOMAIN = "lorry-audit-v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """``sequence`` counts a tenant's events from 1; 0 is not sealed yet. ``created_at`` is aware."""

    tenant: str
    sequence: int
    id: str
    actor: str
    action: str
    subject: str
    details: Any
    created_at: datetime

    def at(self, sequence: int) -> Event:
        return replace(self, sequence=sequence)


def canonical(details: Any) -> str:
    """JSON with sorted keys, without spaces, in ASCII: equal values have equal text. Raises ValueError or TypeError for
    what JSON cannot say."""
    return json.dumps(details, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain_json(details: Any) -> Any:
    """``details`` as a database answers it later: tuples are lists, keys are strings."""
    return json.loads(canonical(details))


def event_hash(previous: str, event: Event) -> str:
    """SHA-256 over the domain word, the event's fields and the hash before it, 64 hex digits. Each field has its type
    and length before it, so no two events share their bytes; the time counts in microseconds."""
    microseconds = (event.created_at - _EPOCH) // timedelta(microseconds=1)
    digest = hashlib.sha256()
    for field in (
        _DOMAIN,
        event.tenant,
        event.sequence,
        event.id,
        event.actor,
        event.action,
        event.subject,
        canonical(event.details),
        microseconds,
        previous,
    ):
        data = str(field).encode()
        digest.update((b"i" if isinstance(field, int) else b"s") + len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where a chain is not what was written."""

    sequence: int
    problem: str


class Walk:
    """Takes a chain's events in the order of their sequences, a page at a time, up to the first break."""

    def __init__(self) -> None:
        self.sequence = 0
        self.hash = GENESIS
        """Of the last event taken."""
        self.events = 0
        self.broken: Break | None = None

    def take(self, page: Iterable[tuple[Event, str | None]]) -> None:
        """Events with the hashes that are stored beside them."""
        for event, stored in page:
            if self.broken is not None:
                return
            self.events += 1
            self.broken = self._problem(event, stored)
            if self.broken is None:
                self.sequence, self.hash = event.sequence, stored or ""

    def end(self, sequence: int, head_hash: str) -> None:
        """``sequence`` and ``head_hash`` are what the chain's head says of its end."""
        if self.broken is not None:
            return
        if self.sequence < sequence:
            self.broken = Break(self.sequence + 1, f"events from here to {sequence}, the end by the head, are gone")
        elif self.sequence > sequence:
            self.broken = Break(sequence + 1, f"events from here on are beyond {sequence}, the end by the head")
        elif self.hash != head_hash:
            self.broken = Break(self.sequence, "the head has another hash than the last event")

    def _problem(self, event: Event, stored: str | None) -> Break | None:
        wanted = self.sequence + 1
        if event.sequence > wanted:
            return Break(wanted, f"the event is gone; {event.sequence} follows on {self.sequence}")
        if event.sequence < wanted:
            return Break(max(event.sequence, 1), f"an event more has the sequence {event.sequence}")
        if stored is None or event_hash(self.hash, event) != stored:
            return Break(wanted, "the event is not the one that was written here, or not after the one before it")
        return None


__all__ = ["GENESIS", "Break", "Event", "Walk", "canonical", "event_hash", "plain_json"]
