"""The schema: brought up to date by the migrations in the package ``lorry_migrations``."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from lorry.registry.db.engine import BUSY_TIMEOUT_MS, async_url, open_database
from lorry.registry.usage.service import UsageLedger

MIGRATIONS = "lorry_migrations:"

_IN_PROCESS = threading.Lock()
"""Alembic's context is one per process."""


def alembic_config(url: str) -> Config:
    """A configuration that finds the installed migrations, not a file of the working directory."""
    config = Config()
    config.set_main_option("script_location", MIGRATIONS)
    config.attributes["url"] = url
    return config


def migrate_sync(url: str, revision: str = "head") -> bool:
    """Blocks. Idempotent; safe to call from several processes at once (PostgreSQL: advisory lock; SQLite:
    its own write lock). Whether there was anything to do; True too where another process did it meanwhile."""
    before = _revision_of(url)
    config = alembic_config(url)
    target = async_url(url)
    file = target.get_backend_name() == "sqlite" and target.database not in (None, "", ":memory:")
    with _IN_PROCESS, _file_lock(str(target.database)) if file else nullcontext():
        command.upgrade(config, revision)
    return before != _revision_of(url)


async def migrate(url: str) -> None:
    """Upgrades the registry at ``url`` to the newest schema, and adds up what older releases left to it."""
    if await asyncio.to_thread(migrate_sync, url):
        database = open_database(url)
        try:
            await UsageLedger(database).reconcile()
        finally:
            await database.close()


def _revision_of(url: str) -> str | None:
    """None for a database without a schema."""
    target = async_url(url)
    if target.get_backend_name() == "sqlite":
        if target.database not in (None, "", ":memory:") and not Path(str(target.database)).exists():
            return None
        target = target.set(drivername="sqlite")
    engine = create_engine(target, hide_parameters=True)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


class _file_lock:
    """Excludes other migrators of the same SQLite file, by a write lock on a small database beside it."""

    def __init__(self, database: str) -> None:
        self._path = f"{database}.migrating"
        self._connection: Any = None

    def __enter__(self) -> None:
        self._connection = sqlite3.connect(self._path, timeout=12 * BUSY_TIMEOUT_MS / 1000, isolation_level=None)
        self._connection.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


__all__ = ["MIGRATIONS", "alembic_config", "migrate", "migrate_sync"]
