"""Logging in and what follows from it: web sessions, and tokens to act with."""

from __future__ import annotations

import hmac
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import FailedPrecondition, TooManyLogins, Unauthenticated
from lorry.registry import audit, changes
from lorry.registry.accounts import repository, sessions
from lorry.registry.accounts.cookies import csrf_of, new_cookie, session_id_of
from lorry.registry.accounts.model import Login, WebSession
from lorry.registry.accounts.passwords import check_password
from lorry.registry.accounts.repository import Found
from lorry.registry.accounts.throttle import ADDRESS, USERNAME, Count, address_subject, network_of, username_subject
from lorry.registry.accounts.users import IDLE, LIFE, Users, split_username
from lorry.registry.authz import Caller, Role
from lorry.registry.changes import Change, Kind
from lorry.registry.db import tables
from lorry.registry.usertokens import TOKEN_S, Claims, make_token

SEEN_EVERY = timedelta(minutes=1)
"""A session's last use is written so often at most."""
SESSIONS_MAX = 20
"""Of one user: the next login ends the oldest."""
_AGENT_MAX = 200
_WRONG = "login: no such user, or another password; type both again as `name@tenant` and the password"


class Accounts(Users):
    """What a web app needs to know who is there. Any number of processes agree, since all of it lies in the database.

    ``now`` is Unix seconds. Every method raises Unavailable where the database does not answer.
    """

    async def log_in(
        self, username: str, password: str, *, agent: str, address: str, now: float
    ) -> tuple[str, WebSession]:
        """The browser's text, shown this once, and the session. ``username`` is ``anna@acme``.

        Raises Unauthenticated, in equal words and after equal work, for a user that is not there, another password, a
        disabled user and a suspended tenant; TooManyLogins while too many attempts of the username or from the address
        have failed, whether or not there is such a user; Overloaded where too many log in at once.
        """
        name, tenant_name = split_username(username)
        subjects = {
            username_subject(self._peppers, username): USERNAME,
            address_subject(self._peppers, address): ADDRESS,
        }
        async with self._passwords.turn():
            async with self._database.write() as session:
                counts = await repository.lock_counts(session, list(subjects), now)
                _refuse_locked(counts, now)
                counts = {subject: counts[subject].attempted(rule, now) for subject, rule in subjects.items()}
                await repository.put_counts(session, counts)
                found = await repository.find_by_username(session, name, tenant_name)
            known = await self._passwords.verify(found.login.password_hash if found else None, password)
            if found is None or not known or found.login.disabled or found.tenant.suspended:
                raise Unauthenticated(_WRONG)
            old = found.login.password_hash
            newer = await self._passwords.hash(password) if self._passwords.outdated(old) else None
        return await self._begin(found, newer, agent, address, now)

    async def _begin(
        self, shown: Found, newer: str | None, agent: str, address: str, now: float
    ) -> tuple[str, WebSession]:
        """The password was right a moment ago: it must be the same one still."""
        cookie, time = new_cookie(self._peppers), sessions.moment(now)
        async with self._database.write() as session:
            found = await repository.lock_by_id(session, shown.login.id)
            if found is None or found.login.revision != shown.login.revision or found.tenant.suspended:
                raise Unauthenticated(_WRONG)
            subject, at = self._subject(found), address_subject(self._peppers, address)
            counts = await repository.lock_counts(session, [subject, at], now)
            failed = counts[subject].failures - 1
            cleared = {subject: Count(forget_at=now), at: counts[at].succeeded(ADDRESS)}
            await repository.put_counts(session, cleared)
            found.login.last_login_at = time
            if newer is not None:
                found.login.password_hash = newer
            ended = await self._log_out(session, found.login.id, time, newest=SESSIONS_MAX - 1)
            agent, address = _plain(agent)[:_AGENT_MAX], _plain(address)[:64]
            row = await sessions.insert_session(session, found.login, cookie, agent, address, time, time + LIFE)
            await sessions.forget_sessions(session, time)
            await repository.forget_counts(session, now)
            login = self._login(found, None)
            audit.append(
                session,
                login.tenant,
                _caller(login),
                "user.login",
                login.resource,
                address=network_of(address),
                failed_before=max(0, failed),
            )
            await changes.record(session, *ended)
            return cookie.text, _session(row, login, cookie.text)

    async def resume(self, text: str, now: float) -> WebSession | None:
        """None for what is unknown, ended, expired or idle for too long, for a disabled user, and while the tenant is
        suspended. The user is as it is now. The MAC is computed and compared in constant time whether or not there is
        such a session."""
        async with self._database.read() as session:
            found = await self._known(session, text)
        if found is None:
            return None
        row, whose = found
        time = sessions.moment(now)
        live = row.ended_at is None and time < row.expires_at and time - row.seen_at < IDLE
        if not live or whose.login.disabled or whose.tenant.suspended:
            return None
        if time - row.seen_at >= SEEN_EVERY:
            async with self._database.write() as session:
                await sessions.touch_session(session, row.id, time)
        return _session(row, self._login(whose, None), text)

    async def log_out(self, text: str) -> None:
        """Ends the session, and what acts for it as with a revoked key. Nothing for a text that is of no session."""
        async with self._database.write() as session:
            found = await self._known(session, text, lock=True)
            if found is None or found[0].ended_at is not None:
                return
            row, login = found[0], self._login(found[1], None)
            row.ended_at = sessions.moment(self._clock())
            audit.append(session, login.tenant, _caller(login), "user.logout", login.resource)
            await changes.record(session, Change(Kind.SESSION, row.id))

    def token(self, session: WebSession, now: float) -> str:
        """What the session's user acts with, for a minute, wherever an API key is taken. No SQL."""
        login = session.login
        claims = Claims(
            session=session.id,
            login=login.id,
            tenant=login.tenant,
            principal=login.principal,
            role=login.role,
            expires_at=min(now + TOKEN_S, session.expires_at),
            session_ends_at=session.expires_at,
        )
        return make_token(self._peppers, claims)

    async def change_password(self, session: WebSession, current: str, new: str, *, now: float) -> None:
        """One's own, by the current one; every other session of the user ends. Raises InvalidRequest for a new one that
        is not good enough, Unauthenticated for another current one, TooManyLogins as ``log_in``."""
        check_password("password", new, session.login.principal)
        subject = username_subject(self._peppers, session.login.username)
        async with self._passwords.turn():
            async with self._database.write() as work:
                counts = await repository.lock_counts(work, [subject], now)
                _refuse_locked(counts, now)
                await repository.put_counts(work, {subject: counts[subject].attempted(USERNAME, now)})
                found = await repository.lock_by_id(work, session.login.id)
            if not await self._passwords.verify(found.login.password_hash if found else None, current) or found is None:
                raise Unauthenticated("password: it is another one; type the current one again")
            password_hash = await self._passwords.hash(new)
        async with self._database.write() as work:
            still = await repository.lock_by_id(work, session.login.id)
            if still is None or still.login.revision != found.login.revision or still.login.disabled:
                raise FailedPrecondition("password: the user was changed meanwhile; log in again")
            still.login.password_hash, still.login.revision = password_hash, still.login.revision + 1
            await self._unlock(work, still)
            ended = await self._log_out(work, still.login.id, sessions.moment(now), but=session.id)
            login = self._login(still, None)
            audit.append(work, login.tenant, _caller(login), "user.password", login.resource)
            await changes.record(work, *ended)

    async def _known(
        self, session: AsyncSession, text: str, *, lock: bool = False
    ) -> tuple[tables.WebSession, Found] | None:
        session_id = session_id_of(text)
        found = await sessions.find_session(session, session_id, lock=lock)
        row = found[0] if found else None
        mac = self._peppers.mac(text if session_id else "", row.pepper_id if row else "")
        return found if hmac.compare_digest(mac, row.mac if row else "0" * 64) else None


def _refuse_locked(counts: dict[str, Count], now: float) -> None:
    wait = max(count.wait_s(now) for count in counts.values())
    if wait > 0:
        raise TooManyLogins(f"login: too many attempts failed; try again in {wait:.0f} s", retry_after_s=wait)


def _caller(login: Login) -> Caller:
    """The user itself, who has just shown its password or its session."""
    admin = login.role == Role.PLATFORM_ADMIN
    return Caller(login.tenant, login.tenant_name, login.principal, login.role, login.actor, admin)


def _session(row: tables.WebSession, login: Login, text: str) -> WebSession:
    return WebSession(
        id=row.id,
        login=login,
        created_at=row.created_at.timestamp(),
        seen_at=row.seen_at.timestamp(),
        expires_at=row.expires_at.timestamp(),
        csrf=csrf_of(text),
    )


def _plain(text: str) -> str:
    """What a client said of itself, without what terminals and PostgreSQL do not take."""
    return "".join(char if char.isprintable() else "?" for char in text.encode(errors="replace").decode())


__all__ = ["SEEN_EVERY", "SESSIONS_MAX", "Accounts"]
