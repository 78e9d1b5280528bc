"""The thread that writes bills is the spool's own: whoever keeps all others busy holds up no stream's end."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.gateway.usage import UsageSpool, read_rows
from tests.support.waiting import busy_threads
from tests.unit.gateway.test_usage import ROW


async def test_a_bill_is_written_while_all_threads_of_others_are_busy(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")
    async with busy_threads(), asyncio.timeout(10):
        await spool.record(ROW)
        await spool.close()
    assert list(read_rows(tmp_path / "usage.jsonl")) == [ROW]


async def test_a_bill_needs_no_new_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")

    def none_left(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    async with asyncio.timeout(10):
        await asyncio.gather(*(spool.record(replace(ROW, ledger_id=f"us_{number}")) for number in range(3)))
        await spool.close()
    assert len(list(read_rows(tmp_path / "usage.jsonl"))) == 3
