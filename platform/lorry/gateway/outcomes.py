"""Requests of known callers that have no bill, counted here and written to the registry every few seconds."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from lorry.errors import LorryError
from lorry.gateway.ports import OutcomeSink
from lorry.registry.authz import VerifiedTenantId
from lorry.registry.usage.outcomes import Outcome

KEYS = 10_000
"""Counts at a time; adapters beyond are counted without their id, so tenants and reasons alone bound the rest."""
FLUSH_S = 2.0
CLOSE_S = 5.0
"""What the registry has to take the last counts in."""
_HOUR_S = 3600
_log = logging.getLogger(__name__)


class _Key(NamedTuple):
    """``hour``: since 1970."""

    tenant: VerifiedTenantId
    hour: int
    adapter_id: str
    reason: str


class Outcomes:
    """Belongs to one event loop. What was counted since the last ``flush`` is lost with the process; ``close`` writes
    it. A count is of this process since it began and of one hour, so it may be written twice; it is forgotten once
    that hour and the next are over and the registry has it."""

    def __init__(self, sink: OutcomeSink | None, now: Callable[[], float], keys: int = KEYS) -> None:
        """``sink`` None: nothing is counted. ``now``: Unix seconds."""
        self._sink = sink
        self._now = now
        self._keys = keys
        self._writer = f"gw_{uuid.uuid4().hex}"
        self._counts: dict[_Key, int] = {}
        self._written: dict[_Key, int] = {}

    def add(self, tenant: VerifiedTenantId, adapter_id: str, reason: str) -> None:
        if self._sink is None:
            return
        key = _Key(tenant, int(self._now() // _HOUR_S), adapter_id, reason)
        if key not in self._counts and len(self._counts) >= self._keys:
            key = key._replace(adapter_id="")
        self._counts[key] = self._counts.get(key, 0) + 1

    async def flush(self) -> None:
        """Raises Unavailable, and then a later one writes them."""
        if self._sink is None:
            return
        due = {key: count for key, count in self._counts.items() if count != self._written.get(key)}
        if due:
            await self._sink.write(self._writer, {_outcome(key): count for key, count in due.items()})
            self._written |= due
        hour = int(self._now() // _HOUR_S)
        # The hour before stays: a clock that is set back a little must not begin its counts at 1.
        for key in [key for key, count in self._written.items() if key.hour < hour - 1 and count == self._counts[key]]:
            del self._counts[key], self._written[key]

    async def run(self, seconds: float = FLUSH_S) -> None:
        """Flushes until cancelled, whatever one flush meets."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.flush()
            except LorryError as error:
                _log.warning("counts of requests without a bill wait for the registry: %s", error)
            except Exception:  # counting must outlive whatever one round meets
                _log.exception("counts of requests without a bill wait")

    async def close(self) -> None:
        """Writes what is left, within ``CLOSE_S``. Never raises."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.flush()
        except Exception as error:  # the process goes down whatever it is
            lost = sum(count - self._written.get(key, 0) for key, count in self._counts.items())
            _log.warning("counts of %d requests without a bill are lost: %s", lost, str(error) or type(error).__name__)


def _outcome(key: _Key) -> Outcome:
    return Outcome(key.tenant, datetime.fromtimestamp(key.hour * _HOUR_S, UTC), key.adapter_id, key.reason)


__all__ = ["CLOSE_S", "FLUSH_S", "KEYS", "Outcomes"]
