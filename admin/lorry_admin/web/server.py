"""The web app on a port of its own: uvicorn as a guest, with bounds on what a connection may do."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import uvicorn

from lorry.guest import GuestServer, LimitedProtocol, address_of, bind
from lorry_admin.web.app import Web


class WebServer:
    """Bound when it is made; ``start``, then ``stop``, on one event loop."""

    def __init__(self, web: Web, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: what the port speaks, where the configuration says so. Raises Unavailable where the port cannot be
        bound."""
        config = web.site.config
        self._web = web
        self._socket = bind(config.host, config.port, "dashboards' port", "--web-port")
        limits = {"most": config.connections, "head_seconds": float(config.keep_alive_seconds)}
        trusted: Any = config.trusted_proxies or None
        options = uvicorn.Config(
            web.app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=type("_Limited", (LimitedProtocol,), limits),
            proxy_headers=trusted is not None,
            forwarded_allow_ips=trusted,
            timeout_keep_alive=config.keep_alive_seconds,
            h11_max_incomplete_event_size=config.head_bytes,
        )
        self._server = GuestServer(options, tls)
        self._task: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]
        self.address = address_of(self._socket, tls is not None)

    def start(self) -> None:
        """The port answers from now on; the system kept who came before."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self, grace: float = 1.0) -> None:
        """Takes no new connection, gives answers that are under way ``grace`` seconds and breaks off the rest.
        Idempotent."""
        self._server.leave(force=False)
        if self._task is not None:
            await asyncio.wait([self._task], timeout=grace)
            self._server.leave(force=True)
            for connection in tuple(self._server.server_state.connections):
                connection.transport.abort()
            await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
        await self._web.close()


__all__ = ["WebServer"]
