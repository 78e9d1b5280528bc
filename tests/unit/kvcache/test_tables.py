"""Block tables grow within their promise and never share a page."""

from __future__ import annotations

import pytest

from lorry.config import MemoryConfig
from lorry.errors import InternalError
from lorry.ids import SequenceId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger

ONE, TWO = SequenceId(1), SequenceId(2)


def tables(pages: int = 8) -> tuple[BlockTables, MemoryLedger]:
    config = MemoryConfig((pages + 1) * 100, 1.5 / (pages + 1), page_tokens=4, chunk_rank=8, max_slots=1, max_rank=8)
    ledger = MemoryLedger(config, 100, 100, 4)
    assert ledger.split.pages == pages
    return BlockTables(ledger), ledger


def test_pages_are_appended_as_positions_grow() -> None:
    table, ledger = tables()
    assert table.open(ONE, 10)
    assert table.open(TWO, 8)
    assert table.extend(ONE, 1) == (0,)
    assert table.extend(TWO, 8) == (1, 2)
    assert table.extend(ONE, 4) == (0,)
    assert table.extend(ONE, 9) == (0, 3, 4)
    assert table.extend(ONE, 5) == (0, 3), "exactly what covers the positions asked for"
    assert table.pages(ONE) == (0, 3, 4)
    table.check_integrity()
    ledger.check_integrity()


def test_the_promise_is_the_limit() -> None:
    table, _ = tables()
    assert table.open(ONE, 10)
    table.extend(ONE, 12)
    with pytest.raises(InternalError, match="3 KV pages"):
        table.extend(ONE, 13)


def test_no_room_changes_nothing() -> None:
    table, ledger = tables()
    assert table.open(ONE, 25)
    assert not table.open(TWO, 5)
    assert len(table) == 1
    assert ledger.pages_promisable == 1


def test_closed_pages_wait_for_their_step() -> None:
    table, ledger = tables()
    table.open(ONE, 32)
    table.extend(ONE, 32)
    table.close(ONE, at_step=7)
    assert not table.open(TWO, 4)
    ledger.step_done(7)
    assert table.open(TWO, 32)
    with pytest.raises(InternalError, match="already"):
        table.open(TWO, 4)


def test_the_integrity_check_sees_a_shared_page() -> None:
    table, ledger = tables()
    table.open(ONE, 8)
    table.open(TWO, 8)
    table.extend(ONE, 4)
    table.extend(TWO, 4)
    table._tables[TWO].pages = table._tables[ONE].pages
    table._tables[TWO].promise.taken[:] = table._tables[ONE].promise.taken
    with pytest.raises(InternalError, match="another table"):
        table.check_integrity()
    with pytest.raises(InternalError, match="two promises"):
        ledger.check_integrity()
