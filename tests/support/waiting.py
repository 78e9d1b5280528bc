"""Small things that tests of event loops do again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


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


__all__ = ["end", "until"]
