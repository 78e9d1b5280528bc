"""Logins and web sessions as services answer them: frozen, with times as Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorry.registry.authz import VerifiedTenantId


@dataclass(frozen=True, slots=True)
class Login:
    """``username``, what is typed to log in, is ``{principal}@{tenant name}``: a name that is taken elsewhere tells
    nobody that there is an elsewhere. ``locked_until``: too many attempts failed; None where it may log in."""

    id: str
    username: str
    tenant: VerifiedTenantId
    tenant_name: str
    principal: str
    role: str
    disabled: bool
    locked_until: float | None
    last_login: float | None
    created_at: float
    etag: str

    @property
    def resource(self) -> str:
        """``tenants/{t}/users/{u}``"""
        return f"tenants/{self.tenant_name}/users/{self.principal}"

    @property
    def actor(self) -> str:
        """In place of a key's id, in the ledger and the audit."""
        return f"user/{self.id}"


@dataclass(frozen=True, slots=True)
class WebSession:
    """``csrf``: what its forms carry, derived from the browser's text and kept nowhere."""

    id: str
    login: Login
    created_at: float
    seen_at: float
    expires_at: float
    csrf: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session that lives, for who looks after the tenant's. ``seen_at`` is right to a minute."""

    id: str
    tenant_name: str
    username: str
    principal: str
    agent: str
    address: str
    created_at: float
    seen_at: float
    expires_at: float

    @property
    def resource(self) -> str:
        """``tenants/{t}/sessions/{id}``"""
        return f"tenants/{self.tenant_name}/sessions/{self.id}"


__all__ = ["Login", "SessionView", "WebSession"]
