"""Requests without a row in the ledger: refused, or ended before a token was handed out. Counted by hour and reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.engine import Database
from lorry.registry.usage import outcomes_repository as repository


class Outcome(NamedTuple):
    """``hour``: its beginning, of the hour that the request ended in. ``adapter_id``: "" for a base, for what was
    refused before its name was resolved, and where too many adapters were counted at a time. ``reason``: the error's,
    or CANCELLED."""

    tenant_id: VerifiedTenantId
    hour: datetime
    adapter_id: str
    reason: str


class OutcomeCounts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, writer: str, counts: Mapping[Outcome, int]) -> None:
        """``counts`` are what ``writer`` counted since ever, not since it wrote last: so writing again changes nothing,
        and a smaller count, which is an older one, changes nothing either. In one transaction. Raises Unavailable, and
        then it may be written or not."""
        if not counts:
            return
        async with self._database.write() as session:
            await repository.put_outcomes(
                session, [one._asdict() | {"writer": writer, "requests": counts[one]} for one in sorted(counts)]
            )


__all__ = ["Outcome", "OutcomeCounts"]
