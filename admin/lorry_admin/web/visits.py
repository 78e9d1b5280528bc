"""One request of somebody who is logged in: what pages ask and answer through."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from lorry.client.awaited import AsyncCaller
from lorry.client.prepared import Paged, Streamed, Unary
from lorry.errors import LorryError, PermissionDenied
from lorry.registry.authz import not_visible
from lorry.registry.names import is_part
from lorry_admin.web.accounts import WebSession
from lorry_admin.web.cookies import SAID, SESSION
from lorry_admin.web.forms import Form, is_multipart, read_form, read_text_alone
from lorry_admin.web.kept import Kept, keep
from lorry_admin.web.rendering import rendered
from lorry_admin.web.rights import Right, rights_of
from lorry_admin.web.site import Site, site_of

T = TypeVar("T")
CSRF_HEADER = "x-lorry-csrf"
ROWS_MAX = 5000
"""Of a list that is read whole."""


class SignedOut(Exception):
    """There is no session. ``kept``: what was sent, for after the login."""

    def __init__(self, kept: Kept | None = None) -> None:
        super().__init__("no session")
        self.kept = kept


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """One page. ``next_url`` "": it is the last. ``first``: it is the first."""

    rows: list[T]
    next_url: str
    first: bool


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    site: Site
    session: WebSession

    @property
    def role(self) -> str:
        return self.session.login.role

    @property
    def rights(self) -> frozenset[Right]:
        return rights_of(self.role)

    @property
    def tenant(self) -> str:
        """Whose page this is; the user's own where the address names none."""
        return str(self.request.path_params.get("tenant", self.session.login.tenant_name))

    @property
    def own(self) -> bool:
        return self.tenant == self.session.login.tenant_name

    def caller(self) -> AsyncCaller:
        """With a token that holds for 60 s from now."""
        return self.site.platform.caller(self.site.accounts.token(self.session, self.site.now()))

    async def ask(self, call: Unary[T], timeout_s: float | None = None) -> T:
        """Raises leaves of ``lorry.errors``."""
        return await self.caller().unary(call, timeout_s)

    def stream(self, call: Streamed[T]) -> AsyncIterator[T]:
        return self.caller().stream(call)

    async def listed(self, call: Paged[T], *, size: int = 0, name: str = "page") -> Listed[T]:
        """The page that the address's ``name`` asks for."""
        token = self.request.query_params.get(name, "")
        rows, following = await self.ask(sized(call.page(token), size or self.site.config.page_size))
        others = [(key, value) for key, value in self.request.query_params.multi_items() if key != name]
        next_url = f"{self.request.url.path}?{urlencode([*others, (name, following)])}" if following else ""
        return Listed(list(rows), next_url, not token)

    async def first(self, call: Paged[T], size: int) -> tuple[list[T], bool]:
        """The first rows, and whether there are more."""
        rows, following = await self.ask(sized(call.page(""), size))
        return list(rows), bool(following)

    async def whole(self, call: Paged[T], most: int = ROWS_MAX) -> tuple[list[T], bool]:
        """All rows up to ``most``, and whether there are more."""
        found: list[T] = []
        token = ""
        while True:
            rows, token = await self.ask(call.page(token))
            found += rows
            if not token or len(found) >= most:
                return found, bool(token)

    def page(self, template: str, *, status: int = 200, **context: Any) -> Response:
        said = self.site.cookies.get(self.request, SAID)
        response = HTMLResponse(rendered(template, **self.context(said=said), **context), status_code=status)
        if said:
            self.site.cookies.clear(response, SAID)
        return response

    def go(self, path: str, said: str = "") -> Response:
        """Redirects after something was done."""
        response = RedirectResponse(path, status_code=303)
        if said:
            self.site.cookies.set(response, SAID, said)
        return response

    def context(self, said: str = "") -> dict[str, Any]:
        return {
            "visit": self,
            "login": self.session.login,
            "csrf": self.session.csrf,
            "rights": {str(right) for right in self.rights},
            "tenant": self.tenant,
            "own": self.own,
            "base": f"/tenants/{self.tenant}",
            "path": self.request.url.path,
            "said": said,
        }


@dataclass(frozen=True, slots=True)
class Post:
    """A form that was sent by whom it says."""

    visit: Visit
    form: Form


def sized(call: Unary[T], size: int) -> Unary[T]:
    """A page's call, of so many rows."""
    request: Any = call.request
    request.page_size = size
    return call


async def resume(request: Request) -> Visit | None:
    """None without a session."""
    site = site_of(request)
    text = site.cookies.get(request, SESSION)
    session = await site.accounts.resume(text, site.now()) if text else None
    if session is None:
        return None
    visit = Visit(request, site, session)
    request.state.visit = visit
    return visit


async def get_visit(request: Request) -> Visit:
    """Raises SignedOut, and for another tenant's address what one that is not there raises."""
    visit = await resume(request)
    if visit is None:
        raise SignedOut
    _require_visible(visit)
    return visit


async def get_post(request: Request) -> AsyncIterator[Post]:
    """Raises SignedOut with what was sent, and PermissionDenied for a form of another login."""
    visit = await resume(request)
    most = site_of(request).config.kept_bytes
    if visit is None:
        text = await read_text_alone(request, most)
        raise SignedOut(keep(request.url.path, text.values.items(), is_multipart(request), most))
    form = await read_form(request, site_of(request).config.form_bytes, files=True)
    token = form.values.get("csrf", "")
    if has_token(visit, token) or _vouched(request):
        request.state.kept = keep(request.url.path, form.values.items(), is_multipart(request), most)
    try:
        require_token(visit, token)
        _require_visible(visit)
        yield Post(visit, form)
    finally:
        await request.close()


async def get_script(request: Request) -> Visit:
    """A call of a page's script, with the token in a header."""
    visit = await get_visit(request)
    require_token(visit, request.headers.get(CSRF_HEADER, ""))
    return visit


def has_token(visit: Visit, token: str) -> bool:
    return hmac.compare_digest(token.encode(), visit.session.csrf.encode())


def require_token(visit: Visit, token: str) -> None:
    """Raises PermissionDenied."""
    if not has_token(visit, token):
        raise PermissionDenied(
            "csrf: this form is not of your present login, so nothing was done; open it again and send it"
        )


def _require_visible(visit: Visit) -> None:
    platform = Right.PLATFORM in visit.rights
    if visit.request.url.path.startswith("/operator/") and not platform:
        raise not_visible()
    if not is_part(visit.tenant) or not (visit.own or platform):
        raise not_visible()


def _vouched(request: Request) -> bool:
    """A browser says, and the guard has looked, that a page of this app sent it."""
    return "sec-fetch-site" in request.headers or "origin" in request.headers


def first_error(found: Iterable[object]) -> LorryError | None:
    """Of what ``asyncio.gather(..., return_exceptions=True)`` answered. Raises what is no LorryError."""
    for one in found:
        if isinstance(one, LorryError):
            return one
        if isinstance(one, BaseException):
            raise one
    return None


Visiting = Annotated[Visit, Depends(get_visit)]
Posted = Annotated[Post, Depends(get_post)]
Scripted = Annotated[Visit, Depends(get_script)]

__all__ = [
    "CSRF_HEADER", "ROWS_MAX", "Listed", "Post", "Posted", "Scripted", "SignedOut", "Visit", "Visiting",
    "first_error", "get_post", "get_script", "get_visit", "has_token", "require_token", "resume", "sized",
]  # fmt: skip
