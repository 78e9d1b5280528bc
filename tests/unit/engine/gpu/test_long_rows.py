"""Sequences of more than one split of keys: captured and eager decode steps in one workspace, in turns."""

from __future__ import annotations

from pathlib import Path

import torch

from lorry.config import SchedulerConfig
from tests.support.adapters import save_adapter
from tests.support.mixing import Bench, Script
from tests.support.paged import PagedBench
from tests.support.tiny_base import write_tiny_base

LIMITS = SchedulerConfig(max_sequences=4, token_budget=1024, prefill_chunk_tokens=1024, context_tokens=1024)
LONG = tuple((7 * at) % 250 + 1 for at in range(516))
"""Decodes on both sides of the first split's end, at 512."""
SHORT = LONG[3:17]


class LongBench(Bench):
    limits, page_tokens = LIMITS, 64


class LongPagedBench(PagedBench):
    limits, page_tokens = LIMITS, 64


def scripts(bench: Bench, root: Path) -> list[Script]:
    """The long one decodes alone, then beside a prefill (an eager step), then beside a decode."""
    loaded = bench.load(root / "adapter")
    found = [
        Script(loaded, LONG, (510,), scores=False),
        Script(None, SHORT, (12,), at=3, scores=False),
    ]
    bench.run(*found)
    return found


def test_the_same_logits_as_on_a_cpu(tmp_path: Path) -> None:
    base = write_tiny_base(tmp_path / "base", max_position_embeddings=1024, num_hidden_layers=1)
    save_adapter(base, tmp_path / "adapter", seed=1)
    wanted, found = (scripts(kind(tmp_path / "base"), tmp_path) for kind in (LongBench, LongPagedBench))
    for want, have in zip(wanted, found, strict=True):
        assert have.fault is None
        assert len(have.logits) == len(want.logits)
        torch.testing.assert_close(torch.stack(have.logits), torch.stack(want.logits), atol=1e-4, rtol=1e-4)
