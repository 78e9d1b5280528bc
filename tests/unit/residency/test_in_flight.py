"""A slot that is emptied while a step reads it: its chunks and extras are nobody else's before that step is done."""

from __future__ import annotations

from lorry.ids import SlotId
from tests.unit.residency.bench import R1, Bench
from tests.unit.residency.memory_host import version

WIDE = version("wide", rank=16, extra_bytes=150)


def test_memory_of_a_lost_copy_waits_for_the_step_that_reads_it() -> None:
    bench = Bench(slots=2, chunks=4, extras=200)
    bench.use(R1, WIDE, at_step=5)
    bench.ledger.step_done(4)
    assert bench.residency.lose(WIDE.key) == SlotId(0)
    use = bench.ledger.use()
    assert (use.chunks_pending, use.chunks_free, use.extras_pending, use.extras_free) == (2, 2, 150, 50)
    assert bench.residency.slots() == []
    bench.residency.hold(R1, WIDE)
    assert bench.residency.pin(R1, force=True) is None
    bench.ledger.step_done(5)
    assert bench.residency.pin(R1) is not None
    bench.residency.check_integrity()
