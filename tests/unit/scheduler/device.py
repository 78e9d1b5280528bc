"""A device that computes nothing and checks everything: it carries out plans against its own slot table,
chunk owners and KV pages, and objects to any that a real one could not carry out rightly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lorry.ids import BASE_SLOT, AdapterDigest, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.scheduler import NewSequence, SequenceResult, SequenceStep, StepPlan, StepResult


@dataclass
class Device:
    """``token`` picks the id for (sequence, output index)."""

    page_tokens: int
    pages: int
    chunks: int
    token: Callable[[SequenceId, int], int] = lambda _sequence, _index: 7
    slots: dict[SlotId, tuple[Generation, AdapterDigest, tuple[ChunkId, ...]]] = field(default_factory=dict)
    known: dict[SequenceId, NewSequence] = field(default_factory=dict)
    outputs: dict[SequenceId, int] = field(default_factory=dict)
    kv: dict[tuple[PageId, int], tuple[SequenceId, int]] = field(default_factory=dict)
    dead: set[SequenceId] = field(default_factory=set)
    """Their step failed; a plan that was made before that was known may still have rows of them."""
    generations: dict[SlotId, Generation] = field(default_factory=dict)
    steps: int = 0
    loads: int = 0

    def run(
        self,
        plan: StepPlan,
        *,
        fail_slots: frozenset[SlotId] = frozenset(),
        faults: dict[SequenceId, str] | None = None,
    ) -> StepResult:
        assert plan.step == self.steps
        self.steps += 1
        for sequence in plan.finished:
            del self.known[sequence]
        for new in plan.new:
            assert new.sequence not in self.outputs, "sequence ids are never reused"
            self.known[new.sequence] = new
            self.outputs[new.sequence] = 0
        for slot in plan.unloads:
            del self.slots[slot]
        failed: list[tuple[SlotId, str]] = []
        for load in plan.loads:
            assert load.slot not in self.slots, "a slot is unloaded before it is filled"
            assert load.generation > self.generations.get(load.slot, 0), "a fill counts the generation up"
            self.generations[load.slot] = load.generation
            taken = {chunk for _, _, chunks in self.slots.values() for chunk in chunks}
            assert taken.isdisjoint(load.chunks), "a chunk belongs to two slots"
            assert load.chunks
            assert all(0 <= c < self.chunks for c in load.chunks)
            if load.slot in fail_slots:
                failed.append((load.slot, "the test says so"))
            else:
                self.slots[load.slot] = (load.generation, load.digest, load.chunks)
                self.loads += 1
        assert len({row.sequence for row in plan.sequences}) == len(plan.sequences) > 0
        rows = []
        for row in plan.sequences:
            if row.slot in {slot for slot, _ in failed}:
                self.dead.add(row.sequence)
                continue
            result = self._row(row, faults or {})
            rows.append(result)
            if result.fault is not None:
                self.dead.add(row.sequence)
        return StepResult(plan.step, tuple(rows), 0.01, tuple(failed))

    def _row(self, row: SequenceStep, faults: dict[SequenceId, str]) -> SequenceResult:
        new = self.known[row.sequence]
        if row.sequence in self.dead:
            return SequenceResult(row.sequence, (), None, "SLOT_INTEGRITY")
        adapter: AdapterDigest | None = None
        if row.slot == BASE_SLOT:
            assert row.digest is None
        else:
            held = self.slots.get(row.slot)
            if held is None or held[:2] != (row.generation, row.digest):
                return SequenceResult(row.sequence, (), None if held is None else held[1], "SLOT_INTEGRITY")
            adapter = held[1]
        end = row.start + row.query_len
        assert row.query_len >= 1
        assert len(row.block_table) == -(-end // self.page_tokens), "the table covers exactly what is computed"
        assert all(0 <= page < self.pages for page in row.block_table)
        for position in range(row.start, end):
            self.kv[row.block_table[position // self.page_tokens], position % self.page_tokens] = (
                row.sequence,
                position,
            )
        for position in range(end):
            where = (row.block_table[position // self.page_tokens], position % self.page_tokens)
            assert self.kv.get(where) == (row.sequence, position), "KV is missing, or another sequence wrote over it"
        prompt = new.prompt_tokens
        assert row.logit_rows == (1 if end >= prompt else 0)
        if row.start >= prompt:
            assert row.query_len == 1
            assert row.start == prompt + self.outputs[row.sequence] - 1, "a decode feeds the last known id"
        else:
            assert end <= prompt
        if row.sequence in faults:
            return SequenceResult(row.sequence, (), adapter, faults[row.sequence])
        if not row.logit_rows:
            return SequenceResult(row.sequence, (), adapter)
        index = self.outputs[row.sequence]
        self.outputs[row.sequence] += 1
        return SequenceResult(row.sequence, (self.token(row.sequence, index),), adapter)
