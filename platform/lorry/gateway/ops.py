"""The operators' HTTP port: ``/healthz``, ``/readyz``, ``/internal/state``. No authentication, so on this machine alone
unless it is told otherwise; it shows no key, no prompt and no answer."""

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
from lorry.errors import LorryError
from lorry.gateway.bounded import bounded
from lorry.guest import GuestServer, address_of, bind

Ready = Callable[[], Awaitable[None]]
"""Raises the LorryError that says why nothing can be served now."""
State = Callable[[], Awaitable[dict[str, Any]]]


class OpsServer:
    """Bound when it is made; ``start``, then ``stop``, on one event loop."""

    def __init__(self, config: OpsConfig, ready: Ready, state: State) -> None:
        """Raises Unavailable where the port cannot be bound."""
        self._ready = ready
        self._state = state
        self._socket = bind(config.host, config.port, "ops port", "--ops-port")
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/internal/state", self._internal_state),
        ]
        app = Starlette(routes=routes)
        options = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11")
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
            after = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
            return JSONResponse({"reason": error.reason, "message": error.message}, status_code=503, headers=after)
        return PlainTextResponse("ready")

    async def _internal_state(self, request: Request) -> Response:
        return JSONResponse(bounded(await self._state()), headers={"Cache-Control": "no-store"})


__all__ = ["OpsServer", "Ready", "State"]
