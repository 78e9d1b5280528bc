"""A line for every login, logout and change of a password, refused ones too: who, from where, how it ended. Never a
password, nor what was typed for a user's name where it is no name: people type passwords there."""

from __future__ import annotations

import logging

from starlette.requests import Request

from lorry.errors import LorryError
from lorry.logs import fields, level_of
from lorry.registry.names import is_part
from lorry_admin.web.accounts import WebSession

LOGGER = "lorry.admin.logins"
_LOCKED = "TOO_MANY_LOGINS"
_log = logging.getLogger(LOGGER)


def log_login(
    request: Request, action: str, typed: str, session: WebSession | None, error: LorryError | None = None
) -> None:
    """``action``: login, logout, or password. ``session``: the one that began, ended or asked; None where none
    began, and ``typed`` is all that is known of who it was."""
    outcome, code = ("OK", "OK") if error is None else (error.reason, error.grpc_code)
    principal, tenant = who(typed if session is None else session.login.username)
    _log.log(
        logging.WARNING if outcome == _LOCKED else level_of(code),
        "web %s %s",
        action,
        outcome,
        extra=fields(
            action=action,
            tenant=tenant if session is None else session.login.tenant_name,
            principal=principal,
            address=address_of(request),
            session=None if session is None else session.id,
            outcome=outcome,
            code=code,
            retry_after_s=None if error is None or error.retry_after_s is None else round(error.retry_after_s, 1),
        ),
    )


def who(typed: str) -> tuple[str, str]:
    """(principal, tenant) of `anna@acme`; "" for what could be neither's name."""
    name, _, tenant = typed.strip().lower().partition("@")
    return (name, tenant) if is_part(name) and is_part(tenant) else ("", "")


def address_of(request: Request) -> str:
    """As the connection, or a proxy that is trusted, says it; "" where nobody does."""
    return request.client.host if request.client else ""


__all__ = ["LOGGER", "address_of", "log_login", "who"]
