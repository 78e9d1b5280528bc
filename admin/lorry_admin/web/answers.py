"""Errors as pages, or as JSON for a page's script."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lorry.errors import InvalidRequest, LorryError, ResourceNotFound, RoleTooLow
from lorry.registry.authz import not_visible
from lorry_admin.web.cookies import LOGIN_FORM
from lorry_admin.web.guard import Receive, Scope, Send, unforeseen
from lorry_admin.web.kept import Kept
from lorry_admin.web.pages.login import local_path, login_page, next_of
from lorry_admin.web.remedies import remedy_of
from lorry_admin.web.rendering import rendered
from lorry_admin.web.site import site_of
from lorry_admin.web.visits import SignedOut, Visit, resume

_TITLES = {
    400: "This cannot be done as asked",
    401: "Log in again",
    403: "Not allowed",
    404: "Not found",
    405: "Not found",
    409: "Not in this state",
    429: "Too much at once",
    503: "Not available now",
    504: "It took too long",
}


def error_json(error: LorryError) -> dict[str, Any]:
    """For scripts and event streams: no stack, no internals."""
    return {
        "status": error.http_status,
        "reason": error.reason,
        "message": error.message,
        "remedy": remedy_of(error),
        "violations": [{"field": one.field, "description": one.description} for one in error.violations],
        "metadata": {key: value for key, value in error.metadata.items() if key in ("received_bytes", "upload")},
    }


def wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept or "text/event-stream" in accept


def error_response(request: Request, error: LorryError) -> Response:
    if wants_json(request):
        return JSONResponse({"error": error_json(error)}, status_code=error.http_status)
    visit: Visit | None = getattr(request.state, "visit", None)
    kept: Kept | None = getattr(request.state, "kept", None)
    if isinstance(error, ResourceNotFound | RoleTooLow):
        kept = None  # it will not be right the next time either
    shown = {
        "error": error,
        "title": _TITLES.get(error.http_status, "Something went wrong"),
        "remedy": "" if isinstance(error, ResourceNotFound) else remedy_of(error),
        "kept": kept,
        "back": "" if visit is None or isinstance(error, ResourceNotFound) else _back(request),
    }
    if visit is None:
        context: dict[str, Any] = {"visit": None, "said": "", "path": ""}
    elif isinstance(error, ResourceNotFound):
        # The same page for what is another tenant's and what is not there: of the visitor's own tenant.
        own = visit.session.login.tenant_name
        context = {**visit.context(), "tenant": own, "base": f"/tenants/{own}", "own": True, "path": ""}
    else:
        context = visit.context()
    return HTMLResponse(rendered("error.html", **context, **shown), status_code=error.http_status)


def _back(request: Request) -> str:
    """The page of this app whose form was refused; "" where no browser says so."""
    came = urlsplit(request.headers.get("referer", ""))
    if request.method in ("GET", "HEAD") or not came.path or came.netloc != request.headers.get("host"):
        return ""
    place = local_path(f"{came.path}?{came.query}" if came.query else came.path)
    return "" if place == "/" else place


async def _lorry(request: Request, error: Exception) -> Response:
    assert isinstance(error, LorryError)
    return error_response(request, error)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    await resume(request)  # so that what is not there looks as what may not be seen
    if error.status_code in (404, 405):
        return error_response(request, not_visible())
    return error_response(request, InvalidRequest(f"request: {error.detail}"))


async def _unforeseen(request: Request, error: Exception) -> Response:
    return error_response(request, unforeseen(request.scope, error))


async def _validation(request: Request, error: Exception) -> Response:
    return error_response(request, not_visible())


async def _signed_out(request: Request, error: Exception) -> Response:
    assert isinstance(error, SignedOut)
    if wants_json(request):
        told = {"status": 401, "reason": "SIGNED_OUT", "message": "You are logged out.", "remedy": "Log in again."}
        return JSONResponse({"error": told}, status_code=401)
    if request.method in ("GET", "HEAD"):
        site = site_of(request)
        response = Response(status_code=303, headers={"location": f"/login{next_of(request)}"})
        site.cookies.clear(response, LOGIN_FORM)
        return response
    return login_page(request, kept=error.kept, expired=True, status=401)


def add_answers(app: FastAPI) -> None:
    app.add_exception_handler(LorryError, _lorry)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_exception_handler(SignedOut, _signed_out)


def refuser(app: FastAPI) -> Any:
    """Answers what the guard refuses, before the app has seen it."""

    async def refuse(scope: Scope, receive: Receive, send: Send, error: LorryError) -> None:
        scope.setdefault("app", app)
        request = Request(scope, receive)
        request.state.visit = None
        await error_response(request, error)(scope, receive, send)

    return refuse


__all__ = ["add_answers", "error_json", "error_response", "refuser", "wants_json"]
