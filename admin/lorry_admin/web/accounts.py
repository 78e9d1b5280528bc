"""What the dashboards need of the registry: who logs in, and with which token they act."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Login(Protocol):
    """Somebody who may log in. ``role``: the word of ``lorry.registry.Role``."""

    @property
    def id(self) -> str: ...
    @property
    def username(self) -> str: ...
    @property
    def tenant_name(self) -> str: ...
    @property
    def role(self) -> str: ...


class WebSession(Protocol):
    """A login that goes on. ``csrf`` is this session's own secret; times are Unix seconds."""

    @property
    def id(self) -> str: ...
    @property
    def login(self) -> Login: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def csrf(self) -> str: ...


S = TypeVar("S", bound=WebSession)


class Accounts(Protocol[S]):
    """``lorry.registry.accounts.Accounts``, or ``MemoryAccounts`` beside this. ``S``: its own kind of sessions."""

    async def log_in(self, username: str, password: str, *, agent: str, address: str, now: float) -> tuple[str, S]:
        """(the cookie's text, the session). Raises Unauthenticated in equal words for everything that is wrong, and
        TooManyLogins with ``retry_after_s`` while it is locked or too fast."""

    async def resume(self, text: str, now: float) -> S | None:
        """None: unknown, ended, expired, or its login or tenant may not go on."""

    async def log_out(self, text: str) -> None:
        """Idempotent."""

    async def change_password(self, session: S, current: str, new: str, *, now: float) -> None:
        """One's own; every other session of the user ends. Raises Unauthenticated for another current one, and
        InvalidRequest for a new one that is not good enough."""

    def token(self, session: S, now: float) -> str:
        """What the services take as this user's for the next 60 s."""


__all__ = ["Accounts", "Login", "WebSession"]
