"""The host tier: ready device images in host memory, brought from disk or the object store by threads. No torch."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from lorry.adapters.disk import DiskTier
from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.store import ObjectStore
from lorry.adapters.validate import Limits, validate_directory
from lorry.config import TierConfig
from lorry.errors import AdapterLoadFailed, Draining, LorryError
from lorry.ids import AdapterDigest
from lorry.layers.spec import DecoderSpec
from lorry.residency.host import Failed, Fetching, HostState, Ready

log = logging.getLogger(__name__)
_MAX_FAILURES_KEPT = 1024


class HostImage(Protocol):
    """What the host tier needs to know of an image (``lorry.adapters.image.DeviceImage`` is one)."""

    @property
    def digest(self) -> AdapterDigest: ...

    @property
    def rank(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


I = TypeVar("I", bound=HostImage)  # noqa: E741  an image

Build = Callable[[Path, AdapterPlan, AdapterDigest], I]
"""Makes the image of a validated folder. Raises AdapterLoadFailed."""


class HostTierStore(Generic[I]):
    """Implements ``lorry.residency.host.HostTier`` over ``AdapterRef``.

    Images that nobody retains go, least recently asked for first, when ``budget_bytes`` is short. Where the
    retained ones leave no room, a fetched version waits on disk (``Fetching``) until some are released.
    Threads and budget apart, nothing of a fetch outlives it: the call after a failure fetches again.
    ``on_change`` is called from a fetch thread, with no lock held, after each fetch ended either way.
    """

    def __init__(
        self,
        disk: DiskTier,
        spec: DecoderSpec,
        build: Build[I],
        budget_bytes: int,
        *,
        limits: Limits | None = None,
        threads: int = 2,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._spec = spec
        self._build = build
        self._budget = budget_bytes
        self._limits = limits or Limits()
        self._on_change = on_change
        self._lock = threading.Lock()
        self._images: OrderedDict[AdapterDigest, I] = OrderedDict()
        self._fetching: set[AdapterDigest] = set()
        self._waiting: OrderedDict[AdapterDigest, tuple[AdapterRef, int]] = OrderedDict()
        self._failures: OrderedDict[AdapterDigest, LorryError] = OrderedDict()
        self._retained: set[AdapterDigest] = set()
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="adapter-fetch")

    def ensure(self, ref: AdapterRef) -> HostState:
        """See HostTier.ensure."""
        digest = ref.digest
        with self._lock:
            image = self._images.get(digest)
            if image is not None:
                self._images.move_to_end(digest)
                return Ready(image.rank)
            error = self._failures.pop(digest, None)
            if error is not None:
                return Failed(error)
            if self._closed:
                return Failed(Draining("the engine is shutting down; try another", retry_after_s=1.0))
            if digest not in self._fetching and digest not in self._waiting:
                self._start(ref)
            return Fetching()

    def tier_of(self, digest: AdapterDigest) -> str:
        with self._lock:
            if digest in self._images:
                return "host"
        return "disk" if self._disk.has(digest) else "object_store"

    def retain(self, digest: AdapterDigest) -> None:
        with self._lock:
            self._retained.add(digest)

    def release(self, digest: AdapterDigest) -> None:
        with self._lock:
            self._retained.discard(digest)
            self._failures.pop(digest, None)
            self._waiting.pop(digest, None)
            self._admit_waiting()

    def image(self, digest: AdapterDigest) -> I:
        """For the runner, of a digest that is Ready and retained. Raises AdapterLoadFailed where it is not here."""
        with self._lock:
            image = self._images.get(digest)
        if image is None:
            raise AdapterLoadFailed(
                f"adapter {digest}: its image is not in host memory; it must be retained while it is loaded",
                metadata={"adapter": digest},
            )
        return image

    def discard(self, digest: AdapterDigest) -> None:
        """Its image turned out to be damaged: forget it, retained or not. The next ``ensure`` brings it anew."""
        with self._lock:
            self._images.pop(digest, None)
            self._admit_waiting()

    def state(self) -> dict[str, Any]:
        """Bounded JSON for operators and tests."""
        with self._lock:
            found = {
                "host_bytes": sum(image.nbytes for image in self._images.values()),
                "host_budget_bytes": self._budget,
                "host": list(self._images),
                "retained": sorted(self._retained),
                "fetching": sorted(self._fetching),
                "waiting_for_room": list(self._waiting),
            }
        return {
            **found,
            "disk_bytes": self._disk.used_bytes,
            "downloads": self._disk.downloads,
            "damaged_cache_folders": self._disk.damaged,
        }

    def check_integrity(self) -> None:
        """Raises AssertionError where the books do not add up. Call while nothing is asked for or released."""
        with self._lock:
            held = sum(image.nbytes for image in self._images.values())
            assert held <= self._budget, f"host images hold {held} bytes, over {self._budget}"
            assert not self._fetching & self._images.keys(), "a digest is both fetched and here"
            assert not self._fetching & self._waiting.keys(), "a digest both waits and is fetched"
            assert all(image.digest == digest for digest, image in self._images.items()), "an image under a foreign key"

    def close(self) -> None:
        """Waits for fetches under way (bounded by the store's timeouts); later ones fail. Idempotent."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, ref: AdapterRef) -> None:
        self._fetching.add(ref.digest)
        self._pool.submit(self._fetch, ref)

    def _fetch(self, ref: AdapterRef) -> None:
        error: LorryError | None = None
        image: I | None = None
        try:
            image = self._load(ref)
        except LorryError as refused:
            error = refused
        except Exception as unforeseen:
            log.exception("adapter %s: loading failed", ref.digest)
            error = AdapterLoadFailed(
                f"adapter {ref.digest}: loading failed ({type(unforeseen).__name__}); see the engine's log",
                metadata={"adapter": ref.digest},
            )
        with self._lock:
            self._fetching.discard(ref.digest)
            if image is not None and self._make_room(image.nbytes):
                self._images[ref.digest] = image
                self._admit_waiting()
            elif image is not None and not self._closed:
                self._waiting[ref.digest] = (ref, image.nbytes)
                self._admit_waiting()
            elif error is not None:
                self._failures[ref.digest] = error
                while len(self._failures) > _MAX_FAILURES_KEPT:  # of versions that nobody asked for again
                    self._failures.popitem(last=False)
        self._on_change()

    def _load(self, ref: AdapterRef) -> I:
        with self._disk.open(ref) as folder:
            report = validate_directory(folder, self._spec, self._limits)
            if report.plan is None:
                refused = report.error()
                raise AdapterLoadFailed(
                    f"adapter {ref.digest}: {refused.message}",
                    metadata={"adapter": ref.digest, **refused.metadata},
                    violations=refused.violations,
                ) from refused
            image = self._build(folder, report.plan, ref.digest)
        if image.nbytes > self._budget:
            raise AdapterLoadFailed(
                f"adapter {ref.digest}: its image of {image.nbytes} bytes is larger than host memory's "
                f"{self._budget}; raise tiers.host_bytes",
                metadata={"adapter": ref.digest},
            )
        return image

    def _make_room(self, need: int) -> bool:
        """With the lock held: evicts if that makes enough room, and nothing otherwise."""
        used = sum(image.nbytes for image in self._images.values())
        idle = [digest for digest in self._images if digest not in self._retained]
        if used - sum(self._images[digest].nbytes for digest in idle) + need > self._budget:
            return False
        for digest in idle:
            if used + need <= self._budget:
                break
            used -= self._images.pop(digest).nbytes
        return True

    def _admit_waiting(self) -> None:
        """With the lock held: the first that waits is built again where there is room for it by now."""
        if self._closed or not self._waiting:
            return
        digest, (ref, need) = next(iter(self._waiting.items()))
        kept = sum(image.nbytes for held, image in self._images.items() if held in self._retained)
        if kept + need <= self._budget:
            del self._waiting[digest]
            self._start(ref)


def open_host_tier(
    config: TierConfig,
    store: ObjectStore,
    spec: DecoderSpec,
    build: Build[I],
    *,
    limits: Limits | None = None,
    on_change: Callable[[], None] = lambda: None,
) -> HostTierStore[I]:
    """Both tiers from their configuration; the disk tier lies in ``cache_dir/adapters``."""
    disk = DiskTier(config.cache_dir / "adapters", config.disk_bytes, store)
    return HostTierStore(
        disk, spec, build, config.host_bytes, limits=limits, threads=config.fetch_threads, on_change=on_change
    )


__all__ = ["Build", "HostImage", "HostTierStore", "open_host_tier"]
