"""Whose name stands behind the id of a key or login."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.keys import list_keys
from lorry_admin.web.rights import Right
from lorry_admin.web.visits import Visit

KEYS_MAX = 2000
_OWN = frozenset({"user.login", "user.logout", "user.password"})
"""What only a user itself does: such an event says whose its actor is."""


async def actors_of(visit: Visit, events: Iterable[pb.AuditEvent]) -> Mapping[str, str]:
    """Names by actor, as far as the reader may know them. All of a tenant's keys stay listed, so a key that is none of
    them is an administrator's."""
    found = {f"user/{visit.session.login.id}": visit.session.login.username}
    found |= {one.actor: user_of(one.subject) for one in events if one.action in _OWN}
    if Right.KEYS not in visit.rights:
        return found
    keys, more = await keys_of(visit)
    found |= keys
    if not more:
        strangers = {one.actor for one in events if "/" not in one.actor and one.actor != "system"}
        found |= dict.fromkeys(strangers - set(found), "an administrator")
    return found


async def users_of_keys(visit: Visit) -> Mapping[str, str]:
    """As ``actors_of``, for the ledger: its own user's name, and those of keys where the reader may see keys."""
    own = {f"user/{visit.session.login.id}": visit.session.login.username}
    return own if Right.KEYS not in visit.rights else own | (await keys_of(visit))[0]


async def keys_of(visit: Visit) -> tuple[dict[str, str], bool]:
    """Principals by key's id, and whether there are more."""
    keys, more = await visit.whole(list_keys(visit.tenant), KEYS_MAX)
    return {one.name.rsplit("/", 1)[-1]: f"{one.principal}, by key" for one in keys}, more


def user_of(subject: str) -> str:
    """`anna@acme` of `tenants/acme/users/anna`."""
    parts = subject.split("/")
    return f"{parts[3]}@{parts[1]}" if len(parts) == 4 else subject


__all__ = ["KEYS_MAX", "actors_of", "keys_of", "user_of", "users_of_keys"]
