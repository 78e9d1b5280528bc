"""What holds for every request, whatever its page: headers, the size of a body, and no form of another site's."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from lorry.errors import InternalError, InvalidRequest, LorryError, PermissionDenied
from lorry_admin.web.config import WebConfig

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Receive, Send, LorryError], Awaitable[None]]
"""Answers a request with an error's page."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FOREIGN = "origin: this form was sent from another site, so nothing was done; open the page here and send it again"
TOLD = "lorry.told"
"""In a scope: an error of it was logged and answered."""
_log = logging.getLogger(__name__)


class Guard:
    """Around the whole app. An error that no page foresaw is logged under an id, which is all that its answer says."""

    def __init__(self, app: App, config: WebConfig, most: Callable[[str], int], refuse: Refuse) -> None:
        self._app, self._config, self._most, self._refuse = app, config, most, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if self._config.secure:
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        try:
            headers = Headers(scope=scope)
            if scope["method"] not in _SAFE and not same_site(headers, self._config):
                raise PermissionDenied(_FOREIGN)
            bounded = _bounded(scope, receive, self._most(scope["path"]), headers)
            await self._app(scope, bounded, answer)
        except LorryError as error:
            if begun:
                raise
            await self._refuse(scope, receive, answer, error)
        except Exception as error:  # the last place: every error gets an answer
            if begun and not scope.get(TOLD):
                raise
            if not begun:
                await self._refuse(scope, receive, answer, unforeseen(scope, error))


def unforeseen(scope: Scope, error: Exception) -> InternalError:
    """Logs it, and answers what may be told of it."""
    request_id = uuid.uuid4().hex
    _log.error("%s %s failed, id %s", scope["method"], scope["path"], request_id, exc_info=error)
    scope[TOLD] = True
    return InternalError(f"the page failed; the operator finds why in the log under the id {request_id}")


def same_site(headers: Headers, config: WebConfig) -> bool:
    """Whether a page of this app sent it, by what browsers say of themselves and scripts cannot change. What says
    nothing is no browser of today, and is judged by its token alone."""
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    if config.public_url:
        return origin == config.public_url.rstrip("/")
    return origin != "null" and urlsplit(origin).netloc == headers.get("host")


def _bounded(scope: Scope, receive: Receive, most: int, headers: Headers) -> Receive:
    told = headers.get("content-length", "0")
    if not told.isdigit() or int(told) > most:
        raise InvalidRequest.field("body", f"{told[:20]} bytes; send at most {most}")
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise InvalidRequest.field("body", f"more than {most} bytes; send less")
        return message

    return bounded


__all__ = [
    "HEADERS",
    "POLICY",
    "TOLD",
    "App",
    "Guard",
    "Message",
    "Receive",
    "Refuse",
    "Scope",
    "Send",
    "same_site",
    "unforeseen",
]
