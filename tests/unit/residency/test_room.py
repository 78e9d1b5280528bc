"""Room for a version: what must go for it, what may, and the bytes behind it."""

from __future__ import annotations

import pytest

from lorry.errors import SlotIntegrity
from lorry.ids import SlotId
from lorry.residency import AdapterState
from tests.unit.residency.bench import R1, R2, A, B, Bench, C
from tests.unit.residency.memory_host import key_of, version


def test_room_for_names_what_must_go_and_changes_nothing() -> None:
    bench = Bench(slots=2, chunks=4)
    bench.use(R1, A)
    bench.use(R1, B)
    bench.residency.hold(R2, C)
    victims = bench.residency.room_for(R2)
    assert victims is not None
    assert [str(row.adapter) for row in victims] == ["a"]
    assert bench.residency.resident == {key_of("a"), key_of("b")}
    placed = bench.residency.pin(R2, victims=victims)
    assert placed is not None
    assert (placed.displaced, placed.evicted) == ((key_of("a"),), (SlotId(0),))
    assert bench.residency.room_for(R2) is None, "it is in a slot already"
    bench.residency.check_integrity()


def test_room_for_what_is_not_on_the_host_is_none() -> None:
    bench = Bench(instant=False)
    bench.residency.hold(R1, A)
    assert bench.residency.room_for(R1) is None
    bench.host.land(A.key)
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
    assert placed.displaced == (key_of("b"),)
    assert bench.residency.resident == {key_of("a"), key_of("c")}


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
    assert bench.residency.resident == {key_of("a")}
    assert bench.residency.state_of(version("w").key) is AdapterState.ON_HOST
    bench.residency.check_integrity()
    (idle,) = bench.residency.idle()
    placed = bench.residency.pin(R2, victims=[idle])
    assert placed is not None, "what goes gives its bytes"
    assert placed.displaced == (key_of("a"),)
    bench.residency.check_integrity()


def test_an_idle_slot_is_emptied_for_its_bytes() -> None:
    bench = Bench(slots=3)
    bench.use(R1, A)
    bench.use(R1, version("w", rank=16))
    before = bench.ledger.bytes_free
    (first, second) = bench.residency.idle()
    assert (first.adapter, second.adapter) == (key_of("a"), key_of("w"))
    assert bench.residency.evict(second) == key_of("w")
    assert bench.ledger.bytes_free == before + 200
    assert bench.residency.resident == {key_of("a")}
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
    assert [str(row.adapter) for row in bench.residency.idle()] == ["c"]
    assert [str(row.adapter) for row in bench.residency.idle(force=True)] == ["c", "a"]
    with pytest.raises(SlotIntegrity, match="pinned"):
        bench.residency.evict(next(row for row in bench.residency._slots if row.adapter == key_of("b")))
    bench.ledger.step_done(5)
    assert [str(row.adapter) for row in bench.residency.idle()] == ["c", "read"]


def test_what_went_raises_the_worth_of_what_is_used_after() -> None:
    bench = Bench(slots=3)
    bench.use(R1, A)
    bench.use(R1, B)
    first, second = (row.worth for row in bench.residency.idle())
    assert first == second == pytest.approx(bench.ledger.costs.load_s_per_byte)
    bench.residency.evict(bench.residency.idle()[0])
    bench.use(R1, C)
    assert bench.residency.idle()[-1].worth == pytest.approx(2 * first)
    assert [str(row.adapter) for row in bench.residency.idle()] == ["b", "c"]
