"""Holds, pins, slots and their generations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lorry.config import MemoryConfig
from lorry.errors import AdapterLoadFailed, InternalError, ObjectStoreUnavailable, SlotIntegrity
from lorry.ids import AdapterDigest, Generation, RequestId, SlotId
from lorry.memory import MemoryLedger
from lorry.residency import AdapterState, Residency, Slot
from tests.unit.residency.memory_host import MemoryHost, Version, version

A, B, C = version("a"), version("b"), version("c")
R1, R2, R3 = RequestId("r1"), RequestId("r2"), RequestId("r3")


class Bench:
    """``slots`` slots and ``chunks`` chunks of rank 8, ranks up to 16; bytes for ``pages`` KV pages beside all chunks.
    A page and a chunk are of one size."""

    def __init__(self, *, slots: int = 2, chunks: int = 4, pages: int = 8, instant: bool = True) -> None:
        chunks = min(chunks, slots * 2)
        total = pages + chunks
        config = MemoryConfig(
            budget_bytes=total * 100,
            adapter_fraction=(chunks + 0.5) / total,
            kv_fraction=0.0,
            page_tokens=4,
            chunk_rank=8,
            max_slots=slots,
            max_rank=16,
        )
        self.ledger = MemoryLedger(config, 100, 100, 4)
        assert self.ledger.split.chunks == chunks
        self.host = MemoryHost(instant=instant)
        self.residency: Residency[Version] = Residency(self.ledger, self.host)

    def use(self, owner: RequestId, ref: Version, at_step: int = -1) -> None:
        """A request's whole life on the device."""
        self.residency.hold(owner, ref)
        assert self.residency.pin(owner) is not None
        self.residency.unpin(owner, at_step)
        self.residency.release(owner)
        self.residency.check_integrity()


def test_states_of_a_version() -> None:
    bench = Bench(instant=False)
    residency = bench.residency
    assert residency.state_of(A.digest) is AdapterState.ABSENT
    assert residency.hold(R1, A) is AdapterState.FETCHING
    assert residency.fetching
    assert residency.poll() == []
    assert residency.pin(R1) is None
    bench.host.land(A.digest)
    assert [(x.digest, x.error) for x in residency.poll()] == [("a", None)]
    assert residency.state_of(A.digest) is AdapterState.ON_HOST
    assert residency.tier_of(A.digest) == "host"
    placed = residency.pin(R1)
    assert placed is not None
    assert (placed.slot, placed.generation, placed.chunks, placed.loaded) == (0, 1, (0,), True)
    assert residency.state_of(A.digest) is AdapterState.RESIDENT
    assert residency.tier_of(A.digest) == "device"
    residency.unpin(R1, -1)
    residency.release(R1)
    assert residency.state_of(A.digest) is AdapterState.RESIDENT
    assert bench.host.retained == set()
    residency.check_integrity()


def test_a_second_pin_of_a_version_shares_the_slot_and_loads_nothing() -> None:
    bench = Bench()
    for owner in (R1, R2):
        bench.residency.hold(owner, A)
    first, second = bench.residency.pin(R1), bench.residency.pin(R2)
    assert first is not None
    assert second is not None
    assert (first.loaded, second.loaded) == (True, False)
    assert (first.slot, first.generation) == (second.slot, second.generation)
    assert set(bench.residency.pinned(first.slot, first.generation)) == {R1, R2}
    assert bench.residency.pinned(first.slot, Generation(7)) == ()


def test_each_fill_counts_the_slots_generation_up() -> None:
    bench = Bench(slots=1)
    seen = []
    for ref in (A, B, A):
        bench.residency.hold(R1, ref)
        placed = bench.residency.pin(R1)
        assert placed is not None
        seen.append((placed.slot, placed.generation, placed.evicted, placed.displaced))
        bench.residency.unpin(R1, -1)
        bench.residency.release(R1)
    assert seen == [(0, 1, (), ()), (0, 2, (0,), ("a",)), (0, 3, (0,), ("b",))]


def test_least_recently_used_without_a_hold_goes_first() -> None:
    bench = Bench(slots=3)
    for ref in (A, B, C, A):
        bench.use(R1, ref)
    bench.residency.hold(R2, B)
    bench.residency.hold(R1, version("d"))
    placed = bench.residency.pin(R1)
    assert placed is not None
    assert placed.displaced == ("c",), "b was used longer ago but is held; a was used since"


def test_a_pinned_slot_never_goes_and_a_held_one_only_by_force() -> None:
    bench = Bench(slots=1)
    bench.residency.hold(R1, A)
    bench.residency.pin(R1)
    bench.residency.hold(R2, B)
    assert bench.residency.pin(R2, force=True) is None
    bench.residency.unpin(R1, -1)
    assert bench.residency.pin(R2) is None
    placed = bench.residency.pin(R2, force=True)
    assert placed is not None
    assert placed.displaced == ("a",)
    assert bench.residency.state_of(A.digest) is AdapterState.FETCHING, "its holder asks the host again"
    assert bench.residency.poll()[0].error is None
    assert bench.host.fetches == ["a", "b"], "the hold kept the host copy"
    bench.residency.check_integrity()


def test_force_takes_a_slot_that_nobody_holds_before_an_older_one_that_is_held() -> None:
    bench = Bench(slots=2)
    bench.use(R1, A)
    bench.use(R1, B)
    bench.residency.hold(R2, A)
    bench.residency.hold(R3, C)
    placed = bench.residency.pin(R3, force=True)
    assert placed is not None
    assert placed.displaced == ("b",)


def test_a_slot_that_a_step_in_flight_reads_stays() -> None:
    bench = Bench(slots=1)
    bench.use(R1, A, at_step=5)
    bench.residency.hold(R2, B)
    bench.ledger.step_done(4)
    assert bench.residency.pin(R2, force=True) is None
    bench.ledger.step_done(5)
    assert bench.residency.pin(R2) is not None


def test_no_more_slots_are_emptied_than_needed() -> None:
    bench = Bench(slots=4, chunks=4)
    wide = version("w", rank=16)
    bench.use(R1, A)
    bench.use(R1, wide)
    bench.use(R1, B)
    bench.residency.hold(R2, version("v", rank=16))
    placed = bench.residency.pin(R2)
    assert placed is not None
    assert placed.displaced == ("w",), "a is older, but w alone makes the room"


def test_room_that_cannot_be_made_empties_nothing() -> None:
    bench = Bench(slots=2, chunks=2)
    bench.use(R1, A)
    bench.residency.hold(R1, B)
    bench.residency.pin(R1)
    bench.residency.hold(R2, version("w", rank=16))
    assert bench.residency.pin(R2, force=True) is None
    assert {s["digest"] for s in bench.residency.slots()} == {"a", "b"}


def test_a_failed_fetch_is_told_once_and_the_next_hold_tries_again() -> None:
    bench = Bench(instant=False)
    bench.residency.hold(R1, A)
    bench.residency.hold(R2, A)
    bench.host.fail(A.digest, ObjectStoreUnavailable("down"))
    (arrival,) = bench.residency.poll()
    assert isinstance(arrival.error, ObjectStoreUnavailable)
    for owner in (R1, R2):
        bench.residency.release(owner)
    bench.residency.check_integrity()
    assert bench.residency.hold(R3, A) is AdapterState.FETCHING
    assert bench.host.fetches == ["a", "a"]


def test_a_rank_that_is_not_served_is_refused_at_once_and_holds_nothing() -> None:
    bench = Bench()
    for rank in (17, 0):
        with pytest.raises(AdapterLoadFailed, match=f"rank {rank}"):
            bench.residency.hold(R1, version(f"x{rank}", rank=rank))
    assert bench.host.retained == set()
    bench.residency.check_integrity()


def test_a_failed_load_frees_slot_and_chunks_and_an_older_fill_is_not_meant() -> None:
    bench = Bench(slots=1)
    bench.residency.hold(R1, A)
    bench.residency.hold(R2, A)
    placed = bench.residency.pin(R1)
    assert placed is not None
    with pytest.raises(SlotIntegrity):
        bench.residency.load_failed(placed.slot, placed.generation)
    bench.residency.unpin(R1, 0)
    bench.residency.release(R1)
    bench.residency.load_failed(placed.slot, Generation(placed.generation + 1))
    assert bench.residency.slots() != []
    bench.ledger.step_done(0)
    bench.residency.load_failed(placed.slot, placed.generation)
    assert bench.residency.slots() == []
    assert bench.ledger.chunk_ids_free == bench.ledger.split.chunks
    assert bench.residency.state_of(A.digest) is AdapterState.FETCHING, "the other holder asks anew"
    bench.residency.check_integrity()


def test_a_lost_copy_is_emptied_only_when_nobody_is_pinned() -> None:
    bench = Bench()
    bench.residency.hold(R1, A)
    bench.residency.pin(R1)
    assert bench.residency.lose(A.digest) is None
    bench.residency.unpin(R1, -1)
    assert bench.residency.lose(A.digest) == SlotId(0)
    assert bench.residency.lose(A.digest) is None
    assert bench.residency.lose(AdapterDigest("never")) is None


def test_draining_chooses_the_quietest_slots() -> None:
    bench = Bench(slots=2, chunks=2)
    for owner, ref in ((R1, A), (R2, A), (R3, B)):
        bench.residency.hold(owner, ref)
        bench.residency.pin(owner)
    bench.residency.hold(RequestId("r4"), C)
    assert bench.residency.drain(C.digest) == {SlotId(1)}
    assert bench.residency.is_draining(B.digest)
    assert not bench.residency.is_draining(A.digest)
    assert not bench.residency.drained
    bench.residency.unpin(R3, -1)
    assert bench.residency.drained
    bench.residency.stop_draining()
    assert not bench.residency.is_draining(B.digest)


def test_misuse_is_an_error() -> None:
    bench = Bench()
    bench.residency.hold(R1, A)
    with pytest.raises(InternalError, match="already"):
        bench.residency.hold(R1, B)
    bench.residency.pin(R1)
    with pytest.raises(SlotIntegrity, match="pinned"):
        bench.residency.release(R1)


def test_room_for_names_what_must_go_and_changes_nothing() -> None:
    bench = Bench(slots=2, chunks=4)
    bench.use(R1, A)
    bench.use(R1, B)
    bench.residency.hold(R2, C)
    victims = bench.residency.room_for(R2)
    assert victims is not None
    assert [row.digest for row in victims] == ["a"]
    assert bench.residency.resident == {"a", "b"}
    placed = bench.residency.pin(R2, victims=victims)
    assert placed is not None
    assert (placed.displaced, placed.evicted) == (("a",), (SlotId(0),))
    assert bench.residency.room_for(R2) is None, "it is in a slot already"
    bench.residency.check_integrity()


def test_room_for_what_is_not_on_the_host_is_none() -> None:
    bench = Bench(instant=False)
    bench.residency.hold(R1, A)
    assert bench.residency.room_for(R1) is None
    bench.host.land(A.digest)
    bench.residency.poll()
    assert bench.residency.room_for(R1) == []


def test_victims_that_are_given_are_the_ones_that_go() -> None:
    bench = Bench(slots=2)
    bench.use(R1, A)
    bench.use(R1, B)
    bench.residency.hold(R2, C)
    dearest = bench.residency.idle()[-1]
    placed = bench.residency.pin(R2, victims=[dearest])
    assert placed is not None
    assert placed.displaced == ("b",)
    assert bench.residency.resident == {"a", "c"}


def test_without_the_bytes_nothing_is_pinned_and_nothing_goes() -> None:
    """Room in slots and under the ceiling is not enough: KV pages have the bytes."""
    bench = Bench(slots=3, chunks=4, pages=4)
    bench.use(R1, A)
    promise = bench.ledger.promise_pages(bench.ledger.split.pages)
    assert promise is not None
    assert bench.ledger.bytes_free == 100
    bench.residency.hold(R2, version("w", rank=16))
    assert bench.residency.room_for(R2) == []
    assert bench.residency.pin(R2) is None
    assert bench.residency.resident == {"a"}
    assert bench.residency.state_of(version("w").digest) is AdapterState.ON_HOST
    bench.residency.check_integrity()
    (idle,) = bench.residency.idle()
    placed = bench.residency.pin(R2, victims=[idle])
    assert placed is not None, "what goes gives its bytes"
    assert placed.displaced == ("a",)
    bench.residency.check_integrity()


def test_an_idle_slot_is_emptied_for_its_bytes() -> None:
    bench = Bench(slots=3)
    bench.use(R1, A)
    bench.use(R1, version("w", rank=16))
    before = bench.ledger.bytes_free
    (first, second) = bench.residency.idle()
    assert (first.digest, second.digest) == ("a", "w")
    assert bench.residency.evict(second) == "w"
    assert bench.ledger.bytes_free == before + 200
    assert bench.residency.resident == {"a"}
    with pytest.raises(SlotIntegrity):
        bench.residency.evict(second)
    bench.residency.check_integrity()


def test_idle_lists_the_held_last_and_only_by_force_the_pinned_and_the_read_never() -> None:
    bench = Bench(slots=4, chunks=4)
    for ref in (A, B, C):
        bench.use(R1, ref)
    bench.use(R1, version("read"), at_step=5)
    bench.residency.hold(R1, A)
    bench.residency.hold(R2, B)
    bench.residency.pin(R2)
    assert [row.digest for row in bench.residency.idle()] == ["c"]
    assert [row.digest for row in bench.residency.idle(force=True)] == ["c", "a"]
    with pytest.raises(SlotIntegrity, match="pinned"):
        bench.residency.evict(next(row for row in bench.residency._slots if row.digest == "b"))
    bench.ledger.step_done(5)
    assert [row.digest for row in bench.residency.idle()] == ["c", "read"]


def test_what_went_raises_the_worth_of_what_is_used_after() -> None:
    bench = Bench(slots=3)
    bench.use(R1, A)
    bench.use(R1, B)
    first, second = (row.worth for row in bench.residency.idle())
    assert first == second == pytest.approx(bench.ledger.costs.load_s_per_byte)
    bench.residency.evict(bench.residency.idle()[0])
    bench.use(R1, C)
    assert bench.residency.idle()[-1].worth == pytest.approx(2 * first)
    assert [row.digest for row in bench.residency.idle()] == ["b", "c"]


def _find(bench: Bench, digest: str) -> Slot:
    return next(row for row in bench.residency._slots if row.digest == digest)


def _digests_swapped(bench: Bench) -> None:
    first, second = _find(bench, "a"), _find(bench, "b")
    first.digest, second.digest = second.digest, first.digest


def _pin_of_nobody(bench: Bench) -> None:
    _find(bench, "a").pins.add(R2)


def _pin_of_another_version(bench: Bench) -> None:
    row = _find(bench, "b")
    row.pins.add(R1)
    _find(bench, "a").pins.clear()
    bench.residency._pinned_by[R1] = row


def _chunks_shared(bench: Bench) -> None:
    _find(bench, "a").grant = _find(bench, "b").grant


def _chunks_leaked(bench: Bench) -> None:
    bench.ledger.take_chunks(1)


def _half_empty(bench: Bench) -> None:
    _find(bench, "b").grant = None


def _found_in_an_empty_slot(bench: Bench) -> None:
    row = _find(bench, "b")
    assert row.grant is not None
    bench.ledger.free_chunks(row.grant, -1)
    row.digest = row.grant = None


def _resident_without_a_slot(bench: Bench) -> None:
    bench.residency._versions[C.digest].state = AdapterState.RESIDENT


def _fetching_unasked(bench: Bench) -> None:
    bench.residency._asking.clear()


def _asked_twice(bench: Bench) -> None:
    bench.residency._asking.append(C.digest)


def _holder_of_nothing(bench: Bench) -> None:
    bench.residency._versions[C.digest].holders.add(R2)


def _remembered(bench: Bench) -> None:
    version = bench.residency._versions[C.digest]
    version.holders.clear()
    del bench.residency._held_by[R3]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_digests_swapped, "not the one that its digest"),
        (_pin_of_nobody, "its pins and their owners"),
        (_pin_of_another_version, "does not hold its version"),
        (_chunks_shared, "shares an adapter chunk"),
        (_chunks_leaked, "other adapter chunks in use"),
        (_half_empty, "half empty"),
        (_found_in_an_empty_slot, "in a slot that does not hold it"),
        (_resident_without_a_slot, "the slot table says otherwise"),
        (_fetching_unasked, "asked after, or not"),
        (_asked_twice, "asked after twice"),
        (_holder_of_nothing, "holders and their holds differ"),
        (_remembered, "nobody holds it"),
    ],
)
def test_the_integrity_check_sees(damage: Callable[[Bench], None], words: str) -> None:
    bench = Bench(slots=3, instant=False)
    for owner, ref in ((R1, A), (R2, B)):
        bench.residency.hold(owner, ref)
        bench.host.land(ref.digest)
        bench.residency.poll()
        bench.residency.pin(owner)
    bench.residency.unpin(R2, -1)
    bench.residency.release(R2)
    bench.residency.hold(R3, C)
    bench.residency.check_integrity()
    damage(bench)
    with pytest.raises(SlotIntegrity, match=words):
        bench.residency.check_integrity()


def test_polls_take_turns_within_their_limit() -> None:
    bench = Bench(instant=False)
    refs = [version(f"v{i}") for i in range(5)]
    for i, ref in enumerate(refs):
        bench.residency.hold(RequestId(f"r{i}"), ref)
        bench.host.land(ref.digest)
    seen = [[a.digest for a in bench.residency.poll(2)] for _ in range(3)]
    assert seen == [["v0", "v1"], ["v2", "v3"], ["v4"]]
