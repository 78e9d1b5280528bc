"""Adapter versions in this engine: who holds them, where their bytes are, which slot they run from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic

from lorry.errors import AdapterLoadFailed, InternalError, LorryError, SlotIntegrity
from lorry.ids import AdapterKey, ChunkId, Generation, RequestId, SlotId
from lorry.memory import AdapterNeed, MemoryLedger
from lorry.residency.departures import Cause, Departure, departures
from lorry.residency.host import Failed, Fetching, HostTier, R, Ready
from lorry.residency.slots import Shortage, Slot, SlotTable


class AdapterState(StrEnum):
    """Of a version that somebody holds, or that a slot still has. ABSENT is every other one."""

    ABSENT = "absent"
    FETCHING = "fetching"
    ON_HOST = "on_host"
    RESIDENT = "resident"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pinned request runs. ``loaded``: the slot was filled just now, so this step's plan must carry
    the load of ``chunks`` (none where it has no rank rows) and extras, after unloading ``evicted``; ``displaced`` are
    the adapters that lost their slot."""

    slot: SlotId
    generation: Generation
    adapter: AdapterKey
    chunks: tuple[ChunkId, ...]
    loaded: bool
    evicted: tuple[SlotId, ...] = ()
    displaced: tuple[AdapterKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A fetch ended: the version is on the host, or ``error`` says why not."""

    adapter: AdapterKey
    error: LorryError | None


_NOTHING = AdapterNeed(0)


@dataclass(slots=True, eq=False)
class _Version(Generic[R]):
    ref: R
    state: AdapterState = AdapterState.ABSENT
    need: AdapterNeed = _NOTHING
    holders: set[RequestId] = field(default_factory=set)


class Residency(Generic[R]):
    """Holds, pins, slots.

    A **hold** lasts from a request's admission to its last token: it keeps the version's identity and
    its host copy. A **pin** lasts while the request runs and keeps the slot; only a holder may pin.
    A slot without a pin may be emptied: first those that nobody holds, the least worth first; a held
    one only where the caller says that nothing moves otherwise. Not thread-safe.
    """

    def __init__(self, ledger: MemoryLedger, host: HostTier[R]) -> None:
        self._ledger = ledger
        self._host = host
        self._slots = SlotTable(ledger, ledger.config.max_slots)
        self._versions: dict[AdapterKey, _Version[R]] = {}
        self._held_by: dict[RequestId, AdapterKey] = {}
        self._pinned_by: dict[RequestId, Slot] = {}
        self._asking: deque[AdapterKey] = deque()
        self._draining: frozenset[SlotId] = frozenset()
        self.evictions = 0
        """Slots that were emptied for room since start."""
        self.departures = departures()
        """Versions that left the device lately."""

    def state_of(self, adapter: AdapterKey) -> AdapterState:
        version = self._versions.get(adapter)
        return AdapterState.ABSENT if version is None else version.state

    def need_of(self, adapter: AdapterKey) -> AdapterNeed:
        """What it takes on the device; known once it is ON_HOST."""
        return self._versions[adapter].need

    def tier_of(self, adapter: AdapterKey) -> str:
        """``device``, ``host``, ``disk`` or ``object_store``, as a request for it would find it now."""
        return "device" if self._slots.find(adapter) is not None else self._host.tier_of(adapter)

    @property
    def resident(self) -> Set[AdapterKey]:
        """Digests in a slot; a live view."""
        return self._slots.adapters

    @property
    def fetching(self) -> bool:
        return bool(self._asking)

    def hold(self, owner: RequestId, ref: R) -> AdapterState:
        """Hold ``ref``'s version for ``owner`` and start to fetch it if need be. Raises, holding nothing,
        the error of a fetch that has failed just now (the next hold tries again)."""
        if owner in self._held_by:
            raise InternalError(f"request {owner} holds an adapter version already")
        adapter = ref.key
        version = self._versions.setdefault(adapter, _Version(ref))
        if not version.holders:
            self._host.retain(adapter)
        version.holders.add(owner)
        self._held_by[owner] = adapter
        if version.state is AdapterState.ABSENT:
            arrival = self._ask(adapter, version)
            if arrival is not None and arrival.error is not None:
                # The first answer may be a fetch's failure that nobody stayed to hear of. This one tries anew.
                arrival = self._ask(adapter, version)
            if arrival is None:
                self._asking.append(adapter)
            elif arrival.error is not None:
                self.release(owner)
                raise arrival.error
        return version.state

    def release(self, owner: RequestId) -> None:
        """End ``owner``'s hold. Nothing happens if it has none. It must not be pinned any more."""
        adapter = self._held_by.pop(owner, None)
        if adapter is None:
            return
        if owner in self._pinned_by:
            raise SlotIntegrity(f"request {owner} released adapter {adapter} while it was pinned")
        version = self._versions[adapter]
        version.holders.remove(owner)
        if not version.holders:
            self._host.release(adapter)
            if version.state is not AdapterState.RESIDENT:
                self._forget(adapter)

    def poll(self, limit: int = 64) -> list[Arrival]:
        """Ask the host tier about at most ``limit`` versions under way, in turn; the ones that ended."""
        arrivals: list[Arrival] = []
        for _ in range(min(limit, len(self._asking))):
            adapter = self._asking.popleft()
            arrival = self._ask(adapter, self._versions[adapter])
            if arrival is None:
                self._asking.append(adapter)
            else:
                arrivals.append(arrival)
        return arrivals

    def room_for(self, owner: RequestId, *, force: bool = False) -> list[Slot] | None:
        """The idle slots that must be emptied for the version that ``owner`` holds, on the host and in no slot, as far
        as slots and the adapters' bounds go; None where that is not enough. ``force``: also slots that others hold
        but do not pin."""
        version = self._versions[self._held_by[owner]]
        if version.state is not AdapterState.ON_HOST:
            return None
        return self._room(version.need, force)

    def shortage(self, owner: RequestId, *, force: bool = False) -> Shortage:
        """Where ``room_for`` answers None for want of room: what is short."""
        return self._slots.shortage(self._versions[self._held_by[owner]].need, self.idle(force=force))

    def pin(self, owner: RequestId, *, force: bool = False, victims: list[Slot] | None = None) -> Placement | None:
        """Give ``owner`` the device slot of the version that it holds, filling one where needed; ``victims`` (of
        ``room_for``, by default) are emptied for it.

        None, and nothing changed, while there is no room, or no bytes for it, or the version is not on the host.
        """
        adapter = self._held_by[owner]
        version = self._versions[adapter]
        row = self._slots.find(adapter)
        evicted: list[Slot] = []
        displaced: tuple[AdapterKey, ...] = ()
        loaded = row is None
        if row is None:
            room = self.room_for(owner, force=force) if victims is None else victims
            if room is None or version.state is not AdapterState.ON_HOST:
                return None
            if self._ledger.bytes_of(version.need) > self._ledger.bytes_free + sum(r.size for r in room):
                return None
            evicted, displaced = room, tuple(r.adapter for r in room if r.adapter is not None)
            for victim in room:
                self.evict(victim, Cause.ROOM)
            row = self._slots.fill(adapter, version.need)
            version.state = AdapterState.RESIDENT
        self._slots.pin(row, owner)
        self._pinned_by[owner] = row
        chunks = () if row.grant is None else row.grant.chunks
        return Placement(row.slot, row.generation, adapter, chunks, loaded, tuple(r.slot for r in evicted), displaced)

    @property
    def unpinned_bytes(self) -> int:
        """No less than all slots of ``idle`` have."""
        return self._slots.unpinned_bytes

    def idle(self, *, force: bool = False) -> list[Slot]:
        """Slots that could be emptied, the least worth first; those that somebody holds only with ``force``, last."""
        rows = self._slots.evictable()
        held = [r for r in rows if self._holders(r)] if force else []
        return [*(r for r in rows if not self._holders(r)), *held]

    def evict(self, row: Slot, cause: Cause = Cause.MEMORY) -> AdapterKey | None:
        """Empty an idle slot for the room or the bytes; the adapter that lost it."""
        self._ledger.eviction.evicted(row.worth)
        self.evictions += 1
        adapter = row.adapter
        self._evict(row, cause)
        return adapter

    def unpin(self, owner: RequestId, at_step: int) -> None:
        """Drop the pin (nothing happens without one); ``at_step`` is the last step that ``owner`` was in."""
        row = self._pinned_by.pop(owner, None)
        if row is not None:
            self._slots.unpin(row, owner, at_step)

    def pinned(self, slot: SlotId, generation: Generation) -> tuple[RequestId, ...]:
        """Who runs from this fill of the slot."""
        row = self._slots[slot]
        return tuple(row.pins) if row.generation == generation else ()

    def is_filled(self, slot: SlotId, generation: Generation) -> bool:
        """Whether that fill of the slot is the one that is there."""
        row = self._slots[slot]
        return row.adapter is not None and row.generation == generation

    def load_failed(self, slot: SlotId, generation: Generation) -> None:
        """The runner could not fill the slot and nobody is pinned to it any more: empty it. Other holders of
        the version ask the host tier anew. Nothing happens if that fill is gone already."""
        if self.is_filled(slot, generation):
            self._evict(self._slots[slot], Cause.FAULT)

    def lose(self, adapter: AdapterKey, cause: Cause = Cause.FAULT) -> SlotId | None:
        """The device's copy is damaged, or not wanted any more: empty its slot, and say which. None, and nothing
        changed, while somebody is pinned to it, or where it is not resident."""
        row = self._slots.find(adapter)
        if row is None or row.pins:
            return None
        self._evict(row, cause)
        return row.slot

    def drain(self, adapter: AdapterKey) -> frozenset[SlotId]:
        """Choose the slots that ``adapter``'s load shall get: those with the fewest pins that make enough
        room. They are remembered in ``draining``; who admits requests keeps them off these."""
        room = self._slots.room(self._versions[adapter].need, self._slots.quietest())
        self._draining = frozenset(r.slot for r in room or ())
        return self._draining

    def stop_draining(self) -> None:
        self._draining = frozenset()

    def is_draining(self, adapter: AdapterKey) -> bool:
        row = self._slots.find(adapter)
        return row is not None and row.slot in self._draining

    @property
    def drained(self) -> bool:
        """No draining slot is pinned any more."""
        return all(not self._slots[slot].pins for slot in self._draining)

    def rows(self) -> list[tuple[Slot, int]]:
        """Filled slots, and how many requests hold the version of each."""
        return [(row, len(self._holders(row))) for row in self._slots if row.adapter is not None]

    def slots(self) -> list[dict[str, Any]]:
        """Filled slots as JSON values: slot, generation, digest, scope, chunks, extra_bytes, pins, holds."""
        return [
            {
                "slot": int(row.slot),
                "generation": int(row.generation),
                "digest": row.adapter.digest,
                "scope": row.adapter.scope,
                "chunks": row.chunks,
                "extra_bytes": row.extra_bytes,
                "pins": len(row.pins),
                "holds": len(self._versions[row.adapter].holders),
            }
            for row in self._slots
            if row.adapter is not None
        ]

    def check_integrity(self) -> None:
        """Raises SlotIntegrity where holds, pins, slots and states contradict each other."""
        self._slots.check_integrity()
        for adapter, version in self._versions.items():
            if (version.state is AdapterState.RESIDENT) != (self._slots.find(adapter) is not None):
                raise SlotIntegrity(f"adapter {adapter} is {version.state} but the slot table says otherwise")
            if (version.state is AdapterState.FETCHING) != (adapter in self._asking):
                raise SlotIntegrity(f"adapter {adapter} is {version.state} but its fetch is asked after, or not")
            if not version.holders and version.state is not AdapterState.RESIDENT:
                raise SlotIntegrity(f"adapter {adapter} is remembered although nobody holds it")
            if {o for o, held in self._held_by.items() if held == adapter} != version.holders:
                raise SlotIntegrity(f"adapter {adapter}: its holders and their holds differ")
        if len(set(self._asking)) != len(self._asking):
            raise SlotIntegrity("one version is asked after twice")
        for row in self._slots:
            if row.pins != {o for o, r in self._pinned_by.items() if r is row}:
                raise SlotIntegrity(f"slot {row.slot}: its pins and their owners differ")
            if any(self._held_by.get(owner) != row.adapter for owner in row.pins):
                raise SlotIntegrity(f"slot {row.slot} is pinned by a request that does not hold its version")

    def _ask(self, adapter: AdapterKey, version: _Version[R]) -> Arrival | None:
        """Sets the version's state. None: still under way, and the caller keeps asking."""
        answer = self._host.ensure(version.ref)
        if isinstance(answer, Fetching):
            version.state = AdapterState.FETCHING
            return None
        if isinstance(answer, Failed):
            version.state = AdapterState.ABSENT
            return Arrival(adapter, answer.error)
        reason = self._never_fits(answer)
        if reason is not None:
            version.state = AdapterState.ABSENT
            return Arrival(adapter, AdapterLoadFailed(f"adapter {adapter} {reason}"))
        version.state = AdapterState.ON_HOST
        version.need = AdapterNeed(self._chunks_of(answer), answer.extra_bytes)
        return Arrival(adapter, None)

    def _chunks_of(self, ready: Ready) -> int:
        return self._ledger.chunks_for(ready.rank) if ready.chunks is None else ready.chunks

    def _never_fits(self, ready: Ready) -> str | None:
        config, most = self._ledger.config, self._ledger.split.extras_bytes
        if not 0 <= ready.rank <= config.max_rank:
            return (
                f"has rank {ready.rank}; this engine serves 0 to memory.max_rank = {config.max_rank}; raise max_rank, "
                "or train with a smaller r"
            )
        if not 0 <= ready.extra_bytes <= most:
            return (
                f"has {ready.extra_bytes} bytes beside its rank rows (gains, biases, norms, embedding, head); this "
                f"engine serves 0 to {most}, from memory.extras_fraction = {config.extras_fraction} of budget_bytes = "
                f"{config.budget_bytes} and what the KV pages' floor and max_rank = {config.max_rank} leave; raise "
                "extras_fraction or budget_bytes, or lower kv_fraction or max_rank"
            )
        largest = self._ledger.split.chunks_per_largest
        if not 0 <= self._chunks_of(ready) <= largest:
            return (
                f"takes {self._chunks_of(ready)} adapter chunks; this engine serves 0 to {largest}, what an adapter of "
                f"memory.max_rank = {config.max_rank} on every module takes; raise max_rank"
            )
        return None

    def _room(self, need: AdapterNeed, force: bool) -> list[Slot] | None:
        return self._slots.room(need, self.idle(force=force))

    def _holders(self, row: Slot) -> set[RequestId]:
        return set() if row.adapter is None else self._versions[row.adapter].holders

    def _evict(self, row: Slot, cause: Cause) -> None:
        adapter = row.adapter
        if adapter is not None:
            self.departures.append(Departure(adapter, cause, row.size, time.monotonic()))
        self._slots.empty(row)
        if adapter is None:
            return
        version = self._versions[adapter]
        if version.holders:
            version.state = AdapterState.FETCHING  # retained on the host as a rule; the next poll finds out
            self._asking.append(adapter)
        else:
            self._forget(adapter)

    def _forget(self, adapter: AdapterKey) -> None:
        if self._versions.pop(adapter).state is AdapterState.FETCHING:
            self._asking.remove(adapter)


__all__ = ["AdapterState", "Arrival", "Placement", "Residency"]
