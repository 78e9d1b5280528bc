"""Every live request, where it stands and how far it has come: what a watchdog compares from look to look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lorry.ids import RequestId
from lorry.residency.host import R
from lorry.scheduler.entry import Entry, Place


@dataclass(frozen=True, slots=True)
class Standing:
    """``running``: it has a place in the batch; one that was preempted waits. ``progress`` changes with each prompt
    token that is planned and each token that is put out."""

    request_id: RequestId
    running: bool
    progress: int


def take_census(live: Iterable[Entry[R]]) -> list[Standing]:
    return [
        Standing(
            entry.request.request_id,
            entry.place is Place.RUNNING,
            0 if entry.run is None else min(entry.run.planned, entry.run.known) + len(entry.run.output),
        )
        for entry in live
    ]


__all__ = ["Standing", "take_census"]
