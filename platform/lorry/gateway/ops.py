"""The operators' HTTP port: ``/healthz``, ``/readyz``, ``/internal/state``, ``/metrics``, ``/metrics/router``.
No authentication, so on this machine alone unless it is told otherwise; it shows no key, no prompt and no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lorry.config import OpsConfig
from lorry.errors import LorryError, Unavailable
from lorry.gateway.bounded import bounded
from lorry.gateway.metrics import MetricPages
from lorry.guest import GuestServer, address_of, bind

Ready = Callable[[], Awaitable[None]]
"""Raises the LorryError that says why nothing can be served now."""
State = Callable[[], Awaitable[dict[str, Any]]]
Pages = Callable[[], MetricPages]
"""Raises the LorryError that says why there are none yet."""


class OpsServer:
    """Bound when it is made; ``start``, then ``stop``, on one event loop."""

    def __init__(self, config: OpsConfig, ready: Ready, state: State, pages: Pages | None = None) -> None:
        """``pages`` None serves no metrics. Raises Unavailable where the port cannot be bound."""
        self._pages = pages or _no_pages
        self._ready = ready
        self._state = state
        self._socket = bind(config.host, config.port, "ops port", "--ops-port")
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/internal/state", self._internal_state),
            Route("/metrics", self._metrics),
            Route("/metrics/router", self._router),
        ]
        app = Starlette(routes=routes)
        options = uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", http="h11"
        )
        self._server = GuestServer(options)
        self._task: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]
        self.address = address_of(self._socket)

    def start(self) -> None:
        """The port answers from now on; the system kept who came before."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Idempotent."""
        self._server.leave(force=True)
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()

    async def _healthz(self, request: Request) -> Response:
        """This process's loop turns."""
        return PlainTextResponse("ok")

    async def _readyz(self, request: Request) -> Response:
        """An engine is warm and nothing drains."""
        try:
            await self._ready()
        except LorryError as error:
            return _unavailable(error)
        return PlainTextResponse("ready")

    async def _internal_state(self, request: Request) -> Response:
        return JSONResponse(bounded(await self._state()), headers={"Cache-Control": "no-store"})

    async def _metrics(self, request: Request) -> Response:
        try:
            text, content_type = await self._pages().metrics(request.headers.get("accept", ""))
        except LorryError as error:
            return _unavailable(error)
        return Response(text, headers={"Content-Type": content_type})

    async def _router(self, request: Request) -> Response:
        try:
            text, content_type = await self._pages().router()
        except LorryError as error:
            return _unavailable(error)
        return Response(text, headers={"Content-Type": content_type})


def _no_pages() -> MetricPages:
    raise Unavailable("metrics: none are served here")


def _unavailable(error: LorryError) -> Response:
    after = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return JSONResponse({"reason": error.reason, "message": error.message}, status_code=503, headers=after)


__all__ = ["OpsServer", "Pages", "Ready", "State"]
