"""Connections: the same code on SQLite (aiosqlite) and PostgreSQL (psycopg)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from lorry.errors import StaleEtag, Unavailable

_log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5000


def async_url(url: str) -> URL:
    """``sqlite:///file`` and ``postgresql://...`` with the driver that Lorry uses."""
    found = make_url(url)
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    backend = found.get_backend_name()
    if backend not in drivers:
        raise ValueError(f"registry url: {backend!r} is not supported; use sqlite:///file or postgresql://host/name")
    return found.set(drivername=drivers[backend])


def create_engine(url: str) -> AsyncEngine:
    """An engine with SQLite's foreign keys, WAL and busy timeout on, and PostgreSQL's lock timeout set."""
    target = async_url(url)
    engine = create_async_engine(target, pool_pre_ping=target.get_backend_name() == "postgresql")
    if target.get_backend_name() == "sqlite":
        event.listen(engine.sync_engine, "connect", _sqlite_connect)
        event.listen(engine.sync_engine, "begin", _sqlite_begin)
    return engine


def _sqlite_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver opens no transaction by itself; _sqlite_begin does
    cursor = connection.cursor()
    for pragma in ("foreign_keys=ON", "journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_TIMEOUT_MS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Any) -> None:
    """Writers take the lock at once: a read that later becomes a write fails at once instead of waiting."""
    write = connection.get_execution_options().get("lorry_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


class WriteSession(Session):
    """Beneath what ``Database.write`` gives: what is due at every commit (``lorry.registry.audit``) listens to it."""


class Database:
    """Sessions of one registry. ``read`` never writes; ``write`` commits at the end or rolls back whole.

    Both raise Unavailable where the database cannot be reached, is locked too long, or drops the connection.
    ``write`` raises StaleEtag where a constraint shows that another transaction was first.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._read = async_sessionmaker(engine, expire_on_commit=False)
        self._write = async_sessionmaker(
            engine.execution_options(lorry_write=True), expire_on_commit=False, sync_session_class=WriteSession
        )

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        with _reachable():
            async with self._read() as session:
                yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        with _reachable():
            try:
                async with self._write.begin() as session:
                    yield session
            except exc.IntegrityError as error:
                _log.warning("registry: a constraint refused a change: %s", error.orig)
                raise StaleEtag("registry: another request changed the same rows meanwhile; send it again") from error

    async def close(self) -> None:
        await self.engine.dispose()


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, OSError) as error:
        raise Unavailable("registry: the database does not answer; try again", retry_after_s=1.0) from error


def open_database(url: str) -> Database:
    return Database(create_engine(url))


__all__ = ["Database", "WriteSession", "async_url", "create_engine", "open_database"]
