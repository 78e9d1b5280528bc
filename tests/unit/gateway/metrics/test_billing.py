"""A bill is counted once, where the ledger will keep it, and in the ledger's own buckets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lorry.errors import InternalError
from lorry.gateway import MemoryUsage, UsageRow
from lorry.gateway.metrics import CountedUsage
from lorry.registry.usage.sums import Sums
from tests.unit.gateway.test_usage import ROW

FULL = replace(ROW, outcome="OK", prompt_tokens=5, cached_prompt_tokens=2, output_tokens=8, ttft_s=0.3, decode_s=0.7)


class Slow(MemoryUsage):
    """Writes when it is told to; the row is on its way from the first moment."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def record(self, row: UsageRow) -> None:
        self.rows.append(row)
        await self.go.wait()


class Broken(MemoryUsage):
    async def record(self, row: UsageRow) -> None:
        raise InternalError("usage cannot be written")


async def test_rows_are_counted_as_rollups_count_them() -> None:
    usage, sums = CountedUsage(MemoryUsage(), 5), Sums()
    rows = [
        FULL,
        replace(FULL, ledger_id="us_b", output_tokens=1, ttft_s=70.0, ended_at=FULL.started_at + 3000.0),
        replace(FULL, ledger_id="us_c", outcome="CANCELLED", ttft_s=None, decode_s=None, queue_s=0.2),
    ]
    for row in rows:
        await usage.record(row)
        times = {name: datetime.fromtimestamp(getattr(row, name), UTC) for name in ("started_at", "ended_at")}
        sums.count(replace(row, **times))  # type: ignore[arg-type]  # as the ledger's row has them
    assert usage.outcomes == {"OK": 2, "CANCELLED": 1}
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (15, 6, 17)
    assert (usage.ttft.counts, usage.inter_token.counts, usage.duration.counts) == (
        sums.ttft,
        sums.inter_token,
        sums.duration,
    )
    assert usage.queue.spread().count == sum(row.queue_s is not None for row in rows)


async def test_a_row_whose_writing_nobody_waits_for_counts_and_its_second_does_not() -> None:
    sink = Slow()
    usage = CountedUsage(sink, 5)
    writing = asyncio.create_task(usage.record(FULL))
    await asyncio.sleep(0)
    assert usage.outcomes == {}, "it is not durable"
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    usage.post(replace(FULL, outcome="CANCELLED", output_tokens=4))
    assert len(sink.rows) == 2, "the ledger keeps the first of one id"
    assert usage.outcomes == {"OK": 1}
    assert usage.output_tokens == 8
    usage.post(replace(FULL, ledger_id="us_other", outcome="CANCELLED"))
    assert usage.outcomes == {"OK": 1, "CANCELLED": 1}


async def test_a_row_that_cannot_be_written_does_not_count() -> None:
    usage = CountedUsage(Broken(), 5)
    with pytest.raises(InternalError):
        await usage.record(FULL)
    assert usage.outcomes == {}
    usage.post(replace(FULL, outcome="INTERNAL", output_tokens=3))
    assert (usage.outcomes, usage.output_tokens) == ({"INTERNAL": 1}, 3)
