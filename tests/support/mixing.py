"""Adapters of any kind together in the runner's batches, with every position's logits kept.

The path is the product's: files -> validation -> device image -> arena -> the runner's steps. Only the plans are made
here, in place of the scheduler's, so that a step's rows are what a test wants.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from lorry.adapters.manifest import AdapterRef
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig
from lorry.engine import runner
from lorry.engine.parts import build_parts
from lorry.engine.plan_runner import PlanRunner
from lorry.ids import BASE_SLOT, AdapterKey, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.models.weights import read_spec
from lorry.request import OutputParams, SamplingParams, TokenLogprobs
from lorry.residency import Failed, Ready
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep, SlotLoad, StepPlan
from tests.support.adapters import FolderHost
from tests.support.engines import engine_config

PAGE_TOKENS = 8
CHUNK_RANK = 8
GREEDY = SamplingParams(temperature=0.0)
ALL_SLOTS = 256
NONE_YET = SequenceId(-1)


@dataclass(frozen=True)
class Loaded:
    """An adapter that has a slot."""

    ref: AdapterRef
    slot: SlotId
    generation: Generation
    chunks: tuple[ChunkId, ...]
    vocabulary: int


@dataclass(slots=True)
class Script:
    """What a sequence does: its ids are all given. ``parts`` are the lengths of its prefill chunks; what is left is
    decoded one by one. It joins at step ``at``. ``scores``: its prompt's rows say the log-probability of every id."""

    adapter: Loaded | None
    ids: Sequence[int]
    parts: Sequence[int]
    at: int = 0
    scores: bool = True
    scored: list[TokenLogprobs] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    fault: str | None = None
    sequence: SequenceId = NONE_YET

    def lengths(self) -> list[int]:
        return [*self.parts, *[1] * (len(self.ids) - sum(self.parts))]

    def runs(self, step: int) -> bool:
        return self.fault is None and 0 <= step - self.at < len(self.lengths())

    @property
    def first_logits(self) -> int:
        """The position of ``logits[0]``."""
        return sum(self.parts) - 1

    def log_softmax(self, vocabulary: int) -> torch.Tensor:
        """``[first_logits, V]``: what the scored rows say of every id, as log-probabilities."""
        rows = torch.full((len(self.scored), vocabulary), float("nan"))
        for row, one in zip(rows, self.scored, strict=True):
            for token, logprob in one.top:
                row[token] = logprob
        return rows


class Bench:
    """A runner over the base in a folder, in float32 on one thread."""

    limits = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=64, context_tokens=128)
    page_tokens = PAGE_TOKENS
    draws: tuple[Any, str] = (runner, "draw")
    """Where the runner looks for what draws from logits."""

    def __init__(self, base: Path, budget_bytes: int = 64 << 20, **changes: Any) -> None:
        config = engine_config(
            base,
            scheduler=self.limits,
            memory=MemoryConfig(
                budget_bytes=budget_bytes,
                page_tokens=self.page_tokens,
                chunk_rank=CHUNK_RANK,
                max_slots=ALL_SLOTS,
                max_rank=256,
            ),
            **changes,
        )
        self.spec = read_spec(base)
        self._build(config)
        self._numbers = itertools.count()
        self._steps = itertools.count()
        split = self.scheduler._ledger.split
        self._pages = split.pages
        self._chunks = [ChunkId(i) for i in reversed(range(split.chunks))]
        self._slots = [SlotId(i) for i in reversed(range(ALL_SLOTS))]
        self._generations = itertools.count(1)
        self._loads: list[SlotLoad] = []
        self._unloads: list[SlotId] = []
        self._finished: list[SequenceId] = []

    def _build(self, config: EngineConfig) -> None:
        self.host: FolderHost[Any] = FolderHost(self.spec, config.base_dir)
        self.parts = build_parts(config, self.host)
        self.scheduler, self.runner = self.parts.scheduler, cast("PlanRunner[Any]", self.parts.runner)

    def load(self, folder: Path) -> Loaded:
        """Validates it, builds its image and gives it a slot; the next run loads it. Raises the refusal."""
        ref = self.host.add(folder)
        state = self.host.ensure(ref)
        if isinstance(state, Failed):
            raise state.error
        assert isinstance(state, Ready)
        chunks = tuple(self._chunks.pop() for _ in range(_chunks_of(state)))
        slot, generation = self._slots.pop(), Generation(next(self._generations))
        self._loads.append(SlotLoad(slot, generation, ref.key, chunks))
        image = self.host.image(ref.key)
        assert image is not None
        own = image.extras.vocabulary if image.extras is not None else None
        return Loaded(ref, slot, generation, chunks, own or self.spec.vocabulary)

    def unload(self, *loaded: Loaded) -> None:
        """The next run empties their slots; others may have them from now on."""
        for one in loaded:
            self._unloads.append(one.slot)
            self._slots.append(one.slot)
            self._chunks.extend(reversed(one.chunks))

    def run(self, *scripts: Script) -> list[int]:
        """Runs them together to their ends. Answers how many sequences each step had."""
        pages_each = max(-(-len(script.ids) // self.page_tokens) for script in scripts)
        assert pages_each * len(scripts) <= self._pages, "give the bench a larger budget"
        tables = [_table(i, pages_each) for i in range(len(scripts))]
        widths: list[int] = []
        with recorded(*self.draws) as logits:
            for step in range(max(script.at + len(script.lengths()) for script in scripts)):
                joining = [script for script in scripts if script.at == step]
                new = [self._begin(script) for script in joining]
                rows = [
                    _row(script, table, step - script.at)
                    for script, table in zip(scripts, tables, strict=True)
                    if script.runs(step)
                ]
                if rows:
                    widths.append(len(rows))
                    self._step(scripts, new, rows, logits)
        self._finished.extend(script.sequence for script in scripts)
        return widths

    def _begin(self, script: Script) -> NewSequence:
        script.sequence = SequenceId(next(self._numbers))
        vocabulary = script.adapter.vocabulary if script.adapter else self.spec.vocabulary
        ids, output = tuple(script.ids), _output(script, vocabulary)
        return NewSequence(script.sequence, ids, len(ids), GREEDY, 0, output)

    def _step(
        self,
        scripts: Sequence[Script],
        new: Sequence[NewSequence],
        rows: Sequence[SequenceStep],
        logits: dict[SequenceId, torch.Tensor],
    ) -> None:
        logits.clear()
        unloads, self._unloads = tuple(self._unloads), []
        loads, self._loads = tuple(self._loads), []
        finished, self._finished = tuple(self._finished), []
        plan = StepPlan(next(self._steps), finished, tuple(new), unloads, loads, tuple(rows))
        result = self.runner.collect(self.runner.submit(plan))
        assert result.failed_loads == (), result.failed_loads
        by_sequence: Mapping[SequenceId, SequenceResult] = {one.sequence: one for one in result.results}
        for script in scripts:
            found = by_sequence.get(script.sequence)
            if found is None:
                continue
            script.fault = found.fault
            want: AdapterKey | None = script.adapter.ref.key if script.adapter else None
            assert found.fault is not None or found.adapter == want
            script.scored.extend(found.prompt_logprobs)
            if script.sequence in logits:
                script.logits.append(logits[script.sequence])


def _chunks_of(state: Ready) -> int:
    return -(-state.rank // CHUNK_RANK) if state.chunks is None else state.chunks


@contextmanager
def recorded(module: Any = runner, name: str = "draw") -> Iterator[dict[SequenceId, torch.Tensor]]:
    """Meanwhile, the logits ``[V]`` that each sequence's tokens are drawn from, the latest of each."""
    found: dict[SequenceId, torch.Tensor] = {}
    draw = getattr(module, name)

    def recording(steps: Sequence[SequenceStep], sequences: Any, logits: torch.Tensor) -> Any:
        for row, step in enumerate(steps):
            found[step.sequence] = logits[row].clone()
        return draw(steps, sequences, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, recording)
        yield found


def _output(script: Script, vocabulary: int) -> OutputParams:
    if not script.scores:
        return OutputParams()
    return OutputParams(prompt_logprobs=vocabulary)


def _table(number: int, pages: int) -> tuple[PageId, ...]:
    return tuple(PageId(number * pages + page) for page in range(pages))


def _row(script: Script, table: tuple[PageId, ...], turn: int) -> SequenceStep:
    lengths, prefilled = script.lengths(), sum(script.parts)
    start, length = sum(lengths[:turn]), lengths[turn]
    draws = start + length >= prefilled
    scored = length - draws if script.scores and start < prefilled else 0
    slot, generation, key = BASE_SLOT, Generation(0), None
    if script.adapter is not None:
        slot, generation, key = script.adapter.slot, script.adapter.generation, script.adapter.ref.key
    return SequenceStep(script.sequence, start, length, int(draws), slot, generation, key, table, score_rows=scored)


__all__ = ["Bench", "Loaded", "Script", "recorded"]
