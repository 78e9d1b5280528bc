"""Holds, pins, slots and their generations."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterLoadFailed, InternalError, ObjectStoreUnavailable, SlotIntegrity
from lorry.ids import Generation, RequestId, SlotId
from lorry.residency import AdapterState
from tests.unit.residency.bench import R1, R2, R3, A, B, Bench, C
from tests.unit.residency.memory_host import key_of, version


def test_states_of_a_version() -> None:
    bench = Bench(instant=False)
    residency = bench.residency
    assert residency.state_of(A.key) is AdapterState.ABSENT
    assert residency.hold(R1, A) is AdapterState.FETCHING
    assert residency.fetching
    assert residency.poll() == []
    assert residency.pin(R1) is None
    bench.host.land(A.key)
    assert [(x.adapter, x.error) for x in residency.poll()] == [(key_of("a"), None)]
    assert residency.state_of(A.key) is AdapterState.ON_HOST
    assert residency.tier_of(A.key) == "host"
    placed = residency.pin(R1)
    assert placed is not None
    assert (placed.slot, placed.generation, placed.chunks, placed.loaded) == (0, 1, (0,), True)
    assert residency.state_of(A.key) is AdapterState.RESIDENT
    assert residency.tier_of(A.key) == "device"
    residency.unpin(R1, -1)
    residency.release(R1)
    assert residency.state_of(A.key) is AdapterState.RESIDENT
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
    assert seen == [(0, 1, (), ()), (0, 2, (0,), (key_of("a"),)), (0, 3, (0,), (key_of("b"),))]


def test_least_recently_used_without_a_hold_goes_first() -> None:
    bench = Bench(slots=3)
    for ref in (A, B, C, A):
        bench.use(R1, ref)
    bench.residency.hold(R2, B)
    bench.residency.hold(R1, version("d"))
    placed = bench.residency.pin(R1)
    assert placed is not None
    assert placed.displaced == (key_of("c"),), "b was used longer ago but is held; a was used since"


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
    assert placed.displaced == (key_of("a"),)
    assert bench.residency.state_of(A.key) is AdapterState.FETCHING, "its holder asks the host again"
    assert bench.residency.poll()[0].error is None
    assert bench.host.fetches == [key_of("a"), key_of("b")], "the hold kept the host copy"
    bench.residency.check_integrity()


def test_force_takes_a_slot_that_nobody_holds_before_an_older_one_that_is_held() -> None:
    bench = Bench(slots=2)
    bench.use(R1, A)
    bench.use(R1, B)
    bench.residency.hold(R2, A)
    bench.residency.hold(R3, C)
    placed = bench.residency.pin(R3, force=True)
    assert placed is not None
    assert placed.displaced == (key_of("b"),)


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
    assert placed.displaced == (key_of("w"),), "a is older, but w alone makes the room"


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
    bench.host.fail(A.key, ObjectStoreUnavailable("down"))
    (arrival,) = bench.residency.poll()
    assert isinstance(arrival.error, ObjectStoreUnavailable)
    for owner in (R1, R2):
        bench.residency.release(owner)
    bench.residency.check_integrity()
    assert bench.residency.hold(R3, A) is AdapterState.FETCHING
    assert bench.host.fetches == [key_of("a"), key_of("a")]


def test_a_rank_that_is_not_served_is_refused_at_once_and_holds_nothing() -> None:
    bench = Bench()
    for rank in (17, -1):
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
    assert bench.residency.state_of(A.key) is AdapterState.FETCHING, "the other holder asks anew"
    bench.residency.check_integrity()


def test_a_lost_copy_is_emptied_only_when_nobody_is_pinned() -> None:
    bench = Bench()
    bench.residency.hold(R1, A)
    bench.residency.pin(R1)
    assert bench.residency.lose(A.key) is None
    bench.residency.unpin(R1, -1)
    assert bench.residency.lose(A.key) == SlotId(0)
    assert bench.residency.lose(A.key) is None
    assert bench.residency.lose(key_of("never")) is None


def test_draining_chooses_the_quietest_slots() -> None:
    bench = Bench(slots=2, chunks=2)
    for owner, ref in ((R1, A), (R2, A), (R3, B)):
        bench.residency.hold(owner, ref)
        bench.residency.pin(owner)
    bench.residency.hold(RequestId("r4"), C)
    assert bench.residency.drain(C.key) == {SlotId(1)}
    assert bench.residency.is_draining(B.key)
    assert not bench.residency.is_draining(A.key)
    assert not bench.residency.drained
    bench.residency.unpin(R3, -1)
    assert bench.residency.drained
    bench.residency.stop_draining()
    assert not bench.residency.is_draining(B.key)


def test_misuse_is_an_error() -> None:
    bench = Bench()
    bench.residency.hold(R1, A)
    with pytest.raises(InternalError, match="already"):
        bench.residency.hold(R1, B)
    bench.residency.pin(R1)
    with pytest.raises(SlotIntegrity, match="pinned"):
        bench.residency.release(R1)


def test_polls_take_turns_within_their_limit() -> None:
    bench = Bench(instant=False)
    refs = [version(f"v{i}") for i in range(5)]
    for i, ref in enumerate(refs):
        bench.residency.hold(RequestId(f"r{i}"), ref)
        bench.host.land(ref.key)
    seen = [[a.adapter for a in bench.residency.poll(2)] for _ in range(3)]
    assert seen == [[key_of("v0"), key_of("v1")], [key_of("v2"), key_of("v3")], [key_of("v4")]]
