"""Writers of one process on SQLite: in turn, and not for ever."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from lorry.errors import Unavailable
from lorry.registry.db import engine
from lorry.registry.db.engine import Database, open_database


async def _open(folder: Path) -> Database:
    database = open_database(f"sqlite:///{folder / 'turns.db'}")
    async with database.write() as session:
        await session.execute(text("CREATE TABLE turns (writer INTEGER)"))
    return database


async def test_they_write_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    database = await _open(tmp_path)
    order: list[int] = []

    async def write(number: int) -> None:
        async with database.write() as session:
            order.append(number)
            await session.execute(text("INSERT INTO turns VALUES (:number)"), {"number": number})
            await asyncio.sleep(0.002)

    await asyncio.gather(*(write(number) for number in range(40)))
    assert order == list(range(40))
    async with database.read() as session:
        assert list((await session.execute(text("SELECT writer FROM turns ORDER BY rowid"))).scalars()) == order
    await database.close()


async def test_who_waits_for_too_long_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await _open(tmp_path)
    monkeypatch.setattr(engine, "TURN_S", 0.05)
    holds, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with database.write() as session:
            await session.execute(text("INSERT INTO turns VALUES (1)"))
            holds.set()
            await leave.wait()

    holder = asyncio.create_task(hold())
    await holds.wait()
    with pytest.raises(Unavailable, match="try again"):
        async with asyncio.timeout(2), database.write():
            pytest.fail("two writers at once")
    leave.set()
    await holder
    async with database.write() as session:
        await session.execute(text("INSERT INTO turns VALUES (2)"))
    async with database.read() as session:
        assert list((await session.execute(text("SELECT writer FROM turns"))).scalars()) == [1, 2]
    await database.close()


async def test_one_that_fails_or_is_cancelled_gives_its_turn_on(tmp_path: Path) -> None:
    database = await _open(tmp_path)
    with pytest.raises(ZeroDivisionError):
        async with database.write():
            raise ZeroDivisionError
    waits = asyncio.Event()

    async def write() -> None:
        async with database.write():
            waits.set()
            await asyncio.sleep(60)

    running, behind = asyncio.create_task(write()), asyncio.create_task(write())
    await waits.wait()
    behind.cancel()
    running.cancel()
    await asyncio.wait({running, behind})
    async with asyncio.timeout(1), database.write() as session:
        await session.execute(text("INSERT INTO turns VALUES (3)"))
    await database.close()


def test_each_loop_has_turns_of_its_own(tmp_path: Path) -> None:
    """As of a command's thread beside a server's."""
    database = asyncio.run(_open(tmp_path))

    async def several() -> None:
        async def write() -> None:
            async with database.write() as session:
                await session.execute(text("INSERT INTO turns VALUES (4)"))

        await asyncio.gather(*(write() for _ in range(5)))
        await database.close()

    for _ in range(2):
        asyncio.run(several())
    with sqlite3.connect(tmp_path / "turns.db") as connection:
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (10,)


SLOW = (
    "WITH RECURSIVE up (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 1000000) SELECT n FROM up ORDER BY -n"
)


async def test_who_is_cancelled_amid_a_statement_lets_go_of_the_lock(tmp_path: Path) -> None:
    """Though what was thrown, and with it the statement and its rows, is remembered."""
    database = await _open(tmp_path)
    remembered: list[BaseException] = []

    async def write() -> None:
        try:
            async with database.write() as session:
                await session.execute(text("INSERT INTO turns VALUES (1)"))
                await session.execute(text(SLOW))
        except asyncio.CancelledError as error:
            remembered.append(error)
            raise

    task = asyncio.create_task(write())
    with sqlite3.connect(tmp_path / "turns.db", timeout=0) as other:
        while _is_free(other):
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
    assert len(remembered) == 1
    async with asyncio.timeout(3), database.write() as session:
        await session.execute(text("INSERT INTO turns VALUES (2)"))
    async with database.read() as session:
        assert list((await session.execute(text("SELECT writer FROM turns"))).scalars()) == [2]
    await database.close()


def _is_free(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    connection.rollback()
    return True
