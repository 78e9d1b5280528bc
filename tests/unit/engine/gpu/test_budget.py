"""The budget of a device is what its largest steps leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.gpu.budget import SHARE, profile
from lorry.engine.gpu.build import largest_pages, page_layout
from lorry.engine.gpu.runner import PagedRunner
from lorry.errors import InvalidRequest
from lorry.models.weights import load_tensors, read_spec
from tests.support.tiny_base import write_tiny_base

CPU = torch.device("cpu")
MEMORY = MemoryConfig(budget_bytes=0, page_tokens=32, max_slots=2, max_rank=16, extras_fraction=0.25)
LIMITS = SchedulerConfig(max_sequences=2, token_budget=16, prefill_chunk_tokens=16, context_tokens=64)


class FakeMeter:
    """A device that takes the arenas and ``steps`` bytes more."""

    def __init__(self, free: int, steps: int, arena: int) -> None:
        self._free, self._most = free, steps + arena
        self.begun = 0

    def free(self) -> int:
        return self._free

    def begin(self) -> None:
        self.begun += 1

    def most(self) -> int:
        assert self.begun == 1
        return self._most


def test_what_the_largest_steps_leave(tmp_path: Path) -> None:
    write_tiny_base(tmp_path, num_hidden_layers=1)
    spec = read_spec(tmp_path)
    tensors, layout = load_tensors(tmp_path, spec, torch.float32), page_layout(spec, MEMORY, torch.float32, CPU)
    pages = LIMITS.max_sequences + 1 + 2 + largest_pages(spec, layout, MEMORY.max_rank)
    arena = (pages + 1) * layout.page_bytes + pages * layout.page_bytes // 4  # and a quarter for extras
    found = profile(spec, tensors, MEMORY, layout, LIMITS, CPU, FakeMeter(10_000_000, 1_000_000, arena))
    assert (found.free, found.activations) == (10_000_000, 1_000_000)
    assert found.budget % layout.page_bytes == 0
    left = (10_000_000 * SHARE - 1_000_000) / 1.25
    assert left - layout.page_bytes < found.budget <= left
    with pytest.raises(InvalidRequest, match=r"nothing is left to KV; lower token_budget"):
        profile(spec, tensors, MEMORY, layout, LIMITS, CPU, FakeMeter(1_000_000, 1_000_000, arena))


@pytest.mark.parametrize(("tokens", "lengths"), [(16, [16]), (64, [64]), (150, [64, 64, 22])])
def test_the_pass_runs_as_many_tokens_as_a_step_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, lengths: list[int]
) -> None:
    """In prompts that the context holds, with every product that an adapter may ask for."""
    write_tiny_base(tmp_path, num_hidden_layers=1)
    spec, asked = read_spec(tmp_path), []
    tensors, layout = load_tensors(tmp_path, spec, torch.float32), page_layout(spec, MEMORY, torch.float32, CPU)
    monkeypatch.setattr(PagedRunner, "capture", lambda runner: None)
    monkeypatch.setattr(PagedRunner, "largest_prefill", lambda runner, found: asked.append(found))
    limits = replace(LIMITS, token_budget=tokens)
    profile(spec, tensors, MEMORY, layout, limits, CPU, FakeMeter(10_000_000, 0, 0))
    assert asked == [lengths]
