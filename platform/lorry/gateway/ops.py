"""The operators' HTTP port: ``/healthz``, ``/readyz``, ``/internal/state``. No authentication, so on this machine alone
unless it is told otherwise; it shows no key, no prompt and no answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from lorry.config import OpsConfig
from lorry.errors import LorryError, Unavailable
from lorry.gateway.bounded import bounded

Ready = Callable[[], Awaitable[None]]
"""Raises the LorryError that says why nothing can be served now."""
State = Callable[[], Awaitable[dict[str, Any]]]
_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process that this is a guest in."""
        yield


class OpsServer:
    """Bound when it is made; ``start``, then ``stop``, on one event loop."""

    def __init__(self, config: OpsConfig, ready: Ready, state: State) -> None:
        """Raises Unavailable where the port cannot be bound."""
        self._ready = ready
        self._state = state
        try:
            self._socket = socket.create_server((config.host, config.port), family=_family(config.host))
        except OSError as error:
            text = f"ops port: {config.host}:{config.port} cannot be bound: {error}; choose another with --ops-port"
            raise Unavailable(text) from error
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/internal/state", self._internal_state),
        ]
        app = Starlette(routes=routes)
        options = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11")
        self._server = _Server(options)
        self._task: asyncio.Task[None] | None = None
        host, port = self._socket.getsockname()[:2]
        self.port: int = port
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> None:
        """The port answers from now on; the system kept who came before."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Idempotent."""
        self._server.should_exit = self._server.force_exit = True
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


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


__all__ = ["OpsServer", "Ready", "State"]
