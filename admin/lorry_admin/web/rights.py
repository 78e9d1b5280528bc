"""Which parts of a page a role is shown. The services decide what it may do; this only spares people buttons that
would be refused."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    READ = "read"
    GENERATE = "generate"
    OPERATE = "operate"
    """Adapters, versions, aliases, canaries, pins, what is in memory."""
    KEYS = "keys"
    PLATFORM = "platform"


_OF: dict[str, frozenset[Right]] = {
    "viewer": frozenset({Right.READ}),
    "member": frozenset({Right.GENERATE}),
    "operator": frozenset({Right.READ, Right.GENERATE, Right.OPERATE}),
    "owner": frozenset({Right.READ, Right.GENERATE, Right.OPERATE, Right.KEYS}),
    "platform_admin": frozenset(Right),
}


def rights_of(role: str) -> frozenset[Right]:
    """None for a role that is not known here."""
    return _OF.get(role, frozenset())


__all__ = ["Right", "rights_of"]
