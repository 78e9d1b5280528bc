"""Holds, pins, fetches, evictions, damage and steps in any order, against a model of who has what."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorry.config import MemoryConfig
from lorry.errors import ObjectStoreUnavailable
from lorry.ids import AdapterKey, Generation, RequestId, SlotId
from lorry.memory import AdapterNeed, MemoryLedger, PagePromise
from lorry.residency import AdapterState, Placement, Residency
from tests.unit.residency.memory_host import MemoryHost, Version, version

SIZES = ((1, 0), (8, 0), (8, 90), (9, 0), (16, 240), (0, 200), (0, 150), (0, 1), (0, 0))
VERSIONS = [version(f"v{i}", rank, extra_bytes) for i, (rank, extra_bytes) in enumerate(SIZES)]
VERSIONS += [version(f"v{i}", *SIZES[i], scope="theirs") for i in (1, 2, 5)]
"""The last have the bytes of others: each is held, loaded, damaged and emptied by itself."""
NEEDS = {ref.key: AdapterNeed(-(-ref.rank // 8), ref.extra_bytes) for ref in VERSIONS}
CHUNKS, EXTRAS, BOTH = 4, 240, 500
Fill = tuple[SlotId, Generation]


def size_of(needs: Iterable[AdapterNeed]) -> int:
    return sum(100 * need.chunks + need.extra_bytes for need in needs)


class ResidencyMachine(RuleBasedStateMachine):
    """Three slots, four chunks of 100 bytes, 240 bytes of extras, 500 of both together; 600 for them and four pages.
    ``filled``: what each slot holds. ``pending``: what left a slot that a step under way may read."""

    def __init__(self) -> None:
        super().__init__()
        config = MemoryConfig(600, 0.7, 0.0, 0.401, page_tokens=4, chunk_rank=8, max_slots=3, max_rank=16)
        self.ledger = MemoryLedger(config, 100, 100, 4)
        split = self.ledger.split
        assert (split.chunks, split.extras_bytes, split.adapter_bytes, split.pages) == (CHUNKS, EXTRAS, BOTH, 4)
        self.host = MemoryHost(instant=False)
        self.residency: Residency[Version] = Residency(self.ledger, self.host)
        self.holds: dict[RequestId, AdapterKey] = {}
        self.pins: dict[RequestId, Fill] = {}
        self.filled: dict[SlotId, tuple[Generation, AdapterKey]] = {}
        self.generations: dict[SlotId, Generation] = {}
        self.last: dict[SlotId, int] = {}
        self.pending: list[tuple[AdapterNeed, int]] = []
        self.promise: PagePromise | None = None
        self.count = 0
        self.done = -1

    def _pinned(self, slot: SlotId) -> set[RequestId]:
        return {owner for owner, (at, _) in self.pins.items() if at == slot}

    def _empty(self, slot: SlotId) -> None:
        assert not self._pinned(slot), "a pinned slot never goes"
        need, last = NEEDS[self.filled[slot][1]], self.last.get(slot, -1)
        del self.filled[slot]
        if last > self.done:
            self.pending.append((need, last))

    def _idle(self, *, force: bool) -> set[SlotId]:
        held = set(self.holds.values())
        return {
            slot
            for slot, (_, key) in self.filled.items()
            if not self._pinned(slot) and self.last.get(slot, -1) <= self.done and (force or key not in held)
        }

    def _fits(self, key: AdapterKey, without: set[SlotId]) -> bool:
        """Slots and the adapters' bounds would have room for it, were these slots empty."""
        stay = [NEEDS[held] for slot, (_, held) in self.filled.items() if slot not in without]
        stay += [need for need, _ in self.pending]
        needs = [*stay, NEEDS[key]]
        slots = [slot for slot in map(SlotId, range(3)) if slot in without or slot not in self.filled]
        return (
            any(self.last.get(slot, -1) <= self.done for slot in slots)
            and sum(need.chunks for need in needs) <= CHUNKS
            and sum(need.extra_bytes for need in needs) <= EXTRAS
            and size_of(needs) <= BOTH
        )

    @rule(ref=st.sampled_from(VERSIONS))
    def hold(self, ref: Version) -> None:
        owner = RequestId(f"r{self.count}")
        self.count += 1
        try:
            state = self.residency.hold(owner, ref)
        except ObjectStoreUnavailable as error:
            raise AssertionError("a failure that nobody stayed to hear of is not held against the next") from error
        assert state is not AdapterState.ABSENT
        self.holds[owner] = ref.key

    @precondition(lambda self: self.holds.keys() - self.pins.keys())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.holds.keys() - self.pins.keys())))
        self.residency.release(owner)
        self.residency.release(owner)
        del self.holds[owner]

    @precondition(lambda self: self.holds.keys() - self.pins.keys())
    @rule(data=st.data(), force=st.booleans(), given_victims=st.booleans())
    def pin(self, data: st.DataObject, force: bool, given_victims: bool) -> None:
        owner = data.draw(st.sampled_from(sorted(self.holds.keys() - self.pins.keys())))
        key, free = self.holds[owner], self.ledger.bytes_free
        resident = key in {held for _, held in self.filled.values()}
        victims = self.residency.room_for(owner, force=force)
        goes = [] if victims is None else [row.slot for row in victims]
        assert len(set(goes)) == len(goes)
        if self.residency.state_of(key) is AdapterState.ON_HOST:
            idle = self._idle(force=force)
            assert set(goes) <= idle
            assert (victims is None) == (not self._fits(key, idle))
            if victims is not None:
                assert self._fits(key, set(goes))
                assert not [slot for slot in goes if self._fits(key, set(goes) - {slot})], "none goes for nothing"
        before = self.residency.slots()
        placed = self.residency.pin(owner, force=force, victims=victims if given_victims else None)
        if placed is None:
            assert not resident
            assert self.residency.slots() == before, "nothing changed"
            short = free + size_of(NEEDS[self.filled[slot][1]] for slot in goes) < size_of([NEEDS[key]])
            assert victims is None or short
            return
        self._check(placed, key, free, resident, force)
        assert resident or list(placed.evicted) == goes
        for slot in placed.evicted:
            self._empty(slot)
        if placed.loaded:
            assert placed.generation == self.generations.get(placed.slot, 0) + 1
            self.generations[placed.slot] = placed.generation
            self.filled[placed.slot] = (placed.generation, key)
        self.pins[owner] = (placed.slot, placed.generation)

    def _check(self, placed: Placement, key: AdapterKey, free: int, resident: bool, force: bool) -> None:
        assert placed.adapter == key
        assert placed.loaded == (not resident)
        assert len(placed.chunks) == NEEDS[key].chunks
        if resident:
            assert self.filled[placed.slot] == (placed.generation, key)
            assert not placed.evicted
        assert placed.displaced == tuple(self.filled[slot][1] for slot in placed.evicted)
        for slot in placed.evicted:
            assert self.last.get(slot, -1) <= self.done, "a step under way reads it"
        assert force or not set(placed.displaced) & set(self.holds.values())

    @precondition(lambda self: self.pins)
    @rule(data=st.data(), ahead=st.integers(-1, 2))
    def unpin(self, data: st.DataObject, ahead: int) -> None:
        owner = data.draw(st.sampled_from(sorted(self.pins)))
        self.residency.unpin(owner, self.done + ahead)
        self.residency.unpin(owner, self.done + ahead)
        slot, _ = self.pins.pop(owner)
        self.last[slot] = max(self.last.get(slot, -1), self.done + ahead)

    @rule(data=st.data(), force=st.booleans())
    def evict(self, data: st.DataObject, force: bool) -> None:
        rows = self.residency.idle(force=force)
        held = set(self.holds.values())
        assert {row.slot for row in rows} == self._idle(force=force)
        by_hold = [row.adapter in held for row in rows]
        assert by_hold == sorted(by_hold), "those that somebody holds come last"
        if rows:
            row = data.draw(st.sampled_from(rows))
            assert self.residency.evict(row) == self.filled[row.slot][1]
            self._empty(row.slot)

    @rule(ref=st.sampled_from(VERSIONS))
    def lose(self, ref: Version) -> None:
        slot = next((slot for slot, (_, key) in self.filled.items() if key == ref.key), None)
        if slot is not None and self._pinned(slot):
            slot = None
        assert self.residency.lose(ref.key) == slot
        if slot is not None:
            self._empty(slot)

    @precondition(lambda self: self.filled)
    @rule(data=st.data(), stale=st.booleans())
    def load_failed(self, data: st.DataObject, stale: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.filled)))
        generation = Generation(self.filled[slot][0] - stale)
        if not stale and self._pinned(slot):
            return
        self.residency.load_failed(slot, generation)
        if not stale:
            self._empty(slot)

    @precondition(lambda self: self.host.fetching)
    @rule(data=st.data(), fails=st.booleans())
    def fetch_ends(self, data: st.DataObject, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.host.fetching)))
        if fails:
            self.host.fail(key, ObjectStoreUnavailable("gone for now"))
        else:
            self.host.land(key)

    @rule(limit=st.integers(1, 3))
    def poll(self, limit: int) -> None:
        for arrival in self.residency.poll(limit):
            if arrival.error is None:
                assert self.residency.state_of(arrival.adapter) is AdapterState.ON_HOST
                continue
            for owner in [owner for owner, key in self.holds.items() if key == arrival.adapter]:
                self.residency.release(owner)
                del self.holds[owner]

    @rule()
    def host_tier_wants_room(self) -> None:
        for key in sorted(self.host.ready.keys() - self.host.retained):
            self.host.drop(key)

    @rule(pages=st.integers(0, 4))
    def pages_want_bytes(self, pages: int) -> None:
        if self.promise is not None:
            self.ledger.end_promise(self.promise)
        self.promise = self.ledger.promise_pages(pages)

    @rule(steps=st.integers(1, 2))
    def step_done(self, steps: int) -> None:
        self.done += steps
        self.ledger.step_done(self.done)
        self.pending = [(need, at) for need, at in self.pending if at > self.done]

    @invariant()
    def nobody_loses_anything(self) -> None:
        self.residency.check_integrity()
        self.ledger.check_integrity()
        assert self.host.retained == set(self.holds.values()), "a hold keeps the host copy, and nothing else does"
        slots = {SlotId(row["slot"]): row for row in self.residency.slots()}
        assert {
            slot: (row["generation"], AdapterKey(row["digest"], row["scope"])) for slot, row in slots.items()
        } == self.filled
        assert self.residency.resident == {key for _, key in self.filled.values()}
        taken = {slot: NEEDS[key] for slot, (_, key) in self.filled.items()}
        assert {slot: AdapterNeed(row["chunks"], row["extra_bytes"]) for slot, row in slots.items()} == taken
        use = self.ledger.use()
        assert use.extras_used == sum(need.extra_bytes for need in taken.values())
        assert use.extras_pending == sum(need.extra_bytes for need, _ in self.pending)
        assert use.bytes_adapters == size_of(taken.values()) + size_of(need for need, _ in self.pending) <= BOTH
        unpinned = [need for slot, need in taken.items() if not self._pinned(slot)]
        assert self.residency.unpinned_bytes == size_of(unpinned)
        for slot, (generation, _) in self.filled.items():
            assert set(self.residency.pinned(slot, generation)) == self._pinned(slot)
            assert self.residency.pinned(slot, Generation(generation + 1)) == ()
        for key in self.holds.values():
            assert self.residency.state_of(key) is not AdapterState.ABSENT

    def teardown(self) -> None:
        for owner in list(self.pins):
            self.residency.unpin(owner, self.done)
        for owner in self.holds:
            self.residency.release(owner)
        self.ledger.step_done(self.done + 2)
        for row in self.residency.idle():
            self.residency.evict(row)
        self.residency.check_integrity()
        assert not self.host.retained
        assert self.residency.slots() == []
        assert not self.residency.fetching
        assert (self.ledger.use().chunks_free, self.ledger.use().extras_free) == (CHUNKS, EXTRAS)


TestResidency = ResidencyMachine.TestCase
TestResidency.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
