from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.errors import InternalError, StaleEtag, Unavailable
from lorry.gateway import LedgerDrain, UsageSpool, read_rows
from lorry.gateway.ledger import BATCH_BYTES
from lorry.registry.usage.service import Usage
from tests.unit.gateway.test_usage import ROW


class Books:
    """A ledger in memory. ``fail``: refuse after having written, as a lost commit answer does."""

    def __init__(self) -> None:
        self.rows: dict[str, Usage] = {}
        self.writes = 0
        self.fail = False

    async def write(self, rows: Sequence[Usage]) -> None:
        self.writes += 1
        self.rows.update({row.ledger_id: row for row in rows})
        if self.fail:
            raise Unavailable("no answer")


async def _spool(path: Path, ids: range) -> None:
    spool = UsageSpool(path)
    for i in ids:
        spool.post(replace(ROW, ledger_id=f"us_{i}", tenant="t-acme"))
    await spool.close()


async def test_all_rows_arrive_once_and_in_batches(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    drain = LedgerDrain(path, books)
    assert await drain.drain() == 0
    await _spool(path, range(2000))
    assert await drain.drain() == 2000
    assert list(books.rows) == [f"us_{i}" for i in range(2000)]
    assert 1 < books.writes <= path.stat().st_size / BATCH_BYTES + 2
    assert books.rows["us_7"].tenant_id == "t-acme"
    assert books.rows["us_7"].started_at.timestamp() == 1.0
    await _spool(path, range(2000, 2003))
    assert await LedgerDrain(path, books).drain() == 3, "another process goes on where this one stopped"


async def test_a_ledger_that_fails_loses_nothing_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    await _spool(path, range(3))
    with path.open("ab") as file:
        file.write(b'{"ledger_id":"us_torn')
    drain, books.fail = LedgerDrain(path, books), True
    with pytest.raises(Unavailable):
        await drain.drain()
    books.fail = False
    await _spool(path, range(3, 4))
    assert await drain.drain() == 4
    assert list(books.rows) == ["us_0", "us_1", "us_2", "us_3"]


async def test_everything_that_a_row_says_reaches_the_ledger(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    told = {"alias": "prod", "canary": True, "labels": {"team": "é"}, "queue_s": 0.5, "ttft_s": 1.5, "decode_s": 2.5}
    spool = UsageSpool(path)
    spool.post(replace(ROW, tenant="t-acme", **told))  # type: ignore[arg-type]  # a mixed dict
    spool.post(replace(ROW, tenant="t-acme", ledger_id="us_bad", labels=7))  # type: ignore[arg-type]  # no labels
    await spool.close()
    assert await LedgerDrain(path, books).drain() == 1
    (row,) = books.rows.values()
    assert {name: getattr(row, name) for name in told} == told
    assert (row.principal, row.replica) == ("p", "engine-0")


class Strict(Books):
    """Refuses batches that have a row of ``bad``, as a constraint does."""

    def __init__(self, *bad: str) -> None:
        super().__init__()
        self.bad = bad

    async def write(self, rows: Sequence[Usage]) -> None:
        if refused := [row.ledger_id for row in rows if row.ledger_id in self.bad]:
            raise StaleEtag(f"a constraint refused {refused}")
        await super().write(rows)


async def test_a_row_that_the_ledger_refuses_is_named_and_put_aside_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, books = tmp_path / "usage.jsonl", Strict("us_1")
    await _spool(path, range(3))
    drain = LedgerDrain(path, books)
    assert await drain.drain() == 2
    assert list(books.rows) == ["us_0", "us_2"]
    assert "us_1" in caplog.text
    assert [row.ledger_id for row in read_rows(tmp_path / "usage.jsonl.refused")] == ["us_1"]
    await _spool(path, range(3, 4))
    assert await drain.drain() == 1


async def test_an_outage_while_rows_are_tried_alone_puts_none_aside(tmp_path: Path) -> None:
    class Out(Strict):
        async def write(self, rows: Sequence[Usage]) -> None:
            if [row.ledger_id for row in rows] == ["us_2"]:
                raise Unavailable("no answer")
            await super().write(rows)

    path = tmp_path / "usage.jsonl"
    await _spool(path, range(3))
    with pytest.raises(Unavailable):
        await LedgerDrain(path, Out("us_0")).drain()
    assert not (tmp_path / "usage.jsonl.refused").exists()
    assert await LedgerDrain(path, Strict("us_0")).drain() == 2


@pytest.mark.parametrize("mark", [b"", b"no number", b"\xff", b"7", b"9" * 12, b"9" * 40, b"-1"])
async def test_a_mark_that_is_no_place_in_the_spool_begins_at_its_front(tmp_path: Path, mark: bytes) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    await _spool(path, range(3))
    (tmp_path / "usage.jsonl.offset").write_bytes(mark)
    assert await LedgerDrain(path, books).drain() == 3
    assert await LedgerDrain(path, books).drain() == 0


async def test_a_line_longer_than_a_batch_holds_up_nothing(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    path.write_bytes(b"x" * (3 * BATCH_BYTES) + b"\n")
    await _spool(path, range(1))
    assert await LedgerDrain(path, books).drain() == 1


async def test_the_task_outlives_whatever_one_pass_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    await _spool(path, range(1))
    drain, errors = LedgerDrain(path, books), [Unavailable("no answer"), RuntimeError("unforeseen"), OSError(5, "disk")]
    one = drain._one

    async def failing() -> Any:
        if errors:
            raise errors.pop()
        return await one()

    monkeypatch.setattr(drain, "_one", failing)
    task = asyncio.create_task(drain.run(0.0))
    async with asyncio.timeout(10):
        while not books.rows:
            await asyncio.sleep(0)
    assert not task.done()
    assert errors == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_rows_that_come_during_a_pass_are_of_the_next_one_and_a_full_batch_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.jsonl"

    class Busy(Books):
        async def write(self, rows: Sequence[Usage]) -> None:
            await super().write(rows)
            await _spool(path, range(10_000 + self.writes, 10_001 + self.writes))

    books, passed = Busy(), asyncio.Event()
    await _spool(path, range(2000))

    async def over(seconds: float) -> None:
        passed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("lorry.gateway.ledger.asyncio.sleep", over)
    task = asyncio.create_task(LedgerDrain(path, books).run(3600.0))
    async with asyncio.timeout(10):
        await passed.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert books.writes > 1
    assert {f"us_{i}" for i in range(2000)} <= books.rows.keys()
    assert f"us_{10_000 + books.writes}" not in books.rows, "it came with the last batch of this pass"
    assert books.writes <= path.stat().st_size // BATCH_BYTES + 1


async def test_a_large_spool_starts_anew_while_rows_keep_coming_and_none_is_lost(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    spool, drain = UsageSpool(path), LedgerDrain(path, books, file_bytes=4096)
    task = asyncio.create_task(drain.run(0.0))
    wanted = [f"us_{i}" for i in range(600)]
    for start in range(0, 600, 20):
        rows = [replace(ROW, ledger_id=name, tenant="t-acme") for name in wanted[start : start + 20]]
        await asyncio.gather(*(spool.record(row) for row in rows))
    async with asyncio.timeout(10):
        while len(books.rows) < 600:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await spool.close()
    await drain.drain()
    assert sorted(books.rows) == sorted(wanted)
    assert path.stat().st_size <= 4096
    assert (tmp_path / "usage.jsonl.1").stat().st_mode & 0o777 == 0o600


async def test_a_pass_that_reached_the_end_empties_a_large_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, books, passed = tmp_path / "usage.jsonl", Books(), asyncio.Event()
    await _spool(path, range(20))

    async def over(seconds: float) -> None:
        passed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("lorry.gateway.ledger.asyncio.sleep", over)
    task = asyncio.create_task(LedgerDrain(path, books, file_bytes=4096).run(3600.0))
    async with asyncio.timeout(10):
        await passed.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(books.rows) == 20
    assert path.stat().st_size == 0


@pytest.mark.parametrize("moment", ["copied", "marked"])
async def test_a_crash_while_a_spool_starts_anew_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    await _spool(path, range(30))
    drain = LedgerDrain(path, books, file_bytes=100)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "copied":
            remember = drain._remember
            patch.setattr(drain, "_remember", lambda offset: remember(offset) if offset else crash())
        else:
            patch.setattr(os, "ftruncate", crash)
        rows, end = drain._read(), path.stat().st_size
        assert rows is not None
        await books.write([row for _, row in rows.lines])
        drain._remember(end)
        with pytest.raises(KeyboardInterrupt):
            drain._start_anew()
    await _spool(path, range(30, 31))
    await LedgerDrain(path, books, file_bytes=100).drain()
    assert list(books.rows) == [f"us_{i}" for i in range(31)]
    assert path.stat().st_size == 0


async def test_rows_that_came_meanwhile_keep_a_large_spool(tmp_path: Path) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    await _spool(path, range(30))
    LedgerDrain(path, books, file_bytes=100)._start_anew()
    assert [row.ledger_id for row in read_rows(path)] == [f"us_{i}" for i in range(30)]


async def test_a_group_is_read_once_it_is_durable_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a row would be billed that is taken back, and the mark would point past the end of the file."""
    path, writing, go = tmp_path / "usage.jsonl", threading.Event(), threading.Event()
    spool, drain = UsageSpool(path), LedgerDrain(path, Books())

    def failing(file: int) -> None:
        writing.set()
        assert go.wait(10)
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        recording = asyncio.create_task(spool.record(ROW))
        assert await asyncio.to_thread(writing.wait, 10)
        reading = asyncio.create_task(asyncio.to_thread(drain._read))
        await asyncio.wait([reading], timeout=0.2)
        go.set()
        with pytest.raises(InternalError):
            await recording
    assert await reading is None
    await spool.close()


async def test_what_a_cancelled_pass_left_running_is_over_before_the_next_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, books = tmp_path / "usage.jsonl", Books()
    spool, drain = UsageSpool(path), LedgerDrain(path, books)
    await spool.record(replace(ROW, ledger_id="us_1", tenant="t-acme"))
    await spool.close()
    order: list[str] = []
    begun, go = threading.Event(), threading.Event()
    remember, read = drain._remember, drain._read

    def slow(offset: int) -> None:
        begun.set()
        assert go.wait(10)
        remember(offset)
        order.append("remembered")

    def noted() -> object:
        order.append("read")
        return read()

    monkeypatch.setattr(drain, "_remember", slow)
    first = asyncio.create_task(drain.drain())
    assert await asyncio.to_thread(begun.wait, 10)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    monkeypatch.setattr(drain, "_read", noted)
    second = asyncio.create_task(drain.drain())
    await asyncio.sleep(0)
    go.set()
    await second
    assert order[:2] == ["remembered", "read"]
