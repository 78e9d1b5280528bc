"""Reading usage: sums, and the ledger as a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from lorry.registry.authz import Caller
from lorry.registry.db.engine import Database
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant
from lorry.registry.usage import export, outcomes_repository, repository, sums_repository
from lorry.registry.usage.export import Format
from lorry.registry.usage.outcomes_repository import UnbilledSum
from lorry.registry.usage.queries import Dimension, Query, UsageSum

PAGE = 1000
"""Rows that an export has in memory at a time."""


class UsageReports:
    """A tenant's readers read its own, a platform administrator all. Raises RoleTooLow, and ResourceNotFound
    for a tenant that is not there or not the caller's to see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def query(
        self,
        caller: Caller,
        tenant_name: str,
        start: datetime | None,
        end: datetime | None,
        dimensions: Sequence[Dimension] = (),
        page_size: int = 0,
        page_token: str = "",
        model: str = "",
    ) -> Page[UsageSum]:
        """Sums over the hours from that of ``start`` to the one before that of ``end``, of ``model`` alone where it is
        not "". Raises InvalidRequest."""
        require(caller, "read usage")
        query = Query.of(start, end, dimensions, PageRequest.of(page_size, "").size, page_token, model)
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            found = await sums_repository.sums(session, tenant, query)
        shown = found[: query.size]
        return Page(shown, query.token_after(shown[-1]) if len(found) > query.size else "")

    async def unbilled(
        self,
        caller: Caller,
        tenant_name: str,
        start: datetime | None,
        end: datetime | None,
        dimensions: Sequence[Dimension] = (),
        model: str = "",
    ) -> list[UnbilledSum]:
        """Of the same period what the ledger has no row of, by reason. By day where ``dimensions`` has that, by hour
        where it has that and the period is no more than ``HOURS_MAX``. Minutes are of whole hours: all that they touch.
        ``model``: an adapter; of a base nothing is known. Raises as ``query``."""
        require(caller, "read usage")
        query = Query.of(start, end, dimensions, 1, "", model)
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            return await outcomes_repository.unbilled(session, tenant, query)

    async def export(
        self, caller: Caller, tenant_name: str, start: datetime | None, end: datetime | None, form: Format
    ) -> AsyncGenerator[bytes, None]:
        """The file in pieces of whole lines, at least one, be it empty; rows by the time they ended. A row that reaches
        the ledger while it runs is in it only if the export has not come to its time. Each page is read in a
        transaction of its own, so a reader may take its time."""
        require(caller, "export usage")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
        first, after = [export.header(form)], None
        while True:
            async with self._database.read() as session:
                rows = await repository.export_page(session, tenant, start, end, after, PAGE)
            for piece in export.chunks([*first, *(export.line(form, row) for row in rows)]):
                yield piece
            first = []
            if len(rows) < PAGE:
                return
            after = rows[-1].ended_at, rows[-1].ledger_id


__all__ = ["PAGE", "UsageReports"]
