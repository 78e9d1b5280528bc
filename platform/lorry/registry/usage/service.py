"""Writing the usage ledger, and what is derived from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from lorry.ids import TenantId
from lorry.registry.authz import Role, VerifiedTenantId, verify_tenant
from lorry.registry.db.engine import Database
from lorry.registry.leases import repository as leases
from lorry.registry.leases.terms import Charge
from lorry.registry.usage import repository
from lorry.registry.usage.events import Usage, new_ledger_id
from lorry.registry.usage.sums import Group, Sums, sums_of

PAGE = 1000
"""Rows that are in memory at a time while sums are made anew."""


class _Summed(NamedTuple):
    """A tenant is there for its own rows."""

    tenant: TenantId
    role: str = Role.MEMBER


class UsageLedger:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, rows: Sequence[Usage]) -> None:
        """Durable when it returns, in one transaction with the sums by hour, the keys' last use and what is charged to
        quotas; rows whose ledger id is there already change nothing. Raises Unavailable, and then nothing was
        written."""
        if not rows:
            return
        async with self._database.write() as session:
            made = await repository.append(session, rows)
            if not made:
                return
            unnamed = {row.base_sha256 for row in made if not row.adapter}
            await repository.add_sums(session, sums_of(made, await repository.base_names(session, unnamed)))
            used: dict[str, datetime] = {}
            for row in made:
                used[row.key_id] = max(row.ended_at, used.get(row.key_id, row.ended_at))
            await repository.touch_keys(session, used)
            charged: Counter[Charge] = Counter()
            for row in made:
                for charge in row.charges:
                    charged[charge] += row.prompt_tokens + row.output_tokens
            await leases.charge(session, charged)

    async def reconcile(self) -> int:
        """Adds up anew what rows of the ledger are in no sums: those that a release before 0003 wrote, be it while this
        one is being rolled out. Answers the number of tenants. It counts the whole ledger: run it after a migration."""
        async with self._database.read() as session:
            uneven = await repository.uneven(session)
        for tenant in uneven:
            await self._add_up(verify_tenant(_Summed(TenantId(tenant)), TenantId(tenant)))
        return len(uneven)

    async def _add_up(self, tenant: VerifiedTenantId) -> None:
        async with self._database.write() as session:
            await repository.drop_sums(session, tenant)
            sums: dict[Group, Sums] = {}
            after: tuple[datetime, str] | None = None
            while rows := await repository.export_page(session, tenant, None, None, after, PAGE):
                unnamed = {row.base_sha256 for row in rows if not row.adapter}
                for group, more in sums_of(rows, await repository.base_names(session, unnamed)).items():
                    sums[group] = sums.get(group, Sums()).plus(more)
                after = rows[-1].ended_at, rows[-1].ledger_id
                session.expunge_all()
            await repository.add_sums(session, sums)

    async def totals(self, tenant: VerifiedTenantId) -> tuple[int, int, int]:
        """(requests, prompt tokens, output tokens)."""
        async with self._database.read() as session:
            return await repository.totals(session, tenant)


__all__ = ["Usage", "UsageLedger", "new_ledger_id"]
