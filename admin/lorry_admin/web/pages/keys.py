"""API keys: made (and shown that once), rotated, revoked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.keys import ROLES as KNOWN_ROLES
from lorry.client.admin.keys import create_key, list_keys, revoke_key, rotate_key
from lorry.errors import InvalidRequest
from lorry_admin.web.forms import Form
from lorry_admin.web.visits import Posted, Visit, Visiting

router = APIRouter()
_WORDS = {
    "member": "generates",
    "viewer": "reads what the tenant has and used",
    "operator": "generates, and manages adapters",
    "owner": "generates, and manages adapters and keys",
}
ROLES = {role: words for role, words in _WORDS.items() if role in KNOWN_ROLES}
OVERLAPS = {
    "0": "old one ends at once",
    "3600": "old one ends in 1 hour",
    "86400": "old one ends in 1 day",
    "604800": "old one ends in 7 days",
}


@router.get("/tenants/{tenant}/keys")
async def keys(visit: Visiting) -> Response:
    listed = await visit.listed(list_keys(visit.tenant))
    return visit.page("keys.html", listed=listed, roles=ROLES, overlaps=OVERLAPS, now=visit.site.now())


@router.post("/tenants/{tenant}/keys")
async def create(post: Posted) -> Response:
    """The answer shows the key; no redirect could carry it."""
    visit, form = post.visit, post.form
    made = await visit.ask(
        create_key(visit.tenant, form.text("principal"), form.text("role"), expire_time=_expiry(visit, form))
    )
    return visit.page("key.html", made=made, rotated=False)


@router.post("/tenants/{tenant}/keys/{key}/rotate")
async def rotate(post: Posted, key: str) -> Response:
    visit, form = post.visit, post.form
    overlap = form.optional_whole("overlap") or 0
    made = await visit.ask(rotate_key(_name(visit, key), overlap_s=overlap, expire_time=_expiry(visit, form)))
    return visit.page("key.html", made=made, rotated=True)


@router.post("/tenants/{tenant}/keys/{key}/revoke")
async def revoke(post: Posted, key: str) -> Response:
    visit = post.visit
    await visit.ask(revoke_key(_name(visit, key)))
    return visit.go(f"/tenants/{visit.tenant}/keys", "key-revoked")


def _name(visit: Visit, key: str) -> str:
    return f"tenants/{visit.tenant}/apiKeys/{key}"


def _expiry(visit: Visit, form: Form) -> datetime | None:
    """``days`` from now; None where it is left empty."""
    days = form.optional_whole("days")
    if days is None:
        return None
    if not 1 <= days <= 3650:
        raise InvalidRequest.field("days", f"{days}; give 1 to 3650, or leave it empty for a key that does not expire")
    return datetime.fromtimestamp(visit.site.now(), UTC) + timedelta(days=days)


__all__ = ["OVERLAPS", "ROLES", "create", "keys", "revoke", "rotate", "router"]
