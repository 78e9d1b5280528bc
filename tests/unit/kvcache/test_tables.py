"""Block tables grow within their promise, which widens, and share pages by reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lorry.errors import InternalError
from lorry.ids import PageId, SequenceId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from tests.unit.kvcache.books import books

ONE, TWO = SequenceId(1), SequenceId(2)


def tables(pages: int = 8) -> tuple[BlockTables, MemoryLedger]:
    ledger = books(pages)
    return BlockTables(ledger), ledger


def test_pages_are_appended_as_positions_grow() -> None:
    table, ledger = tables()
    assert table.page_tokens == 4
    assert table.open(ONE, 3)
    assert table.open(TWO, 2)
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
    assert table.open(ONE, 3)
    assert table.covers(ONE, 12)
    assert not table.covers(ONE, 13)
    table.extend(ONE, 12)
    with pytest.raises(InternalError, match="3 KV pages"):
        table.extend(ONE, 13)


def test_a_table_widens_a_page_at_a_time_while_there_is_room() -> None:
    table, ledger = tables(pages=4)
    table.open(ONE, 1)
    table.open(TWO, 2)
    table.extend(ONE, 4)
    assert table.widen(ONE)
    assert table.covers(ONE, 8)
    assert not table.widen(ONE)
    assert not table.covers(ONE, 9)
    assert ledger.use().pages_promised == 3, "refused: nothing changed"
    assert len(table.extend(ONE, 8)) == 2
    table.close(TWO, at_step=0)
    assert table.widen(ONE), "what was promised and not taken is free at once"


def test_no_room_changes_nothing() -> None:
    table, ledger = tables()
    assert table.open(ONE, 7)
    table.extend(ONE, 4)
    assert not table.open(TWO, 2, [PageId(0)])
    assert len(table) == 1
    assert ledger.pages_promisable == 1
    assert ledger.references(PageId(0)) == 1


def test_closed_pages_wait_for_their_step() -> None:
    table, ledger = tables()
    table.open(ONE, 8)
    table.extend(ONE, 32)
    table.close(ONE, at_step=7)
    assert not table.open(TWO, 1)
    ledger.step_done(7)
    assert table.open(TWO, 8)
    with pytest.raises(InternalError, match="already"):
        table.open(TWO, 1)


def test_shared_pages_come_first_and_are_free_when_the_last_table_is_closed() -> None:
    table, ledger = tables()
    table.open(ONE, 3)
    first = table.extend(ONE, 9)
    assert table.open(TWO, 1, first[:2])
    assert table.covers(TWO, 12)
    assert table.extend(TWO, 8) == first[:2], "nothing is taken for what is shared"
    assert table.extend(TWO, 9) == (*first[:2], 3)
    assert table.references() == {0: 2, 1: 2, 2: 1, 3: 1}
    assert [ledger.references(PageId(page)) for page in range(4)] == [2, 2, 1, 1]
    table.check_integrity()
    table.close(ONE, at_step=5)
    assert (ledger.use().pages_used, ledger.use().pages_pending) == (3, 1)
    table.close(TWO, at_step=1)
    ledger.step_done(4)
    assert (ledger.use().pages_used, ledger.use().pages_pending) == (0, 3), "the other read them until step 5"
    ledger.step_done(5)
    assert ledger.use().pages_free == 8
    ledger.check_integrity()


def test_a_page_is_replaced_by_one_that_somebody_has() -> None:
    table, ledger = tables()
    table.open(ONE, 2)
    table.open(TWO, 2)
    table.extend(ONE, 8)
    table.extend(TWO, 8)
    table.replace(TWO, 0, PageId(0), at_step=3)
    assert table.pages(TWO) == (0, 3)
    assert (ledger.references(PageId(0)), ledger.references(PageId(2))) == (2, 0)
    assert ledger.use().pages_pending == 1, "a step that is under way may still write the one that was given up"
    with pytest.raises(InternalError, match="nobody has it"):
        table.replace(TWO, 1, PageId(6), at_step=3)
    table.check_integrity()
    ledger.check_integrity()


def _another_tables_pages(table: BlockTables, _ledger: MemoryLedger) -> None:
    table._tables[TWO].pages = table._tables[ONE].pages


def _twice(table: BlockTables, _ledger: MemoryLedger) -> None:
    table._tables[ONE].pages *= 2


def _overdrawn(table: BlockTables, _ledger: MemoryLedger) -> None:
    table._tables[ONE].promise.taken = 9


def _ended(table: BlockTables, ledger: MemoryLedger) -> None:
    ledger.end_promise(table._tables[ONE].promise)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_another_tables_pages, "KV page 0 is in 2 block tables"),
        (_twice, "twice"),
        (_overdrawn, "beyond its promise"),
        (_ended, "beyond its promise"),
    ],
)
def test_the_integrity_check_sees(damage: Callable[[BlockTables, MemoryLedger], None], words: str) -> None:
    table, ledger = tables()
    table.open(ONE, 2)
    table.open(TWO, 2)
    table.extend(ONE, 4)
    table.extend(TWO, 4)
    table.check_integrity()
    damage(table, ledger)
    with pytest.raises(InternalError, match=words):
        table.check_integrity()
