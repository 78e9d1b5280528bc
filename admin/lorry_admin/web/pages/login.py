"""Logging in and out."""

from __future__ import annotations

import hmac
import re
import secrets
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lorry.errors import LorryError, PermissionDenied
from lorry_admin.web.cookies import LOGIN_FORM, SAID, SESSION
from lorry_admin.web.forms import read_form
from lorry_admin.web.kept import Kept, decode
from lorry_admin.web.login_log import address_of, log_login
from lorry_admin.web.remedies import remedy_of
from lorry_admin.web.rendering import rendered
from lorry_admin.web.site import site_of
from lorry_admin.web.visits import Posted, Visit, resume

router = APIRouter()
_LOCAL = re.compile(r"/(?![/\\])[!-~]{0,1000}")


def next_of(request: Request) -> str:
    """The query by which the login page leads back here; "" for the start page."""
    query = f"?{request.url.query}" if request.url.query else ""
    place = f"{request.url.path}{query}"
    return "" if place == "/" else f"?next={quote(place, safe='')}"


def local_path(place: str) -> str:
    """``place`` if it is one of this app, else the start page."""
    return place if _LOCAL.fullmatch(place) else "/"


def login_page(
    request: Request,
    *,
    kept: Kept | None = None,
    expired: bool = False,
    error: LorryError | None = None,
    username: str = "",
    place: str = "/",
    status: int = 200,
) -> Response:
    site = site_of(request)
    token = site.cookies.get(request, LOGIN_FORM)
    fresh = not re.fullmatch(r"[0-9a-f]{32}", token)
    token = secrets.token_hex(16) if fresh else token
    said = site.cookies.get(request, SAID)
    shown = {
        "token": token,
        "kept": kept,
        "expired": expired,
        "error": error,
        "remedy": "" if error is None or error.http_status == 401 else remedy_of(error),
        "username": username,
        "place": place,
    }
    page = rendered("login.html", visit=None, said=said, path="/login", **shown)
    response = HTMLResponse(page, status_code=status)
    if fresh:
        site.cookies.set(response, LOGIN_FORM, token)
    if said:
        site.cookies.clear(response, SAID)
    return response


@router.get("/login")
async def show_login(request: Request) -> Response:
    place = local_path(request.query_params.get("next", "/"))
    if await resume(request) is not None:
        return RedirectResponse(place, status_code=303)
    return login_page(request, place=place)


@router.post("/login")
async def log_in(request: Request) -> Response:
    site = site_of(request)
    form = await read_form(request, site.config.form_bytes)
    kept = decode(form.values.get("kept", ""), site.config.kept_bytes)
    place, username = local_path(form.text("next")), form.text("username")
    password = form.values.get("password", "")[:1000]
    told = "" if username == password else username
    token = site.cookies.get(request, LOGIN_FORM)
    if not token or not hmac.compare_digest(token.encode(), form.values.get("csrf", "").encode()):
        error: LorryError = PermissionDenied("csrf: the login page was open for too long; send it once more")
        log_login(request, "login", told, None, error)
        return login_page(request, kept=kept, error=error, username=username, place=place, status=403)
    try:
        text, session = await site.accounts.log_in(
            username[:200],
            password,
            agent=request.headers.get("user-agent", "")[:200],
            address=address_of(request),
            now=site.now(),
        )
    except LorryError as found:
        log_login(request, "login", told, None, found)
        return login_page(request, kept=kept, error=found, username=username, place=place, status=found.http_status)
    log_login(request, "login", told, session)
    response: Response
    if kept is not None:
        visit = Visit(request, site, session)
        response = visit.page("kept.html", kept=kept)
    else:
        response = RedirectResponse(place, status_code=303)
    site.cookies.set(response, SESSION, text, session.expires_at)
    site.cookies.clear(response, LOGIN_FORM)
    return response


@router.post("/logout")
async def log_out(post: Posted) -> Response:
    site = post.visit.site
    await site.accounts.log_out(site.cookies.get(post.visit.request, SESSION))
    log_login(post.visit.request, "logout", "", post.visit.session)
    response = post.visit.go("/login", "logged-out")
    site.cookies.clear(response, SESSION)
    return response


__all__ = ["local_path", "log_in", "log_out", "login_page", "next_of", "router", "show_login"]
