from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.errors import Unavailable
from lorry.gateway import LedgerDrain, UsageSpool
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
