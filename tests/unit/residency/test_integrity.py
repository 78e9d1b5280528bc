"""The integrity check sees every kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lorry.errors import SlotIntegrity
from lorry.memory import AdapterNeed
from lorry.residency import AdapterState, Slot
from tests.unit.residency.bench import R1, R2, R3, A, B, Bench, C


def _find(bench: Bench, digest: str) -> Slot:
    return next(row for row in bench.residency._slots if str(row.adapter) == digest)


def _adapters_swapped(bench: Bench) -> None:
    first, second = _find(bench, "a"), _find(bench, "b")
    first.adapter, second.adapter = second.adapter, first.adapter


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
    bench.ledger.take_adapter(AdapterNeed(1))


def _extras_leaked(bench: Bench) -> None:
    bench.ledger.take_adapter(AdapterNeed(0, 1))


def _size_wrong(bench: Bench) -> None:
    _find(bench, "b").size += 1


def _unpinned_miscounted(bench: Bench) -> None:
    bench.residency._slots._unpinned_bytes += 1


def _half_empty(bench: Bench) -> None:
    _find(bench, "b").grant = None


def _found_in_an_empty_slot(bench: Bench) -> None:
    row = _find(bench, "b")
    assert row.grant is not None
    bench.ledger.free_adapter(row.grant, -1)
    row.adapter, row.grant, row.size = None, None, 0


def _resident_without_a_slot(bench: Bench) -> None:
    bench.residency._versions[C.key].state = AdapterState.RESIDENT


def _fetching_unasked(bench: Bench) -> None:
    bench.residency._asking.clear()


def _asked_twice(bench: Bench) -> None:
    bench.residency._asking.append(C.key)


def _holder_of_nothing(bench: Bench) -> None:
    bench.residency._versions[C.key].holders.add(R2)


def _remembered(bench: Bench) -> None:
    version = bench.residency._versions[C.key]
    version.holders.clear()
    del bench.residency._held_by[R3]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_adapters_swapped, "not the one that its adapter"),
        (_pin_of_nobody, "its pins and their owners"),
        (_pin_of_another_version, "does not hold its version"),
        (_chunks_shared, "shares an adapter chunk"),
        (_chunks_leaked, "other adapter chunks in use"),
        (_extras_leaked, "other bytes of extras in use"),
        (_size_wrong, "other bytes than its chunks and extras"),
        (_unpinned_miscounted, "bytes without a pin"),
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
        bench.host.land(ref.key)
        bench.residency.poll()
        bench.residency.pin(owner)
    bench.residency.unpin(R2, -1)
    bench.residency.release(R2)
    bench.residency.hold(R3, C)
    bench.residency.check_integrity()
    damage(bench)
    with pytest.raises(SlotIntegrity, match=words):
        bench.residency.check_integrity()
