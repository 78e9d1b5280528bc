"""Closing an engine's event iterator for certain, however its reader ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lorry.engine.contract import EngineEvent


@asynccontextmanager
async def closing(events: AsyncIterator[EngineEvent]) -> AsyncIterator[AsyncIterator[EngineEvent]]:
    """``async with closing(engine.generate(request)) as events``: leaving the block aborts what has not finished."""
    try:
        yield events
    finally:
        aclose = getattr(events, "aclose", None)
        if aclose is not None:
            await aclose()


__all__ = ["closing"]
