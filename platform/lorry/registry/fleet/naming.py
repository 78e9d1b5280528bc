"""Names of what engines know by ids and digests alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from lorry.ids import AdapterKey, AdapterScope, TenantId
from lorry.registry.db.engine import Database
from lorry.registry.fleet import repository

_AT_ONCE = 200
"""Ids of one query."""


class LiveNames:
    """For services that have looked whether the caller may know."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def versions(self, keys: Collection[AdapterKey]) -> Mapping[AdapterKey, Sequence[str]]:
        """`tenants/{t}/adapters/{a}/versions/{n}`, the newest first: an adapter may have equal bytes in several."""
        found: dict[AdapterKey, list[str]] = {}
        async with self._database.read() as session:
            for part in _parts(sorted({key.scope for key in keys})):
                digests = {key.digest for key in keys if key.scope in part}
                for key, name in await repository.version_names(session, part, digests):
                    found.setdefault(key, []).append(name)
        return found

    async def tenants(self, ids: Collection[TenantId]) -> Mapping[TenantId, str]:
        """`tenants/{t}`."""
        found: dict[TenantId, str] = {}
        async with self._database.read() as session:
            for part in _parts(sorted(set(ids))):
                found |= {one: f"tenants/{name}" for one, name in await repository.tenant_names(session, part)}
        return found


def _parts(ids: list[AdapterScope] | list[TenantId]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield list(ids[start : start + _AT_ONCE])


__all__ = ["LiveNames"]
