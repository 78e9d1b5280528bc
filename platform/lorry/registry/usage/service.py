"""Writing the usage ledger."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.engine import Database
from lorry.registry.usage import repository


@dataclass(frozen=True, slots=True)
class Usage:
    """One request that ran. ``outcome`` is ``OK`` or the reason of the error that ended it; ``adapter`` and
    ``adapter_sha256`` are "" and ``version`` 0 for the base; times are aware."""

    ledger_id: str
    tenant_id: VerifiedTenantId
    key_id: str
    request_id: str
    adapter: str
    version: int
    adapter_sha256: str
    base_sha256: str
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    outcome: str
    started_at: datetime
    ended_at: datetime


class UsageLedger:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, rows: Sequence[Usage]) -> None:
        """Durable when it returns, in one transaction; rows whose ledger id is there already change nothing.
        Raises Unavailable, and then nothing was written."""
        if rows:
            async with self._database.write() as session:
                await repository.append(session, [asdict(row) for row in rows])

    async def totals(self, tenant: VerifiedTenantId) -> tuple[int, int, int]:
        """(requests, prompt tokens, output tokens)."""
        async with self._database.read() as session:
            return await repository.totals(session, tenant)


def new_ledger_id() -> str:
    return f"us_{uuid.uuid4().hex}"


__all__ = ["Usage", "UsageLedger", "new_ledger_id"]
