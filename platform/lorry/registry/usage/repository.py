"""SQL on usage events: append-only, and writing a ledger id again changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.db.tables import UsageEvent


async def append(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> None:
    insert: Any = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    await session.execute(insert(UsageEvent).on_conflict_do_nothing(index_elements=["ledger_id"]), list(rows))


async def totals(session: AsyncSession, tenant: VerifiedTenantId) -> tuple[int, int, int]:
    """(requests, prompt tokens, output tokens) of a tenant since ever."""
    query = select(
        func.count(),
        func.coalesce(func.sum(UsageEvent.prompt_tokens), 0),
        func.coalesce(func.sum(UsageEvent.output_tokens), 0),
    ).where(UsageEvent.tenant_id == tenant)
    requests, prompt, output = (await session.execute(query)).one()
    return int(requests), int(prompt), int(output)


__all__ = ["append", "totals"]
