"""A ledger with pages of 4 tokens, for tests of what lies on top of it."""

from __future__ import annotations

from lorry.config import MemoryConfig
from lorry.memory import MemoryLedger


def books(pages: int = 8, page_tokens: int = 4) -> MemoryLedger:
    """``pages`` pages, and one chunk beside them."""
    config = MemoryConfig(
        budget_bytes=(pages + 1) * 100,
        adapter_fraction=1.5 / (pages + 1),
        kv_fraction=0.0,
        page_tokens=page_tokens,
        chunk_rank=8,
        max_slots=1,
        max_rank=8,
    )
    ledger = MemoryLedger(config, 100, 100, page_tokens)
    assert ledger.split.pages == pages
    return ledger
