"""Stores have threads of their own: one that hangs holds up nobody who needs a thread for something else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from lorry.adapters.store import DirectoryStore
from tests.support.waiting import MANY, busy_threads


class Hanging(DirectoryStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go_on = threading.Event()

    def exists_sync(self, key: str) -> bool:
        return self.go_on.wait(60)


async def test_a_store_that_hangs_keeps_no_thread_of_others(tmp_path: Path) -> None:
    store = Hanging(tmp_path)
    asked = [asyncio.create_task(store.exists("a/b")) for _ in range(MANY)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(int) == 0
    finally:
        store.go_on.set()
        await asyncio.gather(*asked)


async def test_a_store_is_asked_while_all_threads_of_others_are_busy(tmp_path: Path) -> None:
    async with busy_threads(), asyncio.timeout(10):
        assert await DirectoryStore(tmp_path).exists("a/b") is False
