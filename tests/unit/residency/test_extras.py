"""Versions that bring more than rank rows, or none of these: room, refusals, worth."""

from __future__ import annotations

import pytest

from lorry.errors import AdapterLoadFailed
from lorry.ids import RequestId, SlotId
from lorry.memory import AdapterNeed
from lorry.residency import AdapterState
from tests.unit.residency.bench import R1, R2, R3, A, B, Bench
from tests.unit.residency.memory_host import key_of, version

NORMS = version("norms", rank=0, extra_bytes=10)
WIDE = version("wide", rank=8, extra_bytes=400)


def test_a_version_takes_its_chunks_and_its_extras() -> None:
    bench = Bench(extras=400)
    bench.residency.hold(R1, WIDE)
    assert bench.residency.need_of(WIDE.key) == AdapterNeed(1, 400)
    placed = bench.residency.pin(R1)
    assert placed is not None
    assert placed.chunks == (0,)
    use = bench.ledger.use()
    assert (use.chunks_used, use.extras_used, use.bytes_used) == (1, 400, 500)
    (slot,) = bench.residency.slots()
    assert (slot["chunks"], slot["extra_bytes"]) == (1, 400)
    assert bench.residency.unpinned_bytes == 0
    bench.residency.unpin(R1, -1)
    assert bench.residency.unpinned_bytes == 500
    assert bench.residency.lose(WIDE.key) == SlotId(0)
    assert (bench.residency.unpinned_bytes, bench.ledger.use().bytes_used) == (0, 0)
    bench.residency.check_integrity()


@pytest.mark.parametrize(("extra_bytes", "chunks"), [(10, ()), (0, ())])
def test_a_version_without_rank_rows_has_a_slot_and_no_chunk(extra_bytes: int, chunks: tuple[int, ...]) -> None:
    bench = Bench(slots=1)
    ref = version("ia3", rank=0, extra_bytes=extra_bytes)
    bench.residency.hold(R1, ref)
    placed = bench.residency.pin(R1)
    assert placed is not None
    assert (placed.chunks, placed.loaded, placed.generation) == (chunks, True, 1)
    assert bench.ledger.use().bytes_used == extra_bytes
    bench.residency.hold(R2, A)
    assert bench.residency.pin(R2, force=True) is None, "the slot is pinned"
    bench.residency.unpin(R1, -1)
    bench.residency.release(R1)
    assert bench.residency.pin(R2) is not None
    bench.residency.check_integrity()


def test_extras_over_the_cap_are_refused_at_once_with_numbers_and_remedy() -> None:
    bench = Bench(extras=400)
    with pytest.raises(AdapterLoadFailed) as refused:
        bench.residency.hold(R1, version("huge", rank=8, extra_bytes=401))
    for words in ("401 bytes", "0 to 400", "extras_fraction", "budget_bytes = 1200", "max_rank = 16", "raise"):
        assert words in str(refused.value), words
    with pytest.raises(AdapterLoadFailed, match="-1 bytes"):
        bench.residency.hold(R1, version("odd", rank=8, extra_bytes=-1))
    assert bench.host.retained == set()
    assert bench.residency.hold(R1, WIDE) is AdapterState.ON_HOST
    bench.residency.check_integrity()


def test_where_extras_are_not_served_an_adapter_without_any_is() -> None:
    bench = Bench(extras=0)
    bench.use(R1, A)
    with pytest.raises(AdapterLoadFailed, match="0 to 0"):
        bench.residency.hold(R1, NORMS)


def test_a_rank_over_the_limit_names_the_remedy() -> None:
    bench = Bench()
    with pytest.raises(AdapterLoadFailed, match=r"rank 17.* 0 to memory\.max_rank = 16; raise max_rank"):
        bench.residency.hold(R1, version("x", rank=17))


def test_an_image_that_says_how_many_chunks_it_takes_gets_them() -> None:
    """A device whose images are cut otherwise than into rank rows of every site."""
    bench = Bench(slots=2, chunks=4)
    bench.residency.hold(R1, version("x", rank=3, chunks=2))
    assert bench.residency.need_of(version("x").key) == AdapterNeed(2, 0)
    placed = bench.residency.pin(R1)
    assert placed is not None
    assert len(placed.chunks) == 2
    for wrong in (3, -1):
        with pytest.raises(AdapterLoadFailed, match=rf"takes {wrong} adapter chunks; this engine serves 0 to 2"):
            bench.residency.hold(R2, version(f"y{wrong}", rank=3, chunks=wrong))
    bench.residency.check_integrity()


def test_only_who_has_extras_goes_for_extras() -> None:
    bench = Bench(slots=4, chunks=4, extras=400)
    for ref in (A, NORMS, version("half", rank=0, extra_bytes=250), B):
        bench.use(R1, ref)
    bench.residency.hold(R2, version("most", rank=0, extra_bytes=300))
    victims = bench.residency.room_for(R2)
    assert victims is not None
    assert [str(row.adapter) for row in victims] == ["half"], "a and norms are older, but their going would not do"


def test_there_is_no_room_beside_extras_that_are_pinned() -> None:
    bench = Bench(slots=4, chunks=4, extras=400)
    bench.residency.hold(R1, version("half", rank=0, extra_bytes=250))
    assert bench.residency.pin(R1) is not None
    bench.residency.hold(R2, version("most", rank=0, extra_bytes=151))
    assert bench.residency.room_for(R2, force=True) is None
    assert bench.residency.pin(R2, force=True) is None
    bench.residency.hold(R3, version("rest", rank=0, extra_bytes=150))
    assert bench.residency.room_for(R3) == []


def test_for_chunks_and_extras_one_of_each_goes() -> None:
    bench = Bench(slots=4, chunks=2, extras=400)
    half = version("half", rank=0, extra_bytes=250)
    for ref in (NORMS, A, half, B):
        bench.use(R1, ref)
    bench.residency.hold(R2, version("both", rank=8, extra_bytes=300))
    victims = bench.residency.room_for(R2)
    assert victims is not None
    assert [str(row.adapter) for row in victims] == ["a", "half"]


def test_the_bound_on_both_together_makes_room_too() -> None:
    """Three chunks and 300 bytes of extras are within their own bounds and leave one page of the floor."""
    bench = Bench(slots=4, chunks=4, pages=2, extras=300)
    assert bench.ledger.split.adapter_bytes == 500
    for name in "abc":
        bench.residency.hold(RequestId(name), version(name))
        assert bench.residency.pin(RequestId(name)) is not None
    bench.residency.hold(R1, version("e", rank=0, extra_bytes=201))
    assert bench.residency.room_for(R1, force=True) is None
    bench.residency.unpin(RequestId("b"), -1)
    victims = bench.residency.room_for(R1, force=True)
    assert victims is not None
    assert [str(row.adapter) for row in victims] == ["b"]


def test_draining_for_extras_chooses_who_has_them() -> None:
    bench = Bench(slots=3, chunks=3, extras=400)
    for owner, ref in ((R1, A), (R2, WIDE), (R3, B)):
        bench.residency.hold(owner, ref)
        bench.residency.pin(owner)
    other = version("other", rank=0, extra_bytes=1)
    bench.residency.hold(RequestId("r4"), other)
    assert bench.residency.drain(other.key) == {SlotId(1)}


def test_extras_count_as_bytes_that_a_victim_gives() -> None:
    bench = Bench(slots=3, chunks=4, pages=4, extras=300)
    bench.use(R1, version("big", rank=0, extra_bytes=300))
    promise = bench.ledger.promise_pages(5)
    assert promise is not None
    assert bench.ledger.bytes_free == 0
    bench.residency.hold(R2, version("w", rank=16, extra_bytes=100))
    assert bench.residency.room_for(R2) is not None
    (idle,) = bench.residency.idle()
    placed = bench.residency.pin(R2, victims=[idle])
    assert placed is not None
    assert placed.displaced == (key_of("big"),)
    assert bench.ledger.bytes_free == 0
    bench.residency.check_integrity()
    bench.ledger.check_integrity()


def test_all_are_worth_what_their_bytes_are_whatever_these_are_of() -> None:
    bench = Bench(slots=4, extras=410)
    for ref in (A, NORMS, WIDE, version("nothing", rank=0)):
        bench.use(R1, ref)
    worth = {row.adapter: row.worth for row in bench.residency.idle()}
    assert len(worth) == 4
    assert all(found == pytest.approx(bench.ledger.costs.load_s_per_byte) for found in worth.values())
    assert [str(row.adapter) for row in bench.residency.idle()] == ["a", "norms", "wide", "nothing"], (
        "so the longest unused"
    )


def test_a_slot_without_bytes_has_not_the_worth_of_what_it_held_before() -> None:
    bench = Bench(slots=1)
    bench.use(R1, A)
    bench.ledger.eviction.evicted(7.0)
    bench.use(R1, version("nothing", rank=0))
    (row,) = bench.residency.idle()
    assert row.worth > 7.0
