"""Accounts that are gone with the process: the same promises as the registry's, for tests and trials."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lorry.errors import InvalidRequest, TooManyLogins, Unauthenticated

IDLE_S = 12 * 3600.0
ABSOLUTE_S = 7 * 24 * 3600.0
LOCK_AFTER = 5
"""Failures in a row."""
LOCK_S = 300.0
_WRONG = "login: user name or password is wrong, or the account is disabled; check both"


@dataclass(frozen=True, slots=True)
class MemoryLogin:
    id: str
    username: str
    tenant_name: str
    role: str
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class MemorySession:
    id: str
    login: MemoryLogin
    expires_at: float
    csrf: str = field(repr=False)


@dataclass(slots=True)
class _Account:
    login: MemoryLogin
    salt: bytes = field(repr=False)
    hashed: bytes = field(repr=False)
    failures: int = 0
    locked_until: float = 0.0


@dataclass(slots=True)
class _Open:
    login_id: str
    created_at: float
    seen_at: float


Token = Callable[[MemoryLogin], str]
"""What the services take as this user's: there is no registry here that could sign one."""


class MemoryAccounts:
    def __init__(self, token: Token) -> None:
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._accounts: dict[str, _Account] = {}
        self._open: dict[str, _Open] = {}
        """By the MAC of the cookie's text: who reads the memory cannot log in with it."""

    def add(self, username: str, password: str, tenant_name: str, role: str) -> MemoryLogin:
        login = MemoryLogin(f"lg_{secrets.token_hex(8)}", username, tenant_name, role)
        salt = secrets.token_bytes(16)
        self._accounts[username] = _Account(login, salt, _hashed(password, salt))
        return login

    def disable(self, username: str) -> None:
        account = self._accounts[username]
        account.login = replace(account.login, disabled=True)

    async def log_in(
        self, username: str, password: str, *, agent: str, address: str, now: float
    ) -> tuple[str, MemorySession]:
        account = self._accounts.get(username)
        if account is not None and account.locked_until > now:
            raise TooManyLogins(
                "login: too many failures; wait before the next try", retry_after_s=account.locked_until - now
            )
        salt, expected = (account.salt, account.hashed) if account else (b"0" * 16, b"")
        hashed = await asyncio.to_thread(_hashed, password, salt)
        if account is None or not hmac.compare_digest(hashed, expected) or account.login.disabled:
            if account is not None:
                account.failures += 1
                if account.failures >= LOCK_AFTER:
                    account.failures, account.locked_until = 0, now + LOCK_S
            raise Unauthenticated(_WRONG)
        account.failures = 0
        text = secrets.token_urlsafe(32)
        self._open[self._mac(text)] = _Open(account.login.id, now, now)
        session = await self.resume(text, now)
        assert session is not None
        return text, session

    async def resume(self, text: str, now: float) -> MemorySession | None:
        key = self._mac(text)
        found = self._open.get(key)
        if found is None:
            return None
        account = next(one for one in self._accounts.values() if one.login.id == found.login_id)
        expires_at = min(found.seen_at + IDLE_S, found.created_at + ABSOLUTE_S)
        if expires_at <= now or account.login.disabled:
            del self._open[key]
            return None
        found.seen_at = now
        return MemorySession(key[:16], account.login, expires_at, self._mac(f"csrf {text}"))

    async def log_out(self, text: str) -> None:
        self._open.pop(self._mac(text), None)

    async def change_password(self, session: MemorySession, current: str, new: str, *, now: float) -> None:
        account = self._accounts[session.login.username]
        if not hmac.compare_digest(_hashed(current, account.salt), account.hashed):
            raise Unauthenticated("password: it is another one; type the current one again")
        if not 12 <= len(new) <= 128:
            raise InvalidRequest.field("password", f"{len(new)} characters; use 12 to 128")
        account.hashed = _hashed(new, account.salt)
        others = [key for key, one in self._open.items() if one.login_id == account.login.id]
        for key in others:
            if key[:16] != session.id:
                del self._open[key]

    def end_all(self) -> None:
        """As an operator does who ends sessions."""
        self._open.clear()

    def token(self, session: MemorySession, now: float) -> str:
        return self._token(self._accounts[session.login.username].login)

    def _mac(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def _hashed(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << 10, r=8, p=1)


__all__ = ["ABSOLUTE_S", "IDLE_S", "LOCK_AFTER", "LOCK_S", "MemoryAccounts", "MemoryLogin", "MemorySession", "Token"]
