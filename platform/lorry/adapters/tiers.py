"""The host tier: ready device images in host memory, brought from disk or the object store by threads. No torch."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from lorry.adapters.disk import DiskTier
from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.store import ObjectStore
from lorry.adapters.tier_views import HostImage, LoadUnderWay, TierCounts, TierSight
from lorry.adapters.validate import Limits, validate_directory
from lorry.config import TierConfig
from lorry.errors import AdapterLoadFailed, Draining, LorryError, UnsupportedBase
from lorry.histogram import LOAD_S, Histogram
from lorry.ids import AdapterDigest, AdapterKey
from lorry.layers.spec import DecoderSpec
from lorry.logs import fields
from lorry.residency.departures import Cause, Departure, departures
from lorry.residency.host import Failed, Fetching, HostState, Ready
from lorry.text import Tokenizer

log = logging.getLogger(__name__)
_MAX_FAILURES_KEPT = 1024


I = TypeVar("I", bound=HostImage)  # noqa: E741  an image

Build = Callable[[Path, AdapterPlan, AdapterDigest], I]
"""Makes the image of a validated folder. Raises AdapterLoadFailed."""


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """Where the base lies, which adapters are validated against and lay their own text files over."""

    folder: Path
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class _Held(Generic[I]):
    """What is in host memory of one version. ``text``: its own text side, one object for all that have an equal one;
    None where it is the base's."""

    image: I
    text: Tokenizer | None


@dataclass(slots=True)
class _Fetch:
    """Under way since ``since`` (``time.monotonic``). ``tier``: where its files are, "" until a thread took it."""

    since: float
    tier: str = ""


def _nbytes(held: Iterable[_Held[I]]) -> int:
    """A text side that several share counts once."""
    images, texts = 0, dict[str, int]()
    for one in held:
        images += one.image.nbytes
        if one.text is not None:
            texts[one.text.sha256] = one.text.nbytes
    return images + sum(texts.values())


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
        base: BaseFiles | None = None,
        limits: Limits | None = None,
        threads: int = 2,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``base`` None: no adapter is served that needs to know more of its base than ``spec``."""
        self._disk = disk
        self._spec = spec
        self._base = base
        self._build = build
        self._budget = budget_bytes
        self._limits = limits or Limits()
        self._on_change = on_change
        self._lock = threading.Lock()
        self._fetched = threading.Condition(self._lock)
        self._images: OrderedDict[AdapterKey, _Held[I]] = OrderedDict()
        self._fetching: dict[AdapterKey, _Fetch] = {}
        self._waiting: OrderedDict[AdapterKey, tuple[AdapterRef, int, float]] = OrderedDict()
        self._left = departures()
        self._failures: OrderedDict[AdapterKey, LorryError] = OrderedDict()
        self._retained: set[AdapterKey] = set()
        self._closed = False
        self._loads = {tier: Histogram(LOAD_S) for tier in ("disk", "object_store")}
        self._failed_loads = self._evictions = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="adapter-fetch")

    def ensure(self, ref: AdapterRef) -> HostState:
        """See HostTier.ensure."""
        key = ref.key
        with self._lock:
            held = self._images.get(key)
            if held is not None:
                self._images.move_to_end(key)
                return Ready(held.image.rank, held.image.extra_bytes, held.image.chunk_count)
            error = self._failures.pop(key, None)
            if error is not None:
                return Failed(error)
            if self._closed:
                return Failed(Draining("the engine is shutting down; try another", retry_after_s=1.0))
            if key not in self._fetching and key not in self._waiting:
                self._start(ref)
            return Fetching()

    def tier_of(self, adapter: AdapterKey) -> str:
        with self._lock:
            if adapter in self._images:
                return "host"
        return "disk" if self._disk.has(adapter) else "object_store"

    def retain(self, adapter: AdapterKey) -> None:
        with self._lock:
            self._retained.add(adapter)

    def release(self, adapter: AdapterKey) -> None:
        with self._lock:
            self._retained.discard(adapter)
            self._failures.pop(adapter, None)
            self._waiting.pop(adapter, None)
            self._admit_waiting()

    def image(self, adapter: AdapterKey) -> I:
        """For the runner, of a version that is Ready and retained. Raises AdapterLoadFailed where it is not here."""
        return self._held(adapter).image

    def text(self, adapter: AdapterKey) -> Tokenizer | None:
        """The own text side of a version that is Ready and retained, None where it is the base's. Raises
        AdapterLoadFailed where it is not here."""
        return self._held(adapter).text

    def discard(self, adapter: AdapterKey) -> None:
        """Its image turned out to be damaged: forget it, retained or not. The next ``ensure`` brings it anew."""
        with self._lock:
            self._drop(adapter, Cause.FAULT)
            self._admit_waiting()

    def sizes(self, adapter: AdapterKey) -> tuple[int, int]:
        """Bytes of its image and of its folder on disk; 0 where there is none."""
        with self._lock:
            held = self._images.get(adapter)
        return (0 if held is None else held.image.nbytes), self._disk.bytes_of(adapter)

    def forget(self, adapter: AdapterKey) -> tuple[int, int]:
        """Drop its image and its folder on disk; the bytes of both. Blocks while it is fetched. Nobody retains it."""
        with self._fetched:
            self._waiting.pop(adapter, None)
            self._fetched.wait_for(lambda: adapter not in self._fetching)
            self._waiting.pop(adapter, None)
            self._failures.pop(adapter, None)
            held = self._drop(adapter, Cause.ASKED)
            self._admit_waiting()
        return (0 if held is None else held.image.nbytes), self._disk.forget(adapter)

    def state(self) -> dict[str, Any]:
        """Bounded JSON for operators and tests; versions as [digest, scope]."""
        with self._lock:
            found = {
                "host_bytes": _nbytes(self._images.values()),
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

    def sight(self) -> TierSight:
        """At one moment of each tier; from any thread."""
        now = time.monotonic()
        with self._lock:
            host = {key: held.image.nbytes for key, held in self._images.items()}
            loads = [LoadUnderWay(key, one.tier or "queued", now - one.since) for key, one in self._fetching.items()]
            loads += [LoadUnderWay(key, "no_room", now - since) for key, (_, _, since) in self._waiting.items()]
            left, used, evictions = tuple(self._left), _nbytes(self._images.values()), self._evictions
        disk, left_disk = self._disk.sight()
        sizes = {"host_used": used, "host_budget": self._budget}
        sizes |= {"disk_used": self._disk.used_bytes, "disk_budget": self._disk.quota_bytes}
        gone = {"host": evictions, "disk": self._disk.evictions}
        return TierSight(host, disk, loads, {"host": left, "disk": left_disk}, sizes, gone)

    def counts(self) -> TierCounts:
        with self._lock:
            host = TierCounts(
                {tier: loads.spread() for tier, loads in self._loads.items()},
                self._failed_loads,
                len(self._fetching) + len(self._waiting),
                self._evictions,
                host_bytes=_nbytes(self._images.values()),
            )
        disk = self._disk
        return replace(host, disk_evictions=disk.evictions, damaged_folders=disk.damaged, disk_bytes=disk.used_bytes)

    def check_integrity(self) -> None:
        """Raises AssertionError where the books do not add up. Call while nothing is asked for or released."""
        with self._lock:
            held = _nbytes(self._images.values())
            assert held <= self._budget, f"host images hold {held} bytes, over {self._budget}"
            assert not self._fetching.keys() & self._images.keys(), "a version is both fetched and here"
            assert not self._fetching.keys() & self._waiting.keys(), "a version both waits and is fetched"
            foreign = [key for key, held in self._images.items() if held.image.digest != key.digest]
            assert not foreign, f"images under foreign keys: {foreign}"
            texts = {id(held.text): held.text.sha256 for held in self._images.values() if held.text is not None}
            assert len(set(texts.values())) == len(texts), "equal text sides are not shared"

    def close(self) -> None:
        """Waits for fetches under way (bounded by the store's timeouts); later ones fail. Idempotent."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, ref: AdapterRef) -> None:
        self._fetching[ref.key] = _Fetch(time.monotonic())
        self._pool.submit(self._fetch, ref)

    def _fetch(self, ref: AdapterRef) -> None:
        error: LorryError | None = None
        made: _Held[I] | None = None
        tier, began = "disk" if self._disk.has(ref.key) else "object_store", time.monotonic()
        with self._lock:
            self._fetching[ref.key].tier = tier
        try:
            made = self._load(ref)
        except LorryError as refused:
            error = refused
        except Exception as unforeseen:  # a thread nobody joins: who waits for the version must be told
            log.exception("adapter %s: loading failed", ref.digest)
            error = AdapterLoadFailed(
                f"adapter {ref.digest}: loading failed ({type(unforeseen).__name__}); see the engine's log",
                metadata={"adapter": ref.digest},
            )
        seconds = time.monotonic() - began
        told = fields(digest=ref.digest, tier=tier, seconds=round(seconds, 6))
        if error is None:
            log.info("adapter fetched into host memory", extra=told)
        else:
            log.warning("adapter not fetched: %s: %s", error.reason, error, extra=told)
        with self._fetched:
            self._fetching.pop(ref.key)
            if made is not None:
                self._loads[tier].observe(seconds)
            else:
                self._failed_loads += 1
            self._fetched.notify_all()
            if made is not None and self._make_room(made):
                self._images[ref.key] = made
                self._admit_waiting()
            elif made is not None and not self._closed:
                self._waiting[ref.key] = (ref, _nbytes([made]), began)
                self._admit_waiting()
            elif error is not None:
                self._failures[ref.key] = error
                while len(self._failures) > _MAX_FAILURES_KEPT:  # of versions that nobody asked for again
                    self._failures.popitem(last=False)
        self._on_change()

    def _load(self, ref: AdapterRef) -> _Held[I]:
        base_dir = None if self._base is None else self._base.folder
        with self._disk.open(ref) as folder:
            # Its files were validated once, in a process of their own; what they make here was probed there.
            report = validate_directory(folder, self._spec, self._limits, base_dir=base_dir, probe=False)
            if report.plan is None:
                refused = report.error()
                raise AdapterLoadFailed(
                    f"adapter {ref.digest}: {refused.message}",
                    metadata={"adapter": ref.digest, **refused.metadata},
                    violations=refused.violations,
                ) from refused
            text = self._load_text(folder, report.plan, ref.digest)
            made = _Held(self._build(folder, report.plan, ref.digest), text)
        if (need := _nbytes([made])) > self._budget:
            raise AdapterLoadFailed(
                f"adapter {ref.digest}: its image of {need} bytes is larger than host memory's {self._budget}; raise "
                "tiers.host_bytes",
                metadata={"adapter": ref.digest},
            )
        return made

    def _load_text(self, folder: Path, plan: AdapterPlan, digest: AdapterDigest) -> Tokenizer | None:
        if plan.text is None:
            return None
        base = self._base
        try:
            own = None if base is None else base.tokenizer.with_overlay(base.folder, folder)
        except UnsupportedBase as error:
            raise AdapterLoadFailed(f"adapter {digest}: {error.message}", metadata={"adapter": digest}) from error
        if own is None or own.sha256 != plan.text.sha256:
            have = "none" if own is None else own.sha256
            raise AdapterLoadFailed(
                f"adapter {digest}: its text files make tokenizer {have} over this base, {plan.text.sha256} was found "
                "when it was validated; register it again",
                metadata={"adapter": digest},
            )
        if base is not None and own.sha256 == base.tokenizer.sha256:
            return None
        with self._lock:
            same = (held.text for held in self._images.values() if held.text is not None)
            return next((one for one in same if one.sha256 == own.sha256), own)

    def _held(self, adapter: AdapterKey) -> _Held[I]:
        with self._lock:
            held = self._images.get(adapter)
        if held is None:
            raise AdapterLoadFailed(
                f"adapter {adapter}: its image is not in host memory; it must be retained while it is loaded",
                metadata={"adapter": adapter.digest},
            )
        return held

    def _make_room(self, made: _Held[I]) -> bool:
        """With the lock held: evicts if that makes enough room, and nothing otherwise."""
        kept = (held for key, held in self._images.items() if key in self._retained)
        if _nbytes([*kept, made]) > self._budget:
            return False
        for key in [key for key in self._images if key not in self._retained]:
            if _nbytes([*self._images.values(), made]) <= self._budget:
                break
            self._drop(key, Cause.ROOM)
            self._evictions += 1
            log.info("adapter evicted from host memory", extra=fields(digest=key.digest, tier="host"))
        return True

    def _drop(self, key: AdapterKey, cause: Cause) -> _Held[I] | None:
        """With the lock held."""
        held = self._images.pop(key, None)
        if held is not None:
            self._left.append(Departure(key, cause, held.image.nbytes, time.monotonic()))
        return held

    def _admit_waiting(self) -> None:
        """With the lock held: the first that waits is built again where there is room for it by now."""
        if self._closed or not self._waiting:
            return
        first, (ref, need, _) = next(iter(self._waiting.items()))
        kept = _nbytes(held for key, held in self._images.items() if key in self._retained)
        if kept + need <= self._budget:
            del self._waiting[first]
            self._start(ref)


def open_host_tier(
    config: TierConfig,
    store: ObjectStore,
    spec: DecoderSpec,
    build: Build[I],
    *,
    base: BaseFiles | None = None,
    limits: Limits | None = None,
    on_change: Callable[[], None] = lambda: None,
) -> HostTierStore[I]:
    """Both tiers from their configuration; the disk tier lies in ``cache_dir/adapters``."""
    disk = DiskTier(config.cache_dir / "adapters", config.disk_bytes, store)
    return HostTierStore(
        disk,
        spec,
        build,
        config.host_bytes,
        base=base,
        limits=limits,
        threads=config.fetch_threads,
        on_change=on_change,
    )


__all__ = ["BaseFiles", "Build", "HostTierStore", "open_host_tier"]
