"""What was done to a tenant and by whom, and whether that record is whole."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.records import list_audit_events, verify_audit
from lorry_admin.web.actors import actors_of
from lorry_admin.web.visits import Posted, Visit, Visiting

router = APIRouter()
ROWS = 50


@router.get("/tenants/{tenant}/audit")
async def audit(visit: Visiting) -> Response:
    return await _page(visit, None, ("", ""))


@router.post("/tenants/{tenant}/audit")
async def verify(post: Posted) -> Response:
    visit, form = post.visit, post.form
    known_hash, known_sequence = form.text("known_hash"), form.optional_whole("known_sequence") or 0
    found = await visit.ask(verify_audit(visit.tenant, known_hash=known_hash, known_sequence=known_sequence))
    return await _page(visit, found, (known_hash, form.text("known_sequence")))


async def _page(visit: Visit, found: pb.VerifyAuditResponse | None, known: tuple[str, str]) -> Response:
    listed = await visit.listed(list_audit_events(visit.tenant), size=ROWS)
    actors = await actors_of(visit, listed.rows)
    return visit.page("audit.html", listed=listed, actors=actors, found=found, known=known)


__all__ = ["ROWS", "audit", "router", "verify"]
