"""uvicorn inside a process that is not its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from lorry.errors import Unavailable


class GuestServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()

    def leave(self, force: bool) -> None:
        """Ends ``serve``; ``force`` does not wait for answers that are under way. Idempotent."""
        self.should_exit, self.force_exit = True, self.force_exit or force
        self._leaving.set()

    async def main_loop(self) -> None:
        """uvicorn's looks ten times a second whether it is to end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), 1.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process that this is a guest in."""
        yield


def bind(host: str, port: int, what: str, flag: str) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises Unavailable naming ``what`` and the ``flag`` that chooses
    another."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Unavailable(f"{what}: {host}:{port} cannot be bound: {error}; choose another with {flag}") from error


def address_of(listening: socket.socket) -> str:
    """As a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


__all__ = ["GuestServer", "address_of", "bind"]
