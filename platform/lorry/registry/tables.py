"""The tables of a snapshot, and how newer rows are put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from lorry.ids import TenantId
from lorry.registry.entries import (
    AdapterEntry,
    BaseModelEntry,
    EndedSession,
    GrantEntry,
    KeyEntry,
    LoginEntry,
    PinEntry,
    QuotaEntry,
    TenantEntry,
)
from lorry.registry.maps import PersistentMap
from lorry.registry.usertokens import REMEMBER_S


class _OfTenant(Protocol):
    @property
    def tenant(self) -> TenantId: ...


V = TypeVar("V")
T = TypeVar("T", bound=_OfTenant)
ByTenant = Mapping[str, Mapping[str, T]]
Replaced = Iterable[tuple[str, str, T | None]]
"""(tenant id, adapter id, the entry or None where there is none any more)."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Grants, pins and quotas lie by tenant, so listing one tenant's models reads no other's. A grant lies under its
    resource's id, a pin under its adapter's, a quota under its adapter's or "" for the whole tenant's. ``logins`` and
    ``sessions`` are those that changed or ended within ``REMEMBER_S`` before the newest of them."""

    tenants: Mapping[str, TenantEntry] = field(default_factory=PersistentMap)
    keys: Mapping[str, KeyEntry] = field(default_factory=PersistentMap)
    bases: Mapping[str, BaseModelEntry] = field(default_factory=PersistentMap)
    adapters: Mapping[str, AdapterEntry] = field(default_factory=PersistentMap)
    grants: ByTenant[GrantEntry] = field(default_factory=PersistentMap)
    pins: ByTenant[PinEntry] = field(default_factory=PersistentMap)
    quotas: ByTenant[QuotaEntry] = field(default_factory=PersistentMap)
    logins: Mapping[str, LoginEntry] = field(default_factory=PersistentMap)
    sessions: Mapping[str, EndedSession] = field(default_factory=PersistentMap)


class Rows(NamedTuple):
    """Newer rows of each table."""

    tenants: Iterable[TenantEntry] = ()
    keys: Iterable[KeyEntry] = ()
    bases: Sequence[BaseModelEntry] = ()
    adapters: Sequence[AdapterEntry] = ()
    grants: Iterable[GrantEntry] = ()
    pins: Replaced[PinEntry] = ()
    quotas: Replaced[QuotaEntry] = ()
    logins: Sequence[LoginEntry] = ()
    sessions: Sequence[EndedSession] = ()


def put(old: Tables, rows: Rows) -> Tables:
    """``old`` with ``rows`` in it, at a cost of the rows alone."""
    return Tables(
        _rows(old.tenants, ((row.id, row) for row in rows.tenants)),
        _rows(old.keys, ((row.key_id, row) for row in rows.keys)),
        _rows(old.bases, ((row.id, row) for row in rows.bases)),
        _rows(old.adapters, ((row.id, row) for row in rows.adapters)),
        _by_tenant(old.grants, ((row.tenant, row.resource, row) for row in rows.grants)),
        _by_tenant(old.pins, rows.pins),
        _by_tenant(old.quotas, rows.quotas),
        _recent(old.logins, {row.id: row for row in rows.logins}, lambda row: row.changed_at),
        _recent(old.sessions, {row.id: row for row in rows.sessions}, lambda row: row.ended_at),
    )


def _rows(old: Mapping[str, V], pairs: Iterable[tuple[str, V]]) -> Mapping[str, V]:
    return PersistentMap.of(old).updated(pairs)


def _recent(old: Mapping[str, V], rows: Mapping[str, V], at: Callable[[V], float]) -> Mapping[str, V]:
    """With ``rows``, and without what is ``REMEMBER_S`` older than the newest of them."""
    if not rows:
        return old
    before = max(map(at, rows.values())) - REMEMBER_S
    return PersistentMap.of(old).updated(rows.items(), [key for key, row in old.items() if at(row) < before])


def _by_tenant(old: ByTenant[T], rows: Replaced[T]) -> ByTenant[T]:
    changed: dict[str, dict[str, T | None]] = {}
    for tenant, key, row in rows:
        changed.setdefault(tenant, {})[key] = row
    return PersistentMap.of(old).updated(
        (
            tenant,
            PersistentMap.of(old.get(tenant, _NONE)).updated(
                ((key, row) for key, row in found.items() if row is not None),
                [key for key, row in found.items() if row is None],
            ),
        )
        for tenant, found in changed.items()
    )


_NONE: Mapping[str, T] = PersistentMap()  # type: ignore[valid-type]  # empty, so of any type

__all__ = ["ByTenant", "Replaced", "Rows", "Tables", "put"]
