from __future__ import annotations

import asyncio
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.errors import InternalError
from lorry.gateway import UsageRow, UsageSpool, read_rows

ROW = UsageRow("us_0", "t", "p", "k", "r", "", 0, "", "b" * 64, "engine-0", 3, 4, 0, "OK", 1.0, 2.0)


def rows(count: int) -> list[UsageRow]:
    return [replace(ROW, ledger_id=f"us_{i}", request_id=f"Größe\n{i}") for i in range(count)]


async def test_rows_come_back_and_one_fsync_serves_many(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "usage.jsonl"
    spool, wanted = UsageSpool(path), rows(200)
    await asyncio.gather(*(spool.record(row) for row in wanted))
    assert sorted(read_rows(path), key=lambda r: int(r.ledger_id[3:])) == wanted
    assert spool.commits <= 3
    assert path.stat().st_mode & 0o777 == 0o600
    await spool.close()


async def test_rows_of_older_and_newer_releases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    full = replace(ROW, alias="prod", canary=True, labels={"team": "a"}, queue_s=0.1, ttft_s=0.2, decode_s=0.3)
    spool = UsageSpool(path)
    await spool.record(full)
    await spool.close()
    newer = json.loads(path.read_text())
    older = {name: newer[name] for name in list(newer)[:16]}
    with path.open("a") as file:
        lines: list[object] = [older, newer | {"colour": "red"}, [], {"ledger_id": "us_1"}, 7, None]
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert list(older)[-1] == "ended_at"
    assert list(read_rows(path)) == [full, ROW, full]


async def test_posted_rows_are_durable_after_close_and_appended_later(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "usage.jsonl", rows(2)
    for row in (first, second):
        spool = UsageSpool(path)
        spool.post(row)
        await spool.close()
    assert list(read_rows(path)) == [first, second]


async def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "usage.jsonl", rows(2)
    spool = UsageSpool(path)
    await spool.record(first)
    await spool.close()
    with path.open("ab") as file:
        file.write(b'{"ledger_id":"us_torn","ten')
    spool = UsageSpool(path)
    await spool.record(second)
    await spool.close()
    assert list(read_rows(path)) == [first, second]


async def test_a_row_is_on_disk_when_record_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.append(file)

    monkeypatch.setattr(os, "fsync", fsync)
    spool = UsageSpool(tmp_path / "usage.jsonl")
    await spool.record(ROW)
    assert len(synced) == 1
    await spool.close()


async def test_a_disk_that_fails_is_an_error_and_later_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.jsonl"
    spool = UsageSpool(path)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InternalError, match="No space left"):
            await spool.record(ROW)
    await spool.record(replace(ROW, ledger_id="us_later"))
    assert "us_later" in [row.ledger_id for row in read_rows(path)]
    await spool.close()


async def test_a_group_that_cannot_be_written_is_taken_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were refused to their requests: none of them may be billed, even those that had reached the file."""
    path, (first, *lost, last) = tmp_path / "usage.jsonl", rows(6)
    spool = UsageSpool(path)
    await spool.record(first)

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        outcomes = await asyncio.gather(*(spool.record(row) for row in lost), return_exceptions=True)
    assert all(isinstance(outcome, InternalError) for outcome in outcomes)
    await spool.record(last)
    await spool.close()
    assert list(read_rows(path)) == [first, last]


async def test_nothing_is_taken_after_close(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")
    await spool.close()
    await spool.close()
    with pytest.raises(InternalError):
        spool.post(ROW)
    with pytest.raises(InternalError):
        await spool.record(ROW)
    assert list(read_rows(tmp_path / "usage.jsonl")) == []
