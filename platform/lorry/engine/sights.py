"""Makes an engine's views of what its parts hold, on the step loop's thread, between two steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from heapq import nsmallest
from itertools import chain, islice
from typing import Any, Protocol

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.tier_views import TierSight
from lorry.engine.views import (
    COPIES_SHOWN,
    WAITING_SHOWN,
    Eviction,
    Load,
    MemoryView,
    QueueView,
    VersionCopies,
)
from lorry.ids import AdapterKey, AdapterScope, RequestId
from lorry.residency.slots import Slot
from lorry.scheduler import Scheduler

GONE_SHOWN = 64
_Rows = dict[AdapterKey, tuple[Slot, int]]
"""Filled slots, and how many requests hold the version of each."""


class Tiers(Protocol):
    """The host and disk tiers (``lorry.adapters.tiers.HostTierStore``); from any thread."""

    def sight(self) -> TierSight: ...


def memory_view(scheduler: Scheduler[AdapterRef], tiers: Tiers) -> MemoryView:
    state, sight = scheduler.state(), tiers.sight()
    rows = _rows(scheduler)
    known = _known(rows, sight)
    shown = list(islice(known, COPIES_SHOWN))
    return MemoryView(
        pages=pages_of(state),
        page_tokens=state["page_tokens"],
        chunks=dict(state["chunks"]),
        slots={"total": state["max_slots"], "filled": len(state["slots"])},
        bytes=_bytes_of(state) | dict(sight.bytes),
        evictions={
            "device": state["adapter_evictions"],
            "prefixes": state["prefix_cache"]["evictions"],
            **sight.evictions,
        },
        copies=tuple(_copies(rows, sight, shown)),
        more=len(known) - len(shown),
        loads=tuple(
            sorted((Load(one.adapter, one.stage, one.seconds) for one in sight.loads), key=lambda load: -load.seconds)
        ),
        gone=_gone(scheduler, sight),
    )


def copies_of(
    scheduler: Scheduler[AdapterRef], tiers: Tiers, scopes: Collection[AdapterScope]
) -> tuple[VersionCopies, ...]:
    """Of the adapters with these scopes, whatever others have."""
    wanted, rows, sight = frozenset(scopes), _rows(scheduler), tiers.sight()
    return tuple(_copies(rows, sight, [one for one in _known(rows, sight) if one.scope in wanted]))


def queue_view(scheduler: Scheduler[AdapterRef]) -> QueueView:
    found, state = scheduler.queue(), scheduler.load()
    return QueueView(
        running=state.running,
        max_sequences=state.max_sequences,
        waiting=tuple(replace(one, request_id=call_of(one.request_id)) for one in islice(found, WAITING_SHOWN)),
        counts=dict(Counter((one.tenant, one.reason) for one in found)),
    )


def call_of(request_id: RequestId) -> RequestId:
    """The id that the gateway gave: the engine's own has ``#`` and a number behind it, and a choice's ``/`` and its
    own."""
    return RequestId(request_id.rpartition("#")[0] or request_id)


def pages_of(state: Mapping[str, Any]) -> dict[str, int]:
    """KV pages by what they are, of ``Scheduler.state``."""
    pages, unused = state["pages"], state["prefix_cache"]["unused"]
    return {
        "total": pages["total"],
        "used": pages["used"] - unused,
        "promised": pages["promised"],
        "cached": unused,
        "pending": pages["pending"],
        "free": pages["free"] - pages["promised"],
    }


def _bytes_of(state: Mapping[str, Any]) -> dict[str, int]:
    found = state["bytes"]
    used, adapters = found["used"], found["adapters"]
    return {
        "device_budget": found["budget"],
        "device_used": used,
        "device_kv": used - adapters,
        "device_adapters": adapters,
        "device_backed": found["backed"],
    }


def _rows(scheduler: Scheduler[AdapterRef]) -> _Rows:
    """What is on the device, the one in use last first."""
    filled = {row.adapter: (row, holders) for row, holders in scheduler.slot_rows() if row.adapter is not None}
    return dict(sorted(filled.items(), key=lambda one: -one[1][0].used_at))


def _known(rows: _Rows, sight: TierSight) -> dict[AdapterKey, None]:
    """On the device first, then host memory, then the disk; of each the one that came or was in use last first. A disk
    may have tens of thousands, so that this makes nothing of each."""
    return dict.fromkeys(chain(rows, reversed(sight.host), reversed(sight.disk)))


def _copies(rows: _Rows, sight: TierSight, adapters: Iterable[AdapterKey]) -> list[VersionCopies]:
    now, found = time.monotonic(), []
    for adapter in adapters:
        host, disk = sight.host.get(adapter, 0), sight.disk.get(adapter, 0)
        if adapter in rows:
            row, holders = rows[adapter]
            used = max(0.0, now - row.used_at)
            found.append(
                VersionCopies(adapter, int(row.slot), row.chunks, row.size, host, disk, len(row.pins), holders, used)
            )
        else:
            found.append(VersionCopies(adapter, host_bytes=host, disk_bytes=disk))
    return found


def _gone(scheduler: Scheduler[AdapterRef], sight: TierSight) -> tuple[Eviction, ...]:
    now, tiers = time.monotonic(), {"device": tuple(scheduler.departures()), **sight.left}
    found = [
        Eviction(one.adapter, tier, str(one.cause), one.bytes, max(0.0, now - one.at))
        for tier, left in tiers.items()
        for one in left
    ]
    return tuple(nsmallest(GONE_SHOWN, found, key=lambda one: one.seconds_ago))


__all__ = ["GONE_SHOWN", "Tiers", "call_of", "copies_of", "memory_view", "pages_of", "queue_view"]
