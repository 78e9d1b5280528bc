"""What residency asks of the host tier. ``lorry.adapters`` implements it; this layer never sees a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from lorry.errors import LorryError
from lorry.ids import AdapterKey


class VersionRef(Protocol):
    """One adapter version, opaque but for its identity (``lorry.adapters.manifest.AdapterRef`` is one)."""

    @property
    def key(self) -> AdapterKey: ...


@dataclass(frozen=True, slots=True)
class Fetching:
    """On its way from disk or the object store. Ask again."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The device image lies in host memory. ``rank`` >= 0 is the largest rank over its modules: it takes ``chunks`` of
    the device's adapter chunks (None: ``ceil(rank / chunk_rank)``), and ``extra_bytes`` of device memory for what is
    not in chunks."""

    rank: int
    extra_bytes: int = 0
    chunks: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The fetch that was under way ended without an image. ``error`` is a leaf of lorry.errors."""

    error: LorryError


HostState = Fetching | Ready | Failed

R = TypeVar("R", bound=VersionRef)
R_contra = TypeVar("R_contra", bound=VersionRef, contravariant=True)


class HostTier(Protocol[R_contra]):
    """Adapter versions in host memory, as residency sees them.

    All methods are called from the thread that plans steps, never block on disk or network, and must be
    safe against the tier's own fetch threads.
    """

    def ensure(self, ref: R_contra) -> HostState:
        """Where ``ref`` is, and start to fetch it if it is nowhere: one fetch per version at a time.

        A fetch's failure is answered as ``Failed`` by exactly one call; the call after it starts a new
        fetch. (Residency asks once per version and passes the failure on to every request that waited.)
        ``Ready`` of a retained version stays true until it is released.
        """
        ...

    def tier_of(self, adapter: AdapterKey) -> str:
        """Where its bytes are now: ``host``, ``disk`` or ``object_store``. Starts nothing."""
        ...

    def retain(self, adapter: AdapterKey) -> None:
        """Keep the host copy, there or still to come, until ``release``. Residency balances the two calls
        and retains a version at most once at a time."""
        ...

    def release(self, adapter: AdapterKey) -> None:
        """The copy may go. An unfinished fetch may go on or end."""
        ...


__all__ = ["Failed", "Fetching", "HostState", "HostTier", "R", "Ready", "VersionRef"]
