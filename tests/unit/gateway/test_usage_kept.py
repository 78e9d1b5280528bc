"""Rows of streams that broke off, while the disk takes none: their tokens are at their clients, so they wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.errors import InternalError
from lorry.gateway import usage
from lorry.gateway.usage import UsageSpool, read_rows
from tests.unit.gateway.test_usage import ROW, rows


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield


@pytest.mark.parametrize("end", ["record", "post", "close"])
async def test_they_are_written_when_it_takes_some_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    path, (first, second, third) = tmp_path / "usage.jsonl", rows(3)
    spool, refused = UsageSpool(path), replace(ROW, ledger_id="us_refused")
    with full_disk(monkeypatch):
        spool.post(first)
        with pytest.raises(InternalError):
            await spool.record(refused)
        spool.post(second)
        await asyncio.wait({spool._writer} if spool._writer else set())
    if end == "record":
        await spool.record(third)
    elif end == "post":
        spool.post(third)
    await spool.close()
    assert list(read_rows(path)) == [first, second, *([] if end == "close" else [third])]


async def test_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "KEPT_ROWS", 2)
    path, made = tmp_path / "usage.jsonl", rows(5)
    spool = UsageSpool(path)
    with full_disk(monkeypatch):
        for row in made:
            spool.post(row)
        await asyncio.wait({spool._writer} if spool._writer else set())
    await spool.close()
    assert list(read_rows(path)) == made[-2:]


async def test_a_disk_that_stays_full_does_not_keep_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")
    with full_disk(monkeypatch):
        spool.post(ROW)
        async with asyncio.timeout(10):
            await spool.close()
    assert "1 rows lost" in caplog.text
