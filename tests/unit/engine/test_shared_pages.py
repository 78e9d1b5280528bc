"""The runner over shared pages, and over memory that was given back: the tokens' logits are those of a sequence alone,
and nobody's page is written by another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.engine.arena import AdapterArena
from lorry.engine.runner import CpuRunner
from lorry.ids import BASE_SLOT, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.layers.adapted import ExtraRows
from lorry.layers.kv import KVView
from lorry.models.decoder import Decoder
from lorry.models.weights import load_tensors, read_spec
from lorry.request import SamplingParams
from lorry.scheduler.plan import NewSequence, SequenceStep, SlotLoad, StepPlan
from tests.support.adapters import FolderHost, save_adapter
from tests.support.tiny_base import write_tiny_base

PAGE = 8
PROMPT = tuple(range(20, 36))


class Recorded(Decoder):
    """Keeps the logits of the last step."""

    def head(self, hidden: torch.Tensor, own: Sequence[ExtraRows] = ()) -> torch.Tensor:
        self.logits = super().head(hidden, own)
        return self.logits

    logits: torch.Tensor


class World:
    def __init__(self, folder: Path) -> None:
        self.model = write_tiny_base(folder / "base")
        spec = read_spec(folder / "base")
        self.host = FolderHost(spec)
        self.decoder = Recorded(spec, load_tensors(folder / "base", spec, torch.float32))
        self.kv = KVView.allocate(spec, 16, PAGE)
        self.arena = AdapterArena(spec, 4, 8)
        self.runner = CpuRunner(self.decoder, self.kv, self.arena, self.host.image)
        self.steps = 0

    def run(self, *rows: SequenceStep, new: tuple[NewSequence, ...] = (), **more: Any) -> torch.Tensor:
        """The logits of the step's rows; all must have run."""
        plan = StepPlan(self.steps, (), new, more.pop("unloads", ()), more.pop("loads", ()), rows, **more)
        self.steps += 1
        result = self.runner.collect(self.runner.submit(plan))
        assert not result.failed_loads
        assert [r.fault for r in result.results] == [None] * len(rows)
        return self.decoder.logits

    def check(self, got: torch.Tensor, ids: tuple[int, ...]) -> None:
        with torch.inference_mode():
            want = self.model(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def new(sequence: int, ids: tuple[int, ...]) -> NewSequence:
    return NewSequence(SequenceId(sequence), ids, len(ids), SamplingParams(temperature=0.0))


def step(sequence: int, start: int, count: int, rows: int, pages: tuple[int, ...], shared: int = 0) -> SequenceStep:
    table = tuple(PageId(page) for page in pages)
    return SequenceStep(SequenceId(sequence), start, count, rows, BASE_SLOT, Generation(0), None, table, shared)


def test_a_prefix_that_another_sequence_computed_is_read_and_not_written(world: World) -> None:
    world.run(step(0, 0, 16, 1, (1, 2)), new=(new(0, PROMPT),))
    before = world.kv.arena[1:3].clone()
    tail = (*PROMPT, 7, 8, 9, 4)
    world.check(world.run(step(1, 16, 4, 1, (1, 2, 5), 2), new=(new(1, tail),))[0], tail)
    assert torch.equal(world.kv.arena[1:3], before)


def test_a_prompt_that_is_cached_whole_computes_its_last_token_and_stores_nothing(world: World) -> None:
    first = world.run(step(0, 0, 16, 1, (1, 2)), new=(new(0, PROMPT),))[0]
    before = world.kv.arena[:16].clone()
    again = world.run(step(1, 15, 1, 1, (1, 2), 2), new=(new(1, PROMPT),))[0]
    torch.testing.assert_close(again, first, atol=1e-4, rtol=1e-4)
    assert torch.equal(world.kv.arena[:16], before)
    token = int(again.argmax())
    world.check(world.run(step(1, 16, 1, 1, (1, 2, 6), 2))[0], (*PROMPT, token))


def test_many_decode_over_one_prefix_at_once(world: World) -> None:
    world.run(step(0, 0, 16, 1, (1, 2)), new=(new(0, PROMPT),))
    before = world.kv.arena[1:3].clone()
    tails = [(*PROMPT, 40 + i) for i in range(5)]
    logits = world.run(
        *(step(1 + i, 16, 1, 1, (1, 2, 4 + i), 2) for i in range(5)),
        new=tuple(new(1 + i, t) for i, t in enumerate(tails)),
    )
    for i, tail in enumerate(tails):
        world.check(logits[i], tail)
    follow = [int(logits[i].argmax()) for i in range(5)]
    logits = world.run(*(step(1 + i, 17, 1, 1, (1, 2, 4 + i), 2) for i in range(5)))
    for i, tail in enumerate(tails):
        world.check(logits[i], (*tail, follow[i]))
    assert torch.equal(world.kv.arena[1:3], before)


def test_pages_given_back_may_be_used_in_the_same_plan(world: World) -> None:
    world.run(step(0, 0, 16, 1, (1, 2)), new=(new(0, PROMPT),))
    world.kv.arena[1:3] = float("nan")
    other = tuple(range(60, 70))
    logits = world.run(step(1, 0, 10, 1, (2, 3)), new=(new(1, other),), idle_pages=(PageId(1), PageId(2)))
    world.check(logits[0], other)
    assert not world.kv.arena[1].any()


def test_chunks_given_back_may_be_loaded_in_the_same_plan(world: World, tmp_path: Path) -> None:
    refs = []
    for seed in range(2):
        save_adapter(world.model, tmp_path / f"a{seed}", seed=seed)
        refs.append(world.host.add(tmp_path / f"a{seed}"))
        world.host.ensure(refs[-1])
    loads = [SlotLoad(SlotId(0), Generation(1 + i), refs[i].key, (ChunkId(2 - i),)) for i in range(2)]
    world.run(step(0, 0, 4, 1, (0,)), new=(new(0, (1, 2, 3, 4)),), loads=(loads[0],))
    world.run(
        step(0, 4, 1, 1, (0,)),
        unloads=(SlotId(0),),
        idle_chunks=(ChunkId(1), ChunkId(2)),
        loads=(loads[1],),
    )
    world.arena.check_integrity()
    entry = world.arena.entry(SlotId(0))
    assert entry is not None
    assert entry.adapter == refs[1].key
    weights = next(iter(world.arena.sites.values()))
    assert weights.a[:, 8:16].any()
    assert not weights.a[:, 16:24].any()
