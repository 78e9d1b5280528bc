"""What the host and disk tiers tell of themselves, and what they need to know of an image. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lorry.histogram import Spread
from lorry.ids import AdapterDigest, AdapterKey
from lorry.residency.departures import Departure


class HostImage(Protocol):
    """What the host tier needs to know of an image (``lorry.adapters.image.build.DeviceImage`` is one)."""

    @property
    def digest(self) -> AdapterDigest: ...

    @property
    def rank(self) -> int: ...

    @property
    def extra_bytes(self) -> int: ...

    @property
    def chunk_count(self) -> int | None:
        """Adapter chunks of the device; None: as many as the rank asks for."""
        ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Since start. ``loads``: seconds of loads into host memory that went well, by the tier that the files were in.
    ``fetching``: those under way or waiting for room. Evictions had to make room for another version."""

    loads: Mapping[str, Spread] = field(default_factory=dict)
    failed_loads: int = 0
    fetching: int = 0
    host_evictions: int = 0
    disk_evictions: int = 0
    damaged_folders: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadUnderWay:
    """A load into host memory. ``stage``: ``queued`` for a thread, ``object_store`` or ``disk``, where its files come
    from now, or ``no_room``, where host memory is full of versions that requests hold."""

    adapter: AdapterKey
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TierSight:
    """What the host and disk tiers have: bytes by version (without the text sides, which versions share), loads under
    way; by tier what left lately, and how many made room since start (``evictions``). ``bytes``: ``host_used`` (with
    text sides), ``host_budget``, ``disk_used`` (with what is being fetched), ``disk_budget``."""

    host: dict[AdapterKey, int] = field(default_factory=dict)
    disk: dict[AdapterKey, int] = field(default_factory=dict)
    loads: Sequence[LoadUnderWay] = ()
    left: Mapping[str, Sequence[Departure]] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)


__all__ = ["HostImage", "LoadUnderWay", "TierCounts", "TierSight"]
