"""PostgreSQL's NOTIFY as a hint that the change log has grown, on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

CHANNEL = "lorry_registry"
RETRY_S = 1.0
CONNECT_S = 5.0
_log = logging.getLogger(__name__)


async def announce(session: AsyncSession, epoch: int) -> None:
    """Tells listeners of ``epoch`` when the transaction commits, and nobody if it does not. Nothing on SQLite."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_notify(:channel, :epoch)"), {"channel": CHANNEL, "epoch": str(epoch)})


class EpochListener:
    """Calls ``heard`` after each announcement, and once whenever it begins to listen, as what was announced before is
    lost. A connection that ends is made again; the log is polled beside it, so whatever is missed costs one poll."""

    def __init__(self, engine: AsyncEngine, heard: Callable[[], None]) -> None:
        self._options: dict[str, Any] = dict(engine.dialect.create_connect_args(engine.url)[1])
        self._heard = heard
        self.pid = 0
        """Of the server's process behind the connection; 0 while there is none."""

    async def run(self) -> None:
        """Listens until cancelled."""
        failing = False
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    connection = await psycopg.AsyncConnection.connect(autocommit=True, **self._options)
                async with connection:
                    async with asyncio.timeout(CONNECT_S):
                        await connection.execute(f"LISTEN {CHANNEL}")
                    self.pid = connection.info.backend_pid
                    if failing:
                        _log.warning("registry: listening to changes again")
                    failing = False
                    self._heard()
                    async for _ in connection.notifies():
                        self._heard()
            except (psycopg.Error, OSError, TimeoutError) as error:
                if not failing:
                    reason = str(error).partition("\n")[0] or type(error).__name__
                    _log.warning("registry: changes are not announced for now, the log is polled: %s", reason)
                failing = True
            finally:
                self.pid = 0
            await asyncio.sleep(RETRY_S)


__all__ = ["CHANNEL", "EpochListener", "announce"]
