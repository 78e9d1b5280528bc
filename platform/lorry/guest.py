"""uvicorn inside a process that is not its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lorry.errors import Unavailable

HANDSHAKE_S = 10.0
"""A connection that has not agreed on TLS by then is closed."""
FAREWELL_S = 2.0
"""And so is one whose other side does not answer TLS's goodbye."""


class GuestServer(uvicorn.Server):
    """``tls``: what its sockets speak; None is plain."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's gives a handshake a minute, and a goodbye half of one."""
        loop, config = asyncio.get_running_loop(), self.config

        def connection() -> asyncio.Protocol:
            made: Any = config.http_protocol_class
            protocol: asyncio.Protocol = made(config=config, server_state=self.server_state, app_state={}, _loop=loop)
            return protocol

        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": FAREWELL_S}
        self.servers = [
            await loop.create_server(connection, sock=one, ssl=self._tls, backlog=config.backlog, **options)
            for one in sockets or ()
        ]
        self.started = True

    def leave(self, force: bool) -> None:
        """Ends ``serve``; ``force`` does not wait for answers that are under way. Idempotent."""
        self.should_exit, self.force_exit = True, self.force_exit or force
        self._leaving.set()

    async def main_loop(self) -> None:
        """uvicorn's looks ten times a second whether it is to end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process that this is a guest in."""
        yield


class LimitedProtocol(H11Protocol):
    """A connection. One that sends no whole head within ``head_seconds``, or comes when there are ``most``, is closed.
    Derive from it to set both."""

    most: int
    head_seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head_by: float | None = None
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._head_by = None

    def _await_head(self) -> None:
        """A part of a head buys no more time for the rest of it."""
        if self._head_by is None:
            self._head_by = self.loop.time() + self.head_seconds
        if not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_at(self._head_by, self.timeout_keep_alive_handler)


def bind(host: str, port: int, what: str, flag: str) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises Unavailable naming ``what`` and the ``flag`` that chooses
    another."""
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections inherit it; asyncio sets it on those alone that name TCP as their protocol. Without it the second
        # part of each answer waits for the client's delayed acknowledgement, 40 ms.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except OSError as error:
        raise Unavailable(f"{what}: {host}:{port} cannot be bound: {error}; choose another with {flag}") from error


def address_of(listening: socket.socket, secure: bool = False) -> str:
    """As a URL."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


__all__ = ["GuestServer", "LimitedProtocol", "address_of", "bind"]
