"""A host tier in memory: fetches end when the test says so. It enforces the protocol's own rules."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.errors import LorryError
from lorry.ids import AdapterDigest
from lorry.residency import Failed, Fetching, HostState, Ready


@dataclass(frozen=True, slots=True)
class Version:
    """A VersionRef. ``rank`` and ``extra_bytes`` are what the host tier will find in its bytes."""

    digest: AdapterDigest
    rank: int = 8
    extra_bytes: int = 0
    chunks: int | None = None


def version(name: str, rank: int = 8, extra_bytes: int = 0, chunks: int | None = None) -> Version:
    return Version(AdapterDigest(name), rank, extra_bytes, chunks)


class MemoryHost:
    def __init__(self, *, instant: bool = True) -> None:
        """``instant``: a fetch ends within ``ensure``; else ``land`` and ``fail`` end it."""
        self.instant = instant
        self.ready: dict[AdapterDigest, Ready] = {}
        self.fetching: dict[AdapterDigest, Ready] = {}
        self.failed: dict[AdapterDigest, LorryError] = {}
        self.retained: set[AdapterDigest] = set()
        self.fetches: list[AdapterDigest] = []

    def ensure(self, ref: Version) -> HostState:
        digest = ref.digest
        assert digest in self.retained, "ensure is only asked for versions that are retained"
        if digest in self.ready:
            return self.ready[digest]
        if digest in self.failed:
            return Failed(self.failed.pop(digest))
        if digest not in self.fetching:
            self.fetches.append(digest)
            self.fetching[digest] = Ready(ref.rank, ref.extra_bytes, ref.chunks)
            if self.instant:
                self.land(digest)
                return self.ready[digest]
        return Fetching()

    def tier_of(self, digest: AdapterDigest) -> str:
        return "host" if digest in self.ready else "object_store"

    def retain(self, digest: AdapterDigest) -> None:
        assert digest not in self.retained, "retained twice"
        self.retained.add(digest)

    def release(self, digest: AdapterDigest) -> None:
        self.retained.remove(digest)

    def land(self, digest: AdapterDigest) -> None:
        self.ready[digest] = self.fetching.pop(digest)

    def fail(self, digest: AdapterDigest, error: LorryError) -> None:
        del self.fetching[digest]
        self.failed[digest] = error

    def drop(self, digest: AdapterDigest) -> None:
        """The tier needs the room. It may not take a retained copy."""
        assert digest not in self.retained
        del self.ready[digest]
