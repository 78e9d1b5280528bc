"""Small things that tests of event loops do again and again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

MANY = 64
"""More threads than an event loop has by itself."""


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancels them, and returns when they are gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Returns when the condition holds; fails after so long."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def busy_threads() -> AsyncIterator[None]:
    """All threads of ``asyncio.to_thread`` have something to do, and more waits for them."""
    done = threading.Event()
    works = [asyncio.create_task(asyncio.to_thread(done.wait, 60)) for _ in range(MANY)]
    try:
        await asyncio.sleep(0)
        yield
    finally:
        done.set()
        await asyncio.gather(*works)


__all__ = ["busy_threads", "end", "until"]
