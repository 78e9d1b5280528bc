"""Two models side by side: streamed by a script, or whole without one. It acts with a token of who looks at it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from lorry.client import Result
from lorry.client.generating import list_models
from lorry.errors import InvalidRequest, LorryError
from lorry.registry.authz import not_visible
from lorry_admin.web import snippets, sse
from lorry_admin.web.forms import Form, read_form
from lorry_admin.web.playing import SIDES, Asked, answer, asked_of, end_json, events, proof_json
from lorry_admin.web.remedies import remedy_of
from lorry_admin.web.visits import Posted, Scripted, Visit, Visiting

router = APIRouter()
MODELS_SHOWN = 200
"""Others can be typed."""
DEFAULTS = {
    "mode": "chat",
    "system": "",
    "prompt": "",
    "temperature": "0.7",
    "top_p": "",
    "top_k": "",
    "max_tokens": "200",
    "seed": "",
    "stop": "",
    "model_a": "",
    "model_b": "",
}


@router.get("/tenants/{tenant}/playground")
async def playground(visit: Visiting) -> Response:
    given = {name: visit.request.query_params.get(name, default) for name, default in DEFAULTS.items()}
    return await _page(visit, given, {})


@router.post("/tenants/{tenant}/playground")
async def ask(post: Posted) -> Response:
    """Both answers at once, when they are whole; or the same as code."""
    visit, form = post.visit, post.form
    given = {name: form.values.get(name, "") for name in DEFAULTS}
    sides = [side for side in SIDES if form.text(f"model_{side}")]
    if not sides:
        raise InvalidRequest.field("model_a", "is missing; choose a model")
    asked = {side: asked_of(form, side) for side in sides}
    if form.text("do") == "code":
        return await _page(visit, given, {}, _code(visit, next(iter(asked.values()))))
    found = await asyncio.gather(*(answer(visit, one) for one in asked.values()))
    return await _page(visit, given, {side: _told(one) for side, one in zip(sides, found, strict=True)})


@router.post("/tenants/{tenant}/playground/stream")
async def stream(visit: Scripted) -> Response:
    _own(visit)
    form = await _form(visit)
    return sse.stream(events(visit, asked_of(form, _side(form))))


@router.post("/tenants/{tenant}/playground/code")
async def code(visit: Scripted) -> Response:
    form = await _form(visit)
    return JSONResponse(_code(visit, asked_of(form, _side(form))))


def _code(visit: Visit, asked: Asked) -> dict[str, str]:
    config = visit.site.config
    address = config.grpc_address or visit.site.platform.address
    tls = config.grpc_tls if config.grpc_address else visit.site.platform.tls
    return {
        "python": snippets.python(asked, address, tls),
        "curl": snippets.curl(asked, config.http_url),
        "grpcurl": snippets.grpcurl(asked, address, tls),
    }


async def _page(
    visit: Visit, given: dict[str, str], answers: dict[str, Any], code: dict[str, str] | None = None
) -> Response:
    _own(visit)
    models, more = await visit.first(list_models(), MODELS_SHOWN)
    names = [name for model in models for name in (model.name, *model.aliases)]
    return visit.page("playground.html", names=names, more=more, given=given, answers=answers, code=code)


def _own(visit: Visit) -> None:
    """Generating is for one's own tenant, which is charged: nobody plays as another one, whatever the role."""
    if not visit.own:
        raise not_visible()


def _side(form: Form) -> str:
    side = form.text("side")
    if side not in SIDES:
        raise InvalidRequest.field("side", f"{side[:10]!r}; use one of {', '.join(SIDES)}")
    return side


def _told(found: Result | LorryError) -> dict[str, Any]:
    if isinstance(found, LorryError):
        return {"error": found, "remedy": remedy_of(found), "text": "", "proof": None, "end": None}
    end = end_json(found.usage, found.timings, found.finish_reason)
    return {"error": None, "remedy": "", "text": found.text, "proof": proof_json(found.resolved), "end": end}


async def _form(visit: Visit) -> Form:
    return await read_form(visit.request, visit.site.config.form_bytes)


__all__ = ["DEFAULTS", "MODELS_SHOWN", "ask", "code", "playground", "router", "stream"]
