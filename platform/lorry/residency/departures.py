"""What left a tier lately, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from lorry.ids import AdapterKey

KEPT = 64
"""Departures that a tier remembers."""


class Cause(StrEnum):
    """Why a version left a tier."""

    ROOM = "room"
    """Another adapter was given its place."""
    MEMORY = "memory"
    """KV pages, or the bytes of another adapter, were given its memory."""
    ASKED = "asked"
    """An operator took it out, or it was purged."""
    FAULT = "fault"
    """Its copy there was damaged, or its load failed."""


@dataclass(frozen=True, slots=True)
class Departure:
    """``at``: seconds of a clock that never goes back (``time.monotonic``)."""

    adapter: AdapterKey
    cause: Cause
    bytes: int
    at: float


Departures = deque[Departure]
"""The last ``KEPT``, the newest last."""


def departures() -> Departures:
    return deque(maxlen=KEPT)


__all__ = ["KEPT", "Cause", "Departure", "Departures", "departures"]
