"""Counts bills where they are made, so that metrics and ledger cannot differ."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from lorry.gateway.metrics.tenants import LargestTenants
from lorry.gateway.ports import UsageRow, UsageSink
from lorry.histogram import Histogram
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S

_KEPT = 1024


class CountedUsage:
    """A UsageSink that counts each row that the ledger will keep, once, and passes it on.

    A request may make two rows of one ledger id, of which the ledger keeps the first: its end was being written when
    its client went away. A row that could not be written is not counted.
    """

    def __init__(self, sink: UsageSink, most_tenants: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._left: dict[str, None] = {}
        """Ledger ids of rows that are on their way and whose requests may make another."""
        self.outcomes: Counter[str] = Counter()
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.queue = Histogram(TTFT_S)
        self.ttft = Histogram(TTFT_S)
        self.inter_token = Histogram(INTER_TOKEN_S)
        self.duration = Histogram(DURATION_S)
        self.tenants = LargestTenants(most_tenants, clock)

    async def record(self, row: UsageRow) -> None:
        try:
            await self._sink.record(row)
        except asyncio.CancelledError:
            self._left[row.ledger_id] = None
            while len(self._left) > _KEPT:
                del self._left[next(iter(self._left))]
            self._count(row)
            raise
        self._count(row)

    def post(self, row: UsageRow) -> None:
        self._sink.post(row)
        if row.ledger_id in self._left:
            del self._left[row.ledger_id]
        else:
            self._count(row)

    def _count(self, row: UsageRow) -> None:
        """As ``lorry.registry.usage.sums.Sums.count``."""
        self.outcomes[row.outcome] += 1
        self.prompt_tokens += row.prompt_tokens
        self.cached_tokens += row.cached_prompt_tokens
        self.output_tokens += row.output_tokens
        self.tenants.bill(row.tenant, row.prompt_tokens, row.cached_prompt_tokens, row.output_tokens)
        if row.queue_s is not None:
            self.queue.observe(row.queue_s)
        if row.ttft_s is not None:
            self.ttft.observe(row.ttft_s)
        if row.decode_s is not None and row.output_tokens > 1:
            self.inter_token.observe(row.decode_s / (row.output_tokens - 1))
        self.duration.observe(row.ended_at - row.started_at)


__all__ = ["CountedUsage"]
