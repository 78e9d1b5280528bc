"""What a server says of itself and of the caller's key, in the trailing metadata of ``ListModels``: the one place
where its keys are written and read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_VERSION, _TIME = "lorry-server-version", "lorry-server-time"
_TENANT, _PRINCIPAL, _ROLE = "lorry-tenant", "lorry-principal", "lorry-role"


@dataclass(frozen=True, slots=True)
class About:
    """``tenant``, ``principal`` and ``role`` (``owner``, ``member``, ``platform_admin``) are the key's;
    ``server_time`` is in seconds since the epoch. What the server did not say is "" or None."""

    tenant: str = ""
    principal: str = ""
    role: str = ""
    server_version: str = ""
    server_time: float | None = None


def about_metadata(about: About) -> tuple[tuple[str, str], ...]:
    """``about`` as metadata; what is "" or None is left out."""
    time = "" if about.server_time is None else f"{about.server_time:.3f}"
    pairs = (
        (_VERSION, about.server_version),
        (_TIME, time),
        (_TENANT, about.tenant),
        (_PRINCIPAL, about.principal),
        (_ROLE, about.role),
    )
    return tuple((key, value) for key, value in pairs if value)


def about_of(metadata: Iterable[tuple[str, str | bytes]]) -> About:
    """The inverse. A time that is no number is None."""
    found = {key: value for key, value in metadata if isinstance(value, str)}
    try:
        time = float(found[_TIME])
    except (KeyError, ValueError):
        time = None
    return About(found.get(_TENANT, ""), found.get(_PRINCIPAL, ""), found.get(_ROLE, ""), found.get(_VERSION, ""), time)


__all__ = ["About", "about_metadata", "about_of"]
