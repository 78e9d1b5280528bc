"""A task that was cancelled ends, also where its wait came true in the same moment."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from lorry.gateway import ending
from lorry.gateway.ending import ended


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_a_wait_kept_to_itself_is_said_again(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of these turns of the loop is the one in which ``asyncio.wait_for`` of Python 3.11 loses it."""
    monkeypatch.setattr(ending, "AGAIN_S", 0.05)
    heard = asyncio.Event()

    async def work() -> None:
        while True:
            heard.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), 60)

    task = asyncio.create_task(work())
    for _ in range(3):
        await asyncio.sleep(0)
    heard.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await ended(task)
    assert task.cancelled()


async def test_a_task_has_time_to_clean_up_and_may_have_failed() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    async def fails() -> None:
        raise RuntimeError("before")

    tasks = [asyncio.create_task(work()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    await ended(*tasks)
    assert cleaned == [True]
    await ended(*tasks)
    await ended()
