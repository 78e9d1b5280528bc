"""Constraint violations become errors of the tree; inserts that let a row be which is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from lorry.errors import AlreadyExists
from lorry.registry.db.base import Model


@asynccontextmanager
async def unique(session: AsyncSession, message: str) -> AsyncIterator[None]:
    """Flushes what the block added; a row that exists already raises AlreadyExists(message)."""
    try:
        yield
        await session.flush()
    except IntegrityError as error:
        raise AlreadyExists(message) from error


def insert_into(session: AsyncSession | Session, table: type[Model]) -> Any:
    """An INSERT of the session's database, for its ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    insert: Any = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return insert(table)


__all__ = ["insert_into", "unique"]
