"""A tenant's users: who may log in, as what, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import FailedPrecondition, InvalidRequest
from lorry.ids import TenantId
from lorry.registry import audit, changes
from lorry.registry.accounts import repository, sessions
from lorry.registry.accounts.model import Login, SessionView
from lorry.registry.accounts.passwords import PasswordParams, Passwords, check_password, new_password
from lorry.registry.accounts.repository import Found
from lorry.registry.accounts.throttle import Count, username_subject
from lorry.registry.authz import Caller, VerifiedTenantId, not_visible, verify_tenant
from lorry.registry.changes import Change, Kind
from lorry.registry.db.conflicts import unique
from lorry.registry.db.engine import Database
from lorry.registry.etags import check_etag, etag_of
from lorry.registry.keys import Peppers
from lorry.registry.names import check_part
from lorry.registry.paging import Page, PageRequest
from lorry.registry.rights import require
from lorry.registry.tenants.repository import find_principal, insert_principal, open_tenant
from lorry.registry.tenants.roles import check_role

IDLE = timedelta(hours=12)
"""A session that nobody used for so long has ended."""
LIFE = timedelta(days=7)
"""And however much it was used, it ends then."""
UPDATABLE = ("role", "disabled")


class Users:
    """An owner looks after its own tenant's users, an administrator after everybody's. A user is named as ``anna``
    within its tenant, or whole as ``anna@acme``. Raises RoleTooLow by ``rights``, and ResourceNotFound for what is not
    there or not the caller's to see. ``clock``: Unix seconds."""

    def __init__(
        self,
        database: Database,
        peppers: Peppers,
        params: PasswordParams | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._peppers = peppers
        self._passwords = Passwords(params or PasswordParams())
        self._clock = clock

    async def create(
        self, caller: Caller, tenant_name: str, username: str, role: str, password: str | None = None
    ) -> tuple[Login, str | None]:
        """Makes a user, and its principal where that is new. Without a password one is made and answered, this once.
        Raises AlreadyExists, and InvalidRequest for a role that its principal does not have."""
        require(caller, "create users")
        name = check_part("user_id", _within(username, tenant_name))
        check_role(caller, tenant_name, role)
        text, password_hash = await self._new_hash(password, name)
        async with self._database.write() as session:
            tenant_row, tenant = await open_tenant(session, caller, tenant_name)
            principal = await find_principal(session, tenant, name)
            if principal is None:
                principal = await insert_principal(session, tenant, name, role)
            elif principal.role != role:
                raise InvalidRequest.field(
                    "role", f"principal {name!r} is {principal.role!r} already; create it as that, then change it"
                )
            async with unique(session, f"user_id: {name!r} is taken; choose another"):
                row = await repository.insert_login(session, tenant, principal, password_hash, caller.key_id)
            made = self._login(Found(row, tenant_row), None)
            audit.append(session, tenant, caller, "user.create", made.resource, role=role)
            return made, None if password is not None else text

    async def list(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[Login]:
        """By name."""
        require(caller, "list users")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            found = page.page(await repository.list_logins(session, tenant, page), lambda one: one.login.principal.name)
            counts = await repository.read_counts(session, [self._subject(one) for one in found.rows])
            return Page([self._login(one, counts.get(self._subject(one))) for one in found.rows], found.next_token)

    async def get(self, caller: Caller, tenant_name: str, username: str) -> Login:
        require(caller, "list users")
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            found = await repository.find_by_username(session, _within(username, tenant_name), tenant_name)
            if found is None or found.tenant.id != tenant:
                raise not_visible()
            return self._login(found, await self._count(session, found))

    async def update(
        self,
        caller: Caller,
        tenant_name: str,
        username: str,
        fields: Collection[str],
        *,
        role: str = "",
        disabled: bool = False,
        etag: str = "",
    ) -> Login:
        """Sets those of ``role`` and ``disabled`` that ``fields`` names. Both hold at every gateway as soon as a
        revoked key's end does; a role is the principal's, so its API keys have it too. Who is disabled is logged out;
        who is enabled again is not locked any more. Raises StaleEtag, and FailedPrecondition for one's own user."""
        require(caller, "change users")
        unknown = sorted(set(fields) - set(UPDATABLE))
        if unknown or not fields:
            raise InvalidRequest.field("update_mask", f"{unknown} cannot be set; use {', '.join(UPDATABLE)}")
        if "role" in fields:
            check_role(caller, tenant_name, role)
        now = sessions.moment(self._clock())
        async with self._database.write() as session:
            tenant, found = await self._open(session, caller, tenant_name, username)
            row = found.login
            done: Sequence[Change] = ()
            check_etag(etag, _etag(found))
            if caller.key_id == f"user/{row.id}":
                raise FailedPrecondition("user: it is your own; ask another owner or an administrator to change it")
            said: dict[str, object] = {}
            if "role" in fields and row.principal.role != role:
                said["role"] = row.principal.role = role
                keys = await repository.active_keys(session, tenant, row.principal)
                done = [Change(Kind.API_KEY, key) for key in keys]
            if "disabled" in fields and row.disabled != disabled:
                row.disabled = said["disabled"] = disabled
                done = [*done, *await self._log_out(session, row.id, now)]
            if "disabled" in fields and not disabled:
                await self._unlock(session, found)
            count = await self._count(session, found)
            if said:
                row.revision, row.changed_at = row.revision + 1, now
                audit.append(session, tenant, caller, "user.update", self._login(found, None).resource, **said)
                await changes.record(session, Change(Kind.LOGIN, row.id), *done)
            return self._login(found, count)

    async def set_role(self, caller: Caller, tenant_name: str, username: str, role: str) -> Login:
        return await self.update(caller, tenant_name, username, ["role"], role=role)

    async def disable(self, caller: Caller, tenant_name: str, username: str) -> Login:
        return await self.update(caller, tenant_name, username, ["disabled"], disabled=True)

    async def enable(self, caller: Caller, tenant_name: str, username: str) -> Login:
        return await self.update(caller, tenant_name, username, ["disabled"], disabled=False)

    async def set_password(
        self, caller: Caller, tenant_name: str, username: str, password: str | None = None
    ) -> tuple[Login, str | None]:
        """In place of what it was, which logs the user out everywhere and ends a lock. As ``create`` for the text."""
        require(caller, "set passwords")
        text, password_hash = await self._new_hash(password, _within(username, tenant_name))
        now = sessions.moment(self._clock())
        async with self._database.write() as session:
            tenant, found = await self._open(session, caller, tenant_name, username)
            row = found.login
            row.password_hash, row.revision = password_hash, row.revision + 1
            await self._unlock(session, found)
            made = self._login(found, None)
            done = await self._log_out(session, row.id, now)
            audit.append(session, tenant, caller, "user.password", made.resource)
            await changes.record(session, *done)
            return made, None if password is not None else text

    async def sessions(self, caller: Caller, tenant_name: str, page: PageRequest) -> Page[SessionView]:
        """Those that live, by id."""
        require(caller, "list sessions")
        now = sessions.moment(self._clock())
        async with self._database.read() as session:
            _, tenant = await open_tenant(session, caller, tenant_name)
            rows = await sessions.list_sessions(session, tenant, page, now, IDLE)
            views = [
                SessionView(
                    id=row.id,
                    tenant_name=tenant_name,
                    username=_username(found),
                    principal=found.login.principal.name,
                    agent=row.agent,
                    address=row.address,
                    created_at=row.created_at.timestamp(),
                    seen_at=row.seen_at.timestamp(),
                    expires_at=row.expires_at.timestamp(),
                )
                for row, found in rows
            ]
            return page.page(views, lambda view: view.id)

    async def end_session(self, caller: Caller, session_id: str, tenant_name: str = "") -> None:
        """Idempotent. What acts for it ends as with a revoked key. ``tenant_name``: where given, the session's."""
        require(caller, "end sessions")
        now = sessions.moment(self._clock())
        async with self._database.write() as session:
            found = await sessions.find_session(session, session_id, lock=True)
            if found is None or tenant_name not in ("", found[1].tenant.name):
                raise not_visible()
            row, whose = found
            tenant = verify_tenant(caller, TenantId(whose.tenant.id))
            if row.ended_at is not None:
                return
            row.ended_at = now
            subject = f"tenants/{whose.tenant.name}/sessions/{row.id}"
            audit.append(session, tenant, caller, "session.end", subject, user=whose.login.principal.name)
            await changes.record(session, Change(Kind.SESSION, row.id))

    async def _open(
        self, session: AsyncSession, caller: Caller, tenant_name: str, username: str
    ) -> tuple[VerifiedTenantId, Found]:
        _, tenant = await open_tenant(session, caller, tenant_name)
        found = await repository.lock_login(session, tenant, _within(username, tenant_name))
        if found is None:
            raise not_visible()
        return tenant, found

    async def _new_hash(self, password: str | None, name: str) -> tuple[str, str]:
        text = new_password() if password is None else check_password("password", password, name)
        async with self._passwords.turn():
            return text, await self._passwords.hash(text)

    async def _log_out(
        self, session: AsyncSession, login_id: str, now: datetime, *, but: str = "", newest: int = 0
    ) -> Sequence[Change]:
        ended = await sessions.end_sessions(session, login_id, now, but=but, newest=newest)
        return [Change(Kind.SESSION, session_id) for session_id in ended]

    async def _unlock(self, session: AsyncSession, found: Found) -> None:
        subject = self._subject(found)
        if subject in await repository.read_counts(session, [subject]):
            now = self._clock()
            await repository.lock_counts(session, [subject], now)
            await repository.put_counts(session, {subject: Count(forget_at=now)})

    async def _count(self, session: AsyncSession, found: Found) -> Count | None:
        subject = self._subject(found)
        return (await repository.read_counts(session, [subject])).get(subject)

    def _subject(self, found: Found) -> str:
        return username_subject(self._peppers, _username(found))

    def _login(self, found: Found, count: Count | None) -> Login:
        row, tenant = found
        locked = count is not None and count.wait_s(self._clock()) > 0
        return Login(
            id=row.id,
            username=_username(found),
            # Its own tenant's id: who got here had the password, or may act on that tenant.
            tenant=verify_tenant(_Own(TenantId(tenant.id)), TenantId(tenant.id)),
            tenant_name=tenant.name,
            principal=row.principal.name,
            role=row.principal.role,
            disabled=row.disabled,
            locked_until=count.locked_until if count is not None and locked else None,
            last_login=row.last_login_at.timestamp() if row.last_login_at else None,
            created_at=row.created_at.timestamp(),
            etag=_etag(found),
        )


class _Own:
    """A user is there for its own tenant."""

    role = ""

    def __init__(self, tenant: TenantId) -> None:
        self.tenant = tenant


def split_username(text: str) -> tuple[str, str]:
    """(principal, tenant name) of what is typed to log in; of what is none, names that nobody has."""
    name, found, tenant = text.strip().lower()[:200].partition("@")
    return (name, tenant) if found else ("", "")


def _within(username: str, tenant_name: str) -> str:
    return username.removesuffix(f"@{tenant_name}")


def _username(found: Found) -> str:
    return f"{found.login.principal.name}@{found.tenant.name}"


def _etag(found: Found) -> str:
    return etag_of("user", found.login.id, found.login.revision)


__all__ = ["IDLE", "LIFE", "UPDATABLE", "Users", "split_username"]
