"""Setting and reading prices."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.registry import audit
from lorry.registry.authz import Caller
from lorry.registry.db import tables
from lorry.registry.db.base import utcnow
from lorry.registry.db.engine import Database
from lorry.registry.paging import Page, PageRequest, bad_token
from lorry.registry.prices import repository
from lorry.registry.prices.costs import Price, from_micros, price_text, to_micros
from lorry.registry.rights import require
from lorry.registry.tenants.repository import lock_tenant, open_tenant

_CURRENCY = re.compile(r"[A-Z]{3}")


class PriceService:
    """Prices are set by the platform's administrators; a tenant's readers read its own. Raises RoleTooLow, and
    ResourceNotFound for what is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, caller: Caller, tenant_name: str, price: Price) -> Price:
        """In place of one of the same day. Days that are past may get another price: what they cost is made from the
        ledger and the prices whenever somebody looks. Raises InvalidRequest, and FailedPrecondition for a second
        currency."""
        require(caller, "set prices")
        if not _CURRENCY.fullmatch(price.currency):
            raise InvalidRequest.field("currency", f"{price.currency[:20]!r} is none; use three letters as EUR")
        async with self._database.write() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            await lock_tenant(session, tenant)
            other = await repository.other_currency(session, tenant, price.currency, price.effective_on)
            if other is not None:
                raise FailedPrecondition(f"currency: the tenant's other prices are in {other}; use that")
            row = await repository.find(session, tenant, price.effective_on)
            if row is not None and _price(row) == price:
                return price
            if row is None:
                row = tables.Price(tenant_id=tenant, effective_on=price.effective_on)
                session.add(row)
            row.currency, row.created_at, row.created_by = price.currency, utcnow(), caller.key_id
            row.prompt_micros, row.output_micros = to_micros(price.prompt), to_micros(price.output)
            row.cached_micros = to_micros(price.cached_prompt)
            audit.append(
                session,
                tenant,
                caller,
                "price.set",
                f"tenants/{tenant_name}/prices/{price.effective_on}",
                currency=price.currency,
                prompt=price_text(price.prompt),
                cached_prompt=price_text(price.cached_prompt),
                output=price_text(price.output),
            )
            return _price(row)

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[Price]:
        """Newest first."""
        require(caller, "list prices")
        before = _day_of(page.after) if page.after else None
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            rows = [_price(row) for row in await repository.list_page(session, tenant, before, page.size)]
            return page.page(rows, lambda one: one.effective_on.isoformat())


def day_of(field: str, value: datetime | None) -> date:
    """The UTC day that begins at ``value``, today for None. Raises InvalidRequest for a time within one."""
    if value is None:
        return utcnow().date()
    moment = value.astimezone(UTC)
    if (moment.hour, moment.minute, moment.second, moment.microsecond) != (0, 0, 0, 0):
        raise InvalidRequest.field(field, f"{value.isoformat()} is within a day; use its beginning, UTC")
    return moment.date()


def _day_of(key: str) -> date:
    try:
        return date.fromisoformat(key)
    except ValueError:
        raise bad_token() from None


def _price(row: tables.Price) -> Price:
    return Price(
        row.effective_on,
        row.currency,
        from_micros(row.prompt_micros),
        from_micros(row.cached_micros),
        from_micros(row.output_micros),
    )


__all__ = ["PriceService", "day_of"]
