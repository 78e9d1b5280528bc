"""What an engine tells its operators of itself: its memory, version by version, and its queue. No torch, no grpc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorry.ids import AdapterKey, TenantId
from lorry.scheduler.queue import Waiting
from lorry.scheduler.reasons import WaitReason

COPIES_SHOWN = 500
"""Versions that one ``MemoryView`` lists: those on the device first, then those in host memory."""
WAITING_SHOWN = 500
"""Sequences that one ``QueueView`` lists: those that came first."""


@dataclass(frozen=True, slots=True)
class VersionCopies:
    """Where the bytes of one version are, and how many; 0 where it has none. ``slot`` None: it is not on the device.
    ``running``: sequences that run on it; ``holding``: those and the ones that wait for it. ``idle_s``: since a
    sequence began or ended on it, None off the device."""

    adapter: AdapterKey
    slot: int | None = None
    chunks: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    running: int = 0
    holding: int = 0
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Into host memory. ``stage``: as ``lorry.adapters.tiers.LoadUnderWay``."""

    adapter: AdapterKey
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """A version that left ``tier`` (device, host, disk) so many seconds ago. ``cause``: a
    ``lorry.residency.departures.Cause``."""

    adapter: AdapterKey
    tier: str
    cause: str
    bytes: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class MemoryView:
    """At one moment between two steps; the host and disk tiers a moment later.

    ``pages``: KV pages, ``used`` (of running sequences), ``promised`` (to them), ``cached`` (prefixes that nobody
    uses), ``pending`` (free when a step is done), ``free``; together ``total``. ``chunks``: adapter pages of the
    device, ``used``, ``pending``, ``free``; together ``total``. ``bytes``: of the device ``device_budget``,
    ``device_used`` (taken, pending or promised), ``device_kv`` and ``device_adapters`` (parts of it), ``device_backed``
    (with memory behind it); and of ``TierSight``. ``evictions`` since start: ``device``, ``host``, ``disk``,
    ``prefixes``. ``more``: versions that are not listed. ``loads`` and ``gone``: the longest and the latest first."""

    pages: Mapping[str, int] = field(default_factory=dict)
    page_tokens: int = 0
    chunks: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    copies: tuple[VersionCopies, ...] = ()
    more: int = 0
    loads: tuple[Load, ...] = ()
    gone: tuple[Eviction, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueView:
    """Between two steps. ``counts``: of all that wait, by tenant and reason, though ``waiting`` lists only the first
    ``WAITING_SHOWN``."""

    running: int = 0
    max_sequences: int = 0
    waiting: tuple[Waiting, ...] = ()
    counts: Mapping[tuple[TenantId, WaitReason], int] = field(default_factory=dict)


__all__ = ["COPIES_SHOWN", "WAITING_SHOWN", "Eviction", "Load", "MemoryView", "QueueView", "VersionCopies", "Waiting"]
