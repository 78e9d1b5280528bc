"""Registering a version: a folder that is dropped on the page, a form with files, or a place in a bucket."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lorry.client.admin.bases import list_bases
from lorry.client.admin.uploads import create_upload, get_upload, put_chunk
from lorry.client.admin.versions import create_version
from lorry.errors import AdapterRefused, InvalidRequest
from lorry_admin.web import sse
from lorry_admin.web.forms import Form, read_form
from lorry_admin.web.registering import adapter_of, creating, importing, plain_name, upload_of
from lorry_admin.web.visits import Posted, Scripted, Visit, Visiting

router = APIRouter()
BASES_MAX = 200
_UPLOADS = "/tenants/{tenant}/adapters/{adapter}/uploads"


@router.get("/tenants/{tenant}/register")
async def form(visit: Visiting) -> Response:
    bases, _ = await visit.first(list_bases(), BASES_MAX)
    given = visit.request.query_params
    return visit.page("register.html", bases=bases, given={name: given.get(name, "") for name in ("adapter", "base")})


@router.post("/tenants/{tenant}/register")
async def register(post: Posted) -> Response:
    """Without a script: the files come in one form, and the answer is the version's page with its report."""
    visit, form = post.visit, post.form
    if form.text("s3_uri") and post.form.files:
        raise InvalidRequest.field("s3_uri", "files are given too; give one of both")
    if not form.text("s3_uri") and not form.files:
        raise InvalidRequest.field("files", "none was chosen; choose the files of the folder that PEFT saved")
    adapter = await adapter_of(visit, form.text("adapter"), form.text("display_name"))
    source: dict[str, Any] = {"s3_uri": form.text("s3_uri")}
    if not form.text("s3_uri"):
        source = {"upload": await upload_of(visit, adapter, form.files)}
    try:
        made = await visit.ask(create_version(adapter, form.text("base"), **source))
    except AdapterRefused as error:
        if number := error.metadata.get("version"):
            return visit.go(f"/{adapter}/versions/{number}")
        raise
    return visit.go(f"/{made.name}", "version-made")


@router.post(_UPLOADS)
async def begin(visit: Scripted, adapter: str) -> Response:
    form = await _form(visit)
    name = await adapter_of(visit, adapter, form.text("display_name"))
    state = await visit.ask(create_upload(name))
    return JSONResponse(
        {
            "url": f"/{state.name}",
            "chunk_bytes": state.max_chunk_bytes,
            "file_bytes": state.max_file_bytes,
            "files": state.max_files,
        }
    )


@router.get(_UPLOADS + "/{upload}")
async def arrived(visit: Visiting, adapter: str, upload: str) -> Response:
    """Where to go on."""
    state = await visit.ask(get_upload(f"tenants/{visit.tenant}/adapters/{adapter}/uploads/{upload}"))
    return JSONResponse({"files": {file.path: file.received_bytes for file in state.files}})


@router.put(_UPLOADS + "/{upload}/chunk")
async def chunk(visit: Scripted, adapter: str, upload: str) -> Response:
    name = f"tenants/{visit.tenant}/adapters/{adapter}/uploads/{upload}"
    given = visit.request.query_params
    offset = given.get("offset", "")
    if not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        raise InvalidRequest.field("offset", f"{offset[:20]!r} is not one; give the bytes that have arrived")
    data = await visit.request.body()
    answer = await visit.ask(put_chunk(name, plain_name(given.get("file", "")), int(offset), data))
    return JSONResponse({"received_bytes": answer.received_bytes})


@router.post(_UPLOADS + "/{upload}/create")
async def create(visit: Scripted, adapter: str, upload: str) -> Response:
    form = await _form(visit)
    name = f"tenants/{visit.tenant}/adapters/{adapter}"
    return sse.stream(creating(visit, name, form.text("base"), f"{name}/uploads/{upload}"))


@router.post("/tenants/{tenant}/adapters/{adapter}/import")
async def import_(visit: Scripted, adapter: str) -> Response:
    form = await _form(visit)
    name = await adapter_of(visit, adapter, form.text("display_name"))
    return sse.stream(importing(visit, name, form.text("base"), form.text("s3_uri")))


async def _form(visit: Visit) -> Form:
    return await read_form(visit.request, visit.site.config.form_bytes)


__all__ = ["BASES_MAX", "arrived", "begin", "chunk", "create", "form", "import_", "register", "router"]
