"""OpenAI's API on a port of its own: uvicorn as a guest, with bounds on what a connection may do."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn

from lorry.config import GatewayConfig
from lorry.errors import InvalidRequest
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.generations import Generations
from lorry.gateway.http import errors
from lorry.gateway.http.app import OpenAiApp, Ready
from lorry.gateway.http.exchange import TRANSPORT, Receive, Scope, Send
from lorry.gateway.models import Models
from lorry.gateway.tls import ServerTls
from lorry.guest import GuestServer, LimitedProtocol, address_of, bind

_BAD_HEAD = InvalidRequest.field("head", "not a valid HTTP request, or too large a head; send HTTP/1.1")


class _Protocol(LimitedProtocol):
    """Tells the app its transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        inner: Any = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[TRANSPORT] = transport
            await inner(scope, receive, send)

        self.app = app

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the end of an answer that nobody reads
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's is plain text, and fails where an answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        found = errors.encode(errors.envelope(_BAD_HEAD))
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(found))),
            ("connection", "close"),
            ("x-should-retry", "false"),
        ]
        events = (h11.Response(status_code=400, headers=headers), h11.Data(data=found), h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class HttpServer:
    """Bound when it is made; ``start``, then ``stop``, on one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        port: int,
        generations: Generations,
        models: Models,
        counters: GatewayCounters,
        stall_seconds: float,
        ready: Ready,
        tls: ServerTls | None = None,
    ) -> None:
        """``tls`` None: plain. Raises Unavailable where the port cannot be bound."""
        self._socket = bind(config.http_host, port, "http port", "--http-port")
        self._app = OpenAiApp(generations, models, counters, config, ready, stall_seconds)
        limits = {"most": config.http_connections, "head_seconds": config.http_receive_seconds}
        options = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=type("_Limited", (_Protocol,), limits),
            timeout_keep_alive=config.http_keep_alive_seconds,  # type: ignore[arg-type]  # a timer's, any number does
            h11_max_incomplete_event_size=config.http_head_bytes,
        )
        self._server = GuestServer(options, None if tls is None else tls.http_context())
        self._task: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]
        self.address = address_of(self._socket, tls is not None)

    def start(self) -> None:
        """The port answers from now on; the system kept who came before."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self, grace: float) -> None:
        """Takes no new connection, closes idle ones, gives answers that are under way ``grace`` seconds and breaks off
        the rest. Idempotent."""
        self._server.leave(force=False)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=grace)
            self._server.leave(force=True)
            for exchange in tuple(self._app.open):
                exchange.cancel()
            for connection in tuple(self._server.server_state.connections):
                connection.transport.abort()
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


__all__ = ["HttpServer"]
