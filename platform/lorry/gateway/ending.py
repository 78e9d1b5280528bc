"""The end of tasks that run until they are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 5.0
"""So long a task may take to clean up."""


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancels them, and returns when all have ended, however they did.

    Once is not enough: before Python 3.12 ``asyncio.wait_for`` keeps a cancellation to itself when what it waits for
    comes in the same moment, and a loop around it goes on.
    """
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["AGAIN_S", "ended"]
