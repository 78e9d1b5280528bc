"""What a call tells the scheduler of its version's text side: without it two text sides would share a prefix."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.adapters.plan import TextPlan
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterKey
from lorry.text import Tokenizer
from tests.unit.engine.test_calls import FIRST, Desk

TEXT = TextPlan("d" * 64, 300, (7, 8))


@pytest.mark.parametrize(("changes", "want"), [({}, (None, "")), ({"text": TEXT}, (TEXT.end_ids, TEXT.sha256))])
def test_the_scheduler_knows_end_ids_and_tokenizer_of_each_choice(changes: dict[str, Any], want: object) -> None:
    desk = Desk()
    desk.open(n=2, **changes)
    assert [(one.end_ids, one.tokenizer_sha256) for one in desk.book.added] == [want] * 2


def test_a_text_side_that_is_no_longer_there_ends_its_call_alone() -> None:
    desk = Desk()

    def gone(adapter: AdapterKey) -> Tokenizer | None:
        raise AdapterLoadFailed(f"adapter {adapter}: its image is not in host memory")

    desk.calls._text = gone
    desk.open()
    (error,) = desk.tell("r#1", 5, first=FIRST)
    assert isinstance(error, AdapterLoadFailed)
    assert desk.ended == [("ADAPTER_LOAD_FAILED", 0)]
