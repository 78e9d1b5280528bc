"""What must hold of a registry at any moment, whoever was killed: a change is there with its event and its entries in
the change log, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter

from sqlalchemy import Connection, select

from lorry.errors import Unavailable
from lorry.registry import Caller, Registry, Snapshot
from lorry.registry.db.tables import (
    AdapterVersion,
    AliasRevision,
    ApiKey,
    AuditEvent,
    ChangeLog,
    Grant,
    Pin,
    RegistryEpoch,
)

LOGGED: dict[str, Counter[str]] = {
    "tenant.create": Counter(tenant=1),
    "base.create": Counter(base_model=1),
    "adapter.create": Counter(adapter=1, grant=1),
    "version.create": Counter(adapter=1),
    "alias.set": Counter(adapter=1),
    "alias.canary": Counter(adapter=1),
    "alias.promote": Counter(adapter=1),
    "alias.rollback": Counter(adapter=1),
    "key.create": Counter(api_key=1),
    "key.rotate": Counter(api_key=2),
    "key.revoke": Counter(api_key=1),
    "grant.create": Counter(grant=1),
    "grant.revoke": Counter(grant=1),
    "pin.set": Counter(pin=1),
    "pin.clear": Counter(pin=1),
    "quota.set": Counter(quota=1),
}
"""Entries of the change log by kind that each event comes with."""


async def whole(registry: Registry) -> None:
    """Asks until the database answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                await registry.database.of_one_moment(_check)
                return
            except Unavailable:
                await asyncio.sleep(0.05)


def _check(connection: Connection) -> None:
    events = connection.execute(select(AuditEvent.action, AuditEvent.subject, AuditEvent.details)).all()
    by_action: dict[str, list[str]] = {}
    for action, subject, _ in events:
        by_action.setdefault(action, []).append(subject.rpartition("/")[2])
    wanted: Counter[str] = Counter()
    for action, subjects in by_action.items():
        for kind, count in LOGGED[action].items():
            wanted[kind] += count * len(subjects)
    log = connection.execute(select(ChangeLog.epoch, ChangeLog.kind)).all()
    assert Counter(kind for _, kind in log) == wanted, "an event without its change, or a change without its event"
    epoch = connection.execute(select(RegistryEpoch.epoch)).scalar_one()
    assert sorted({number for number, _ in log}) == list(range(1, epoch + 1)), "epochs are without gaps"

    rotated = [details["new_key"] for action, _, details in events if action == "key.rotate"]
    keys = connection.execute(select(ApiKey.id, ApiKey.revoked_at)).all()
    assert Counter(by_action["key.create"] + rotated) == Counter(key for key, _ in keys)
    ended = by_action.get("key.revoke", []) + by_action.get("key.rotate", [])
    assert Counter(ended) == Counter(key for key, revoked in keys if revoked is not None)

    grants = connection.execute(select(Grant.id, Grant.revoked_at)).all()
    assert len(grants) == len(by_action.get("grant.create", [])) + len(by_action.get("adapter.create", []))
    assert Counter(by_action.get("grant.revoke", [])) == Counter(one for one, revoked in grants if revoked is not None)

    moves = [details["revision"] for action, _, details in events if action.startswith("alias.")]
    revisions = connection.execute(select(AliasRevision.revision)).scalars()
    assert Counter(moves) == Counter(revisions)
    versions = connection.execute(select(AdapterVersion.number)).scalars()
    assert Counter(by_action.get("version.create", [])) == Counter(str(number) for number in versions)
    pins = len(connection.execute(select(Pin.number)).all())
    assert 0 <= len(by_action.get("pin.set", [])) - len(by_action.get("pin.clear", [])) == pins


async def chains(registry: Registry, admin: Caller, tenants: list[str]) -> int:
    """How many events there are; every tenant's chain of them is whole."""
    count = 0
    for tenant in tenants:
        found = await registry.audit.verify(admin, tenant)
        assert found.intact, found.problem
        count += found.events
    return count


def equal(live: Snapshot, fresh: Snapshot) -> None:
    """A snapshot that lived through all of it by deltas is the one of a process that starts now."""
    assert live.epoch == fresh.epoch
    for name in ("tenants", "keys", "bases", "adapters"):
        assert getattr(live.tables, name) == getattr(fresh.tables, name), name
    for name in ("grants", "pins", "quotas"):
        by_tenant = {key: value for key, value in getattr(live.tables, name).items() if value}
        assert by_tenant == getattr(fresh.tables, name), name
    assert (live.base_names, live.adapter_names) == (fresh.base_names, fresh.adapter_names)


__all__ = ["chains", "equal", "whole"]
