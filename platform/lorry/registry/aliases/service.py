"""Moving aliases. Every change is one immutable revision, so that the past can be read and gone back to.

Going back is undoing: each ``roll_back`` undoes the newest change of what the alias points at that is not undone yet,
so a second one goes further back and never to what was just rolled back from. A canary is no such change, and what
lies before a deletion is out of reach. ``AliasRevision.origin`` is what remembers it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.registry import audit, changes
from lorry.registry.adapters import repository as adapters
from lorry.registry.aliases import repository
from lorry.registry.aliases.repository import SeenRollout, Target
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible
from lorry.registry.changes import Change, Kind
from lorry.registry.db.engine import Database
from lorry.registry.db.tables import Adapter, AliasRevision
from lorry.registry.etags import check_etag, etag_of
from lorry.registry.idempotency import RequestKey, remember, replay
from lorry.registry.names import AdapterName, check_part
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import open_tenant

PERMILLE_MAX = 999


def alias_etag(row: AliasRevision) -> str:
    """Of the alias as of that revision."""
    return etag_of("alias", row.adapter_id, row.name, row.revision)


@dataclass(frozen=True, slots=True)
class _Place:
    """An alias under its adapter's lock. ``now`` is None where it is not there; ``newest`` may be a deletion."""

    tenant: VerifiedTenantId
    adapter: Adapter
    name: AdapterName
    newest: AliasRevision | None

    @property
    def now(self) -> AliasRevision | None:
        return None if self.newest is None or self.newest.deleted else self.newest


_Changed = Callable[[AsyncSession, _Place], Awaitable[AliasRevision]]


class AliasService:
    """Answers the alias's newest revision. Raises RoleTooLow, ResourceNotFound for what is not there or not
    the caller's to see, StaleEtag where an ``etag`` that was given is not the current one, FailedPrecondition for a
    change in a deleted adapter.

    A target must be READY or DEPRECATED when it is set: ResourceNotFound, AdapterQuarantined or VersionNotReady. If it
    is quarantined later the alias stays as it is, and nothing is answered under it.

    A repeated ``request_id`` is answered the revision that the request was answered, whatever the alias is now.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, caller: Caller, name: AdapterName) -> AliasRevision:
        require(caller, "read aliases")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await adapters.open_adapter(session, tenant, name.adapter)
            row = await repository.find(session, tenant, adapter.id, name.alias)
            if row is None or row.deleted:
                raise not_visible()
            return row

    async def list(self, caller: Caller, name: AdapterName, page: PageRequest) -> Page[AliasRevision]:
        """By name, without deleted ones."""
        require(caller, "list aliases")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await adapters.open_adapter(session, tenant, name.adapter)
            return page.page(await repository.list_current(session, tenant, adapter.id, page), lambda row: row.name)

    async def revisions(self, caller: Caller, name: AdapterName, page: PageRequest) -> Page[AliasRevision]:
        """Newest first; a deleted alias has them too."""
        require(caller, "list aliases")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await adapters.open_adapter(session, tenant, name.adapter)
            if await repository.find(session, tenant, adapter.id, name.alias) is None:
                raise not_visible()
            rows = await repository.list_revisions(session, tenant, adapter.id, name.alias, page)
            return page.page(rows, lambda row: str(row.revision))

    async def rollouts(self, caller: Caller, name: AdapterName, page: PageRequest) -> Page[SeenRollout]:
        """Newest first; of one alias where ``name`` has one, a deleted one too."""
        require(caller, "list aliases")
        if name.alias:
            check_part("alias_id", name.alias)
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, name.tenant)
            adapter = await adapters.open_adapter(session, tenant, name.adapter)
            if name.alias and await repository.find(session, tenant, adapter.id, name.alias) is None:
                raise not_visible()
            rows = await repository.list_rollouts(session, tenant, adapter.id, name.alias, page)
            return page.page(rows, lambda seen: seen.row.id)

    async def set(
        self, caller: Caller, name: AdapterName, number: int, etag: str = "", request_id: str = ""
    ) -> AliasRevision:
        """Points the alias at a version, making it where it is not there, and ends a canary. No change where it does so
        already. Raises AlreadyExists for the etag ``new`` where it is there."""
        require(caller, "set aliases")
        check_part("alias_id", name.alias)
        key = RequestKey.of(caller, "SetAlias", request_id, str(name), number, etag)

        async def change(session: AsyncSession, place: _Place) -> AliasRevision:
            now = place.now
            check_etag(etag, None if now is None else alias_etag(now))
            await adapters.require_servable(session, place.adapter, number)
            if now is None:
                return await _write(session, caller, place, Target(number), "alias.set")
            if now.number == number and now.canary_number is None:
                return now
            await repository.end_rollout(session, place.tenant, now, "REPLACED")
            origin = _origin(now) if now.number == number else None
            return await _write(session, caller, place, Target(number, origin=origin), "alias.set")

        return await self._once(caller, name, key, change)

    async def set_canary(
        self, caller: Caller, name: AdapterName, number: int, permille: int, etag: str = "", request_id: str = ""
    ) -> AliasRevision:
        """Gives ``permille`` thousandths (1 to 999) of the alias's requests to version ``number``, in place of any
        other canary. No change where it is so already. Raises FailedPrecondition for what the alias points at."""
        require(caller, "set canaries")
        if not 0 < permille <= PERMILLE_MAX:
            raise InvalidRequest.field(
                "permille", f"{permille} is out of range; use 1 to {PERMILLE_MAX}, PromoteCanary for all of them"
            )
        key = RequestKey.of(caller, "SetCanary", request_id, str(name), number, permille, etag)

        async def change(session: AsyncSession, place: _Place) -> AliasRevision:
            now = _there(place, etag)
            await adapters.require_servable(session, place.adapter, number)
            if now.number == number:
                raise FailedPrecondition(f"version: {number} is what {name} points at; use another one for the canary")
            if (now.canary_number, now.canary_permille) == (number, permille):
                return now
            begins = now.canary_number != number
            if begins:
                await repository.end_rollout(session, place.tenant, now, "REPLACED")
            target = Target(now.number, number, permille, origin=_origin(now))
            row = await _write(session, caller, place, target, "alias.canary")
            if begins:
                await repository.start_rollout(session, place.tenant, row, caller.key_id)
            return row

        return await self._once(caller, name, key, change)

    async def promote(self, caller: Caller, name: AdapterName, etag: str = "", request_id: str = "") -> AliasRevision:
        """The canary becomes what the alias points at. Raises FailedPrecondition without one."""
        require(caller, "promote canaries")
        key = RequestKey.of(caller, "PromoteCanary", request_id, str(name), etag)

        async def change(session: AsyncSession, place: _Place) -> AliasRevision:
            now = _there(place, etag)
            if now.canary_number is None:
                raise FailedPrecondition(f"name: {name} has no canary; start one with SetCanary")
            await adapters.require_servable(session, place.adapter, now.canary_number)
            await repository.end_rollout(session, place.tenant, now, "PROMOTED")
            return await _write(session, caller, place, Target(now.canary_number), "alias.promote")

        return await self._once(caller, name, key, change)

    async def roll_back(self, caller: Caller, name: AdapterName, etag: str = "", request_id: str = "") -> AliasRevision:
        """Ends the canary; without one, points the alias at what it pointed at before (see the module). Raises
        FailedPrecondition where it pointed at nothing before, AdapterQuarantined or VersionNotReady where that version
        is not to be served any more."""
        require(caller, "roll aliases back")
        key = RequestKey.of(caller, "RollbackAlias", request_id, str(name), etag)

        async def change(session: AsyncSession, place: _Place) -> AliasRevision:
            now = _there(place, etag)
            if now.canary_number is not None:
                await repository.end_rollout(session, place.tenant, now, "ROLLED_BACK")
                return await _write(session, caller, place, Target(now.number, origin=_origin(now)), "alias.rollback")
            before = await repository.find_revision(session, place.tenant, now.adapter_id, now.name, _origin(now) - 1)
            if before is None or before.deleted:
                raise FailedPrecondition(
                    f"name: {name} points at version {now.number} and at nothing before it; use SetAlias or DeleteAlias"
                )
            await adapters.require_servable(session, place.adapter, before.number)
            return await _write(session, caller, place, Target(before.number, origin=_origin(before)), "alias.rollback")

        return await self._once(caller, name, key, change)

    async def delete(self, caller: Caller, name: AdapterName, etag: str = "", request_id: str = "") -> AliasRevision:
        """Takes the alias away, and its canary with it. It may be set again, and counts on."""
        require(caller, "delete aliases")
        key = RequestKey.of(caller, "DeleteAlias", request_id, str(name), etag)

        async def change(session: AsyncSession, place: _Place) -> AliasRevision:
            now = _there(place, etag)
            await repository.end_rollout(session, place.tenant, now, "REPLACED")
            target = Target(now.number, deleted=True, origin=_origin(now))
            return await _write(session, caller, place, target, "alias.delete")

        return await self._once(caller, name, key, change)

    async def _once(self, caller: Caller, name: AdapterName, key: RequestKey, change: _Changed) -> AliasRevision:
        async with self._database.write() as session:
            place = await self._lock(session, caller, name)
            if (known := await replay(session, key)) is not None:
                found = await repository.find_revision(session, place.tenant, place.adapter.id, name.alias, int(known))
                if found is None:
                    raise not_visible()
                return found
            row = await change(session, place)
            remember(session, key, str(row.revision))
            return row

    async def _lock(self, session: AsyncSession, caller: Caller, name: AdapterName) -> _Place:
        _, tenant = await open_tenant(session, caller, name.tenant)
        adapter = await repository.lock_adapter(session, tenant, name.adapter)
        if adapter.deleted_at is not None:
            raise adapters.went(f"name: {name.bare}", adapter)
        return _Place(tenant, adapter, name, await repository.find(session, tenant, adapter.id, name.alias))


def _there(place: _Place, etag: str) -> AliasRevision:
    now = place.now
    if now is None:
        raise not_visible()
    check_etag(etag, alias_etag(now))
    return now


def _origin(row: AliasRevision) -> int:
    return row.revision if row.origin is None else row.origin


async def _write(session: AsyncSession, caller: Caller, place: _Place, target: Target, action: str) -> AliasRevision:
    row = await repository.append(
        session, place.tenant, place.adapter, place.name.alias, place.newest, target, caller.key_id
    )
    details: dict[str, int] = {"revision": row.revision, "version": row.number}
    if place.now is not None:
        details["from_version"] = place.now.number
    if row.canary_number is not None:
        details |= {"canary_version": row.canary_number, "canary_permille": row.canary_permille}
    audit.append(session, place.tenant, caller, action, str(place.name), **details)
    await changes.record(session, Change(Kind.ADAPTER, place.adapter.id))
    return row


__all__ = ["PERMILLE_MAX", "AliasService", "alias_etag"]
