"""A host tier in memory: fetches end when the test says so. It enforces the protocol's own rules."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.errors import LorryError
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.residency import Failed, Fetching, HostState, Ready


@dataclass(frozen=True, slots=True)
class Version:
    """A VersionRef. ``rank`` and ``extra_bytes`` are what the host tier will find in its bytes."""

    key: AdapterKey
    rank: int = 8
    extra_bytes: int = 0
    chunks: int | None = None


def key_of(name: str, scope: str = "own") -> AdapterKey:
    return AdapterKey(AdapterDigest(name), AdapterScope(scope))


def version(name: str, rank: int = 8, extra_bytes: int = 0, chunks: int | None = None, scope: str = "own") -> Version:
    return Version(key_of(name, scope), rank, extra_bytes, chunks)


class MemoryHost:
    def __init__(self, *, instant: bool = True) -> None:
        """``instant``: a fetch ends within ``ensure``; else ``land`` and ``fail`` end it."""
        self.instant = instant
        self.ready: dict[AdapterKey, Ready] = {}
        self.fetching: dict[AdapterKey, Ready] = {}
        self.failed: dict[AdapterKey, LorryError] = {}
        self.retained: set[AdapterKey] = set()
        self.fetches: list[AdapterKey] = []

    def ensure(self, ref: Version) -> HostState:
        key = ref.key
        assert key in self.retained, "ensure is only asked for versions that are retained"
        if key in self.ready:
            return self.ready[key]
        if key in self.failed:
            return Failed(self.failed.pop(key))
        if key not in self.fetching:
            self.fetches.append(key)
            self.fetching[key] = Ready(ref.rank, ref.extra_bytes, ref.chunks)
            if self.instant:
                self.land(key)
                return self.ready[key]
        return Fetching()

    def tier_of(self, key: AdapterKey) -> str:
        return "host" if key in self.ready else "object_store"

    def retain(self, key: AdapterKey) -> None:
        assert key not in self.retained, "retained twice"
        self.retained.add(key)

    def release(self, key: AdapterKey) -> None:
        self.retained.remove(key)

    def land(self, key: AdapterKey) -> None:
        self.ready[key] = self.fetching.pop(key)

    def fail(self, key: AdapterKey, error: LorryError) -> None:
        del self.fetching[key]
        self.failed[key] = error

    def drop(self, key: AdapterKey) -> None:
        """The tier needs the room. It may not take a retained copy."""
        assert key not in self.retained
        del self.ready[key]
