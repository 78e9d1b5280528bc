"""What was done to a tenant and by whom, and whether that record is whole."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.client.admin.records import list_audit_events, verify_audit
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()


@router.get("/tenants/{tenant}/audit")
async def audit(visit: Visiting) -> Response:
    return visit.page(
        "audit.html", listed=await visit.listed(list_audit_events(visit.tenant), size=50), found=None, known=("", "")
    )


@router.post("/tenants/{tenant}/audit")
async def verify(post: Posted) -> Response:
    visit, form = post.visit, post.form
    known_hash, known_sequence = form.text("known_hash"), form.optional_whole("known_sequence") or 0
    found = await visit.ask(verify_audit(visit.tenant, known_hash=known_hash, known_sequence=known_sequence))
    listed = await visit.listed(list_audit_events(visit.tenant), size=50)
    return visit.page("audit.html", listed=listed, found=found, known=(known_hash, form.text("known_sequence")))


__all__ = ["audit", "router", "verify"]
