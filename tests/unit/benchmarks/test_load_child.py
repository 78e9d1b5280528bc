"""A process of a load's is waited for however it ends: nothing of it is left to the loop that comes after."""

from __future__ import annotations

import asyncio

from load_world import Child

ANSWERS = "import sys\nfor line in sys.stdin: print('\"here\"', flush=True)"


async def test_one_that_is_killed_is_gone() -> None:
    child = Child("engine")
    child._arguments = ["-c", ANSWERS]
    await child.start()
    assert await child.ask() == "here"
    async with asyncio.timeout(20):
        await child.kill()
    assert not child.seen.is_running()
    await child.kill()


async def test_one_that_never_started_is_gone_already() -> None:
    await Child("engine").kill()
