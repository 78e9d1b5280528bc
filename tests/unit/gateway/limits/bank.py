"""Gateways with a real registry between them, and a clock that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from lorry.errors import Unavailable
from lorry.gateway.limits.tokens import TokenBudget
from lorry.gateway.limits.upkeep import TokenUpkeep
from lorry.registry import Caller, Registry
from lorry.registry.db.tables import QuotaLease, QuotaPeriod
from lorry.registry.leases.repository import expired
from lorry.registry.leases.service import LeaseService
from lorry.registry.leases.terms import LeaseAnswer, LeaseAsk
from lorry.registry.limits.bounds import LimitValues
from lorry.registry.limits.service import quota_etag
from lorry.registry.usage.service import Usage
from tests.unit.registry.usages import NOON, usage


class Line:
    """To the lease service; it can be cut before or after a call is carried out."""

    def __init__(self, leases: LeaseService) -> None:
        self.leases = leases
        self.lost: str | None = None
        self.calls = 0

    async def take(self, holder: str, asks: Sequence[LeaseAsk]) -> list[LeaseAnswer]:
        self.calls += 1
        if self.lost == "before":
            raise Unavailable("registry: away")
        answers = await self.leases.take(holder, asks)
        if self.lost == "after":
            raise Unavailable("registry: away")
        return answers

    async def settle(self, used: Mapping[str, int]) -> None:
        if self.lost == "before":
            raise Unavailable("registry: away")
        await self.leases.settle(used)
        if self.lost == "after":
            raise Unavailable("registry: away")


class Bank:
    """One tenant with a month's tokens."""

    def __init__(self, registry: Registry, tenant: Caller, quota_id: str, admin: Caller) -> None:
        self.registry, self.tenant, self.quota_id, self.admin = registry, tenant, quota_id, admin
        self.now = NOON.timestamp()
        self.rows = 0
        self.leases = LeaseService(registry.database, lambda: self.now)

    @classmethod
    async def of(cls, registry: Registry, admin: Caller, name: str, limit: int) -> Bank:
        await registry.tenants.create(admin, name)
        _, text = await registry.keys.create(admin, name, "owner", "owner")
        tenant = (await registry.snapshots().start()).authenticate(text, NOON.timestamp())
        quota = await registry.quotas.set(admin, name, None, LimitValues(tokens_per_month=limit))
        return cls(registry, tenant, quota.row.id, admin)

    def gateway(self, limit: int) -> Gateway:
        return Gateway(self, limit)

    async def limit(self, limit: int) -> None:
        row = await self.registry.quotas.set(
            self.admin, self.tenant.tenant_name, None, LimitValues(tokens_per_month=limit)
        )
        assert quota_etag(row.row)

    def row(self, tokens: int, charges: Any) -> Usage:
        self.rows += 1
        return usage(
            self.tenant.tenant,
            self.rows,
            ledger_id=f"us_{self.tenant.tenant}_{self.rows}"[-48:],
            prompt_tokens=0,
            output_tokens=tokens,
            charges=charges,
        )

    async def known(self) -> dict[str, int]:
        """By month: what the registry has as spent."""
        found: dict[str, int] = {}
        async with self.registry.database.read() as session:
            for table in (QuotaPeriod, QuotaLease):
                query = select(table.period, table.spent).where(table.quota_id == self.quota_id)
                for month, spent in await session.execute(query):
                    found[month] = found.get(month, 0) + spent
        return found

    async def lapsing(self) -> dict[str, int]:
        """By month: what expired leases were granted and have not spent, which the next that comes by frees."""
        found: dict[str, int] = {}
        async with self.registry.database.read() as session:
            query = select(QuotaLease).where(QuotaLease.quota_id == self.quota_id)
            for lease in (await session.execute(query)).scalars():
                if expired(lease, self.now):
                    found[lease.period] = found.get(lease.period, 0) + max(0, lease.granted - lease.spent)
        return found

    async def outstanding(self) -> int:
        async with self.registry.database.read() as session:
            query = select(QuotaLease).where(QuotaLease.quota_id == self.quota_id)
            return sum(max(lease.granted, lease.spent) for lease in (await session.execute(query)).scalars())


class Gateway:
    """Its tokens and its spool."""

    def __init__(self, bank: Bank, limit: int) -> None:
        self.bank = bank
        self.line = Line(bank.leases)
        self.tokens = TokenUpkeep(self.line, lambda: bank.now, lambda: bank.now)
        self.budget = self.tokens.budgets[bank.quota_id] = TokenBudget(bank.quota_id, limit)
        self.spool: list[Usage] = []

    async def drain(self) -> None:
        await self.bank.registry.usage.write(self.spool)
        self.spool = []


__all__ = ["Bank", "Gateway", "Line"]
