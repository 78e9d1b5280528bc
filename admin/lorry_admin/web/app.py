"""The web app, put together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from lorry.client import Tls
from lorry.registry.authz import not_visible
from lorry_admin.web.accounts import Accounts
from lorry_admin.web.answers import add_answers, refuser
from lorry_admin.web.config import WebConfig
from lorry_admin.web.cookies import Cookies
from lorry_admin.web.guard import App, Guard
from lorry_admin.web.pages import (
    account,
    adapter,
    adapters,
    aliases,
    audit,
    keys,
    living,
    login,
    operator,
    overview,
    pins,
    playground,
    prices,
    quotas,
    register,
    tenants,
    usage,
    users,
    versions,
)
from lorry_admin.web.platform import Platform
from lorry_admin.web.rights import Right
from lorry_admin.web.site import Site
from lorry_admin.web.statics import shared_statics
from lorry_admin.web.visits import Visiting, resume

CHUNK_BYTES = (1 << 20) + 1024
_WITH_FILES = re.compile(r"/tenants/[^/]+/register")
_CHUNK = re.compile(r"/tenants/[^/]+/adapters/[^/]+/uploads/[^/]+/chunk")
_PAGES = (
    login, overview, adapters, adapter, aliases, versions, pins, register, playground, keys, usage, quotas, audit,
    tenants, operator, users, prices, account, living,
)  # fmt: skip


class Web:
    """An ASGI app. ``close`` gives the connection to the platform back."""

    def __init__(self, app: App, platform: Platform, site: Site) -> None:
        self.app, self.site = app, site
        self._platform = platform

    async def close(self) -> None:
        await self._platform.close()


def build_web(
    config: WebConfig,
    accounts: Accounts[Any],
    address: str,
    *,
    tls: Tls | None = None,
    now: Callable[[], float] = time.time,
) -> Web:
    """``address``: host:port of the platform's gRPC services, with ``tls`` where they want it. Belongs to the event
    loop that serves it; nothing is connected before the first page asks for something."""
    site = Site(config, accounts, Platform(address, tls), Cookies(config), now)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.site = site
    app.add_api_route("/", _start, methods=["GET"])
    app.add_api_route("/static/{digest}/{name}", _static, methods=["GET", "HEAD"])
    app.add_api_route("/session", _session, methods=["GET"])
    for page in _PAGES:
        app.include_router(page.router)
    add_answers(app)

    def most(path: str) -> int:
        if _CHUNK.fullmatch(path):
            return CHUNK_BYTES
        return config.upload_bytes if _WITH_FILES.fullmatch(path) else config.form_bytes

    guarded = Guard(app, config, most, refuser(app))
    return Web(guarded, site.platform, site)


async def _start(visit: Visiting) -> Response:
    """Where somebody begins depends on what they may do."""
    if Right.PLATFORM in visit.rights:
        return RedirectResponse("/operator/tenants", status_code=303)
    first = "" if Right.READ in visit.rights else "/playground"
    return RedirectResponse(f"/tenants/{visit.tenant}{first}", status_code=303)


async def _session(visit: Visiting) -> Response:
    """The present login's token, for a page that was open before it. No other site can read it."""
    return JSONResponse({"csrf": visit.session.csrf})


async def _static(request: Request, digest: str, name: str) -> Response:
    found = shared_statics().answer(request, digest, name)
    if found is None:
        await resume(request)  # so that its page is the one of everything that is not there
        raise not_visible()
    return found


__all__ = ["CHUNK_BYTES", "Web", "build_web"]
