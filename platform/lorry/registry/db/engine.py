"""Connections: the same code on SQLite (aiosqlite) and PostgreSQL (psycopg)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy import create_engine as create_plain_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from lorry.errors import StaleEtag, Unavailable

_log = logging.getLogger(__name__)
T = TypeVar("T")
_THREAD = "lorry-registry"

BUSY_TIMEOUT_MS = 5000
TURN_S = 10.0
"""A writer's wait for those of its process that came before it; each of them waits ``BUSY_TIMEOUT_MS`` at most for
other processes."""


def async_url(url: str) -> URL:
    """``sqlite:///file`` and ``postgresql://...`` with the driver that Lorry uses."""
    try:
        found = make_url(url)
    except (ValueError, exc.ArgumentError):  # its words may quote a part of the password
        raise ValueError("registry url: cannot be read; use sqlite:///file or postgresql://host/name") from None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
    backend = found.get_backend_name()
    if backend not in drivers:
        raise ValueError(f"registry url: {backend!r} is not supported; use sqlite:///file or postgresql://host/name")
    return found.set(drivername=drivers[backend])


def create_engine(url: str) -> AsyncEngine:
    """An engine with SQLite's foreign keys, WAL and busy timeout on, and PostgreSQL's lock timeout set."""
    target = async_url(url)
    engine = create_async_engine(target, pool_pre_ping=target.get_backend_name() == "postgresql", hide_parameters=True)
    if target.get_backend_name() == "sqlite":
        logging.getLogger("aiosqlite").setLevel(logging.INFO)  # at DEBUG it prints every statement's parameters
        _prepare_sqlite(engine.sync_engine)
        event.listen(engine.sync_engine.pool, "invalidate", _roll_back)
    return engine


def _sqlite_reader(url: URL) -> Engine:
    """For ``Database.of_one_moment``: one connection, which stays open."""
    engine = create_plain_engine(url.set(drivername="sqlite"), pool_size=1, max_overflow=0, hide_parameters=True)
    _prepare_sqlite(engine)
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    event.listen(engine, "connect", _sqlite_connect)
    event.listen(engine, "begin", _sqlite_begin)


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


def _roll_back(connection: Any, _record: object, _error: BaseException | None) -> None:
    """Whoever is cancelled amid a statement leaves a connection that is closed next. What remembers that statement (the
    error, its traceback) keeps SQLite from closing it for good, and an open transaction would keep its lock so long."""
    if in_greenlet():
        with suppress(asyncio.CancelledError):  # amid an error that goes on, whatever comes now
            await_only(asyncio.shield(asyncio.ensure_future(_rolled_back(connection.driver_connection))))


async def _rolled_back(connection: Any) -> None:
    with suppress(sqlite3.Error, ValueError):  # it is closed
        await connection.rollback()


class WriteSession(Session):
    """Beneath what ``Database.write`` gives: what is due at every commit (``lorry.registry.audit``) listens to it."""


class _Turns:
    """Writers of one process, one after the other in the order in which they came, each loop for itself.

    SQLite lets one writer in at a time, and those who wait for its lock look at it now and then: who looks at the
    right moment is next, so with many of them one may not be within its timeout, and each holds a connection meanwhile.
    What is left to SQLite are the writers of other processes. A transaction must not begin another one inside it."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises TimeoutError where others hold it for too long."""
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with asyncio.timeout(TURN_S):
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()


class Database:
    """Sessions of one registry. ``read`` never writes; ``write`` commits at the end or rolls back whole.

    Both raise Unavailable where the database cannot be reached, is locked too long, or drops the connection.
    ``write`` raises StaleEtag where a constraint shows that another transaction was first.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._moment = engine.execution_options(isolation_level="REPEATABLE READ")
        self._reader = _sqlite_reader(engine.url) if engine.dialect.name == "sqlite" else None
        self._thread = ThreadPoolExecutor(1, _THREAD)
        self._turns = _Turns() if self._reader is not None else None
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
                async with self._turns.turn() if self._turns else nullcontext(), self._write.begin() as session:
                    yield session
            except exc.IntegrityError as error:
                _log.warning("registry: a constraint refused a change: %s", _constraint_of(error))
                raise StaleEtag("registry: another request changed the same rows meanwhile; send it again") from error

    async def of_one_moment(self, work: Callable[[Connection], T]) -> T:
        """What ``work`` makes of what it reads, all of it as of one moment.

        On SQLite it runs on a thread of its own, one at a time: there each statement of an asynchronous connection
        takes five changes of threads, which cost more than the statement. On PostgreSQL it runs on the event loop,
        which turns while the server works."""
        with _reachable():
            if self._reader is not None:
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_with, work)
            async with self._moment.connect() as connection:
                found = await connection.run_sync(work)
                await connection.commit()  # after a rollback the driver prepares every statement anew
                return found

    def turn(self) -> None:
        """For the work of ``of_one_moment`` that computes for long without asking the database: lets the event loop
        turn, where it is the one that works."""
        if self._reader is None:
            await_only(asyncio.sleep(0))

    def _read_with(self, work: Callable[[Connection], T]) -> T:
        assert self._reader is not None
        with self._reader.connect() as connection:
            return work(connection)

    async def close(self) -> None:
        """Whatever is open; a later use opens it again."""
        thread, self._thread = self._thread, ThreadPoolExecutor(1, _THREAD)
        thread.shutdown(wait=False)
        if self._reader is not None:
            self._reader.dispose()
        await self.engine.dispose()


def _constraint_of(error: exc.IntegrityError) -> str:
    """PostgreSQL's own words quote the row's values; SQLite's name columns alone."""
    diagnosis = getattr(error.orig, "diag", None)
    return str(error.orig) if diagnosis is None else f"{diagnosis.table_name}, {diagnosis.constraint_name}"


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, OSError) as error:
        raise Unavailable("registry: the database does not answer; try again", retry_after_s=1.0) from error


def open_database(url: str) -> Database:
    return Database(create_engine(url))


__all__ = ["Database", "WriteSession", "async_url", "create_engine", "open_database"]
