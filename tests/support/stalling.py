"""A server's Unix socket behind one that can stop passing anything on, as a paused database or a lost route does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Stall:
    """``pause``: nothing passes, on old connections or new ones, and none is refused; ``resume``: all goes on.
    ``strand``: what is connected now stays silent for ever, new connections are as good as ever."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def strand(self) -> None:
        self._generation += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_unix_connection(str(self._target))
        ways = ((reader, back), (there, writer))
        self._tasks |= {asyncio.create_task(self._pass(*way, self._generation)) for way in ways}

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, generation: int) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._open.wait()
                if generation == self._generation:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            return  # one of both has gone
        finally:
            sink.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def stalling(target: Path, here: Path) -> AsyncIterator[Stall]:
    """Serves ``here`` as ``target`` is served."""
    stall = Stall(target)
    server = await asyncio.start_unix_server(stall.serve, str(here))
    try:
        yield stall
    finally:
        server.close()
        await stall.close()


__all__ = ["Stall", "stalling"]
