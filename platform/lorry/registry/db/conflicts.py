"""Constraint violations become errors of the tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from lorry.errors import AlreadyExists


@asynccontextmanager
async def unique(session: AsyncSession, message: str) -> AsyncIterator[None]:
    """Flushes what the block added; a row that exists already raises AlreadyExists(message)."""
    try:
        yield
        await session.flush()
    except IntegrityError as error:
        raise AlreadyExists(message) from error


__all__ = ["unique"]
