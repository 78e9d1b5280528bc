"""A device that computes nothing and checks everything: it carries out plans against its own slot table,
chunk owners and KV pages, and objects to any that a real one could not carry out rightly.

What it stores for a position is the identity of what a real device would have computed there: the adapter and all ids
up to that position. So a page that is shared, resumed or evicted wrongly shows at the first read. Tokens depend on that
identity and on the draw's position alone, as those of a real device do, whatever was preempted or cached. And it counts
the physical memory that a real one would have: never more than the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lorry.errors import SlotIntegrity
from lorry.ids import BASE_SLOT, AdapterKey, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.memory import MemorySplit
from lorry.request import TokenLogprobs
from lorry.scheduler import NewSequence, SequenceResult, SequenceStep, StepPlan, StepResult
from lorry.scheduler.plan import SlotLoad
from tests.unit.residency.memory_host import Version

TokenOf = Callable[[NewSequence, AdapterKey | None, int], int]
"""(the sequence, its adapter, the index of the output token) -> the id that is sampled."""


@dataclass
class _Known:
    new: NewSequence
    ids: list[int]
    hashes: list[int] = field(default_factory=list)
    """What the KV at each position depends on."""

    def content(self, adapter: AdapterKey | None, stop: int) -> list[int]:
        for position in range(len(self.hashes), stop):
            before = self.hashes[-1] if self.hashes else hash(adapter)
            self.hashes.append(hash((before, self.ids[position])))
        return self.hashes


@dataclass
class Device:
    """``token`` picks the id for (sequence, adapter, output index)."""

    page_tokens: int
    pages: int
    chunks: int
    split: MemorySplit
    images: dict[AdapterKey, Version] = field(default_factory=dict)
    """What the host tier has of each adapter."""
    token: TokenOf = lambda _new, _adapter, _index: 7
    slots: dict[SlotId, tuple[Generation, AdapterKey, tuple[ChunkId, ...]]] = field(default_factory=dict)
    known: dict[SequenceId, _Known] = field(default_factory=dict)
    seen: set[SequenceId] = field(default_factory=set)
    kv: dict[tuple[PageId, int], int] = field(default_factory=dict)
    dead: dict[SequenceId, str] = field(default_factory=dict)
    """Their step failed, by this fault; a plan that was made before that was known may still have rows of them."""
    generations: dict[SlotId, Generation] = field(default_factory=dict)
    steps: int = 0
    loads: int = 0
    computed: int = 0
    """Query tokens of all steps."""
    page_memory: set[PageId] = field(default_factory=set)
    chunk_memory: set[ChunkId] = field(default_factory=set)
    """Ids that were written since their memory was last given back."""
    extras: dict[SlotId, int] = field(default_factory=dict)
    """Bytes beside chunks, of filled slots."""
    unfilled: set[SlotId] = field(default_factory=set)
    """Their load failed; a plan that was made before that was known may unload them."""

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
            assert new.sequence not in self.seen, "sequence ids are never reused"
            self.seen.add(new.sequence)
            self.known[new.sequence] = _Known(new, list(new.token_ids))
        for slot in plan.unloads:
            if slot in self.unfilled:
                self.unfilled.remove(slot)
            else:
                del self.slots[slot], self.extras[slot]
        taken = {chunk for _, _, chunks in self.slots.values() for chunk in chunks}
        assert taken.isdisjoint(plan.idle_chunks), "a loaded chunk's memory is given back"
        idle = set(plan.idle_pages)
        for where in [where for where in self.kv if where[0] in idle] if idle else ():
            del self.kv[where]
        self.page_memory -= idle
        self.chunk_memory.difference_update(plan.idle_chunks)
        failed = [(load.slot, "the test says so") for load in plan.loads if self._load_fails(load, fail_slots)]
        assert len({row.sequence for row in plan.sequences}) == len(plan.sequences) > 0
        rows = []
        for row in plan.sequences:
            if row.slot in {slot for slot, _ in failed}:
                self.dead[row.sequence] = SlotIntegrity.reason
                continue
            result = self._row(row, faults or {})
            rows.append(result)
            if result.fault is not None:
                self.dead[row.sequence] = result.fault
        self._check_memory()
        return StepResult(plan.step, tuple(rows), 0.01, tuple(failed))

    def _check_memory(self) -> None:
        split = self.split
        extras = sum(self.extras.values())
        assert extras <= split.extras_bytes
        physical = len(self.page_memory) * split.page_bytes + len(self.chunk_memory) * split.chunk_bytes + extras
        assert physical <= split.budget_bytes, "more memory than the budget"

    def _load_fails(self, load: SlotLoad, fail_slots: frozenset[SlotId]) -> bool:
        """Loads it, unless the test wishes otherwise."""
        assert load.slot not in self.slots, "a slot is unloaded before it is filled"
        assert load.generation > self.generations.get(load.slot, 0), "a fill counts the generation up"
        self.generations[load.slot] = load.generation
        taken = {chunk for _, _, held in self.slots.values() for chunk in held}
        assert taken.isdisjoint(load.chunks), "a chunk belongs to two slots"
        assert len(load.chunks) == -(-self.images[load.adapter].rank // 8)
        assert all(0 <= c < self.chunks for c in load.chunks)
        self.chunk_memory.update(load.chunks)
        self.unfilled.discard(load.slot)
        if load.slot in fail_slots:
            self.unfilled.add(load.slot)
            return True
        self.slots[load.slot] = (load.generation, load.adapter, load.chunks)
        self.extras[load.slot] = self.images[load.adapter].extra_bytes
        self.loads += 1
        return False

    def _row(self, row: SequenceStep, faults: dict[SequenceId, str]) -> SequenceResult:
        known = self.known[row.sequence]
        if row.sequence in self.dead:
            return SequenceResult(row.sequence, (), None, self.dead[row.sequence])
        adapter: AdapterKey | None = None
        if row.slot == BASE_SLOT:
            assert row.adapter is None
        else:
            held = self.slots.get(row.slot)
            if held is None or held[:2] != (row.generation, row.adapter):
                return SequenceResult(row.sequence, (), None if held is None else held[1], "SLOT_INTEGRITY")
            adapter = held[1]
        self._attend(row, known, adapter)
        end, prompt = row.start + row.query_len, known.new.prompt_tokens
        if row.sequence in faults:
            return SequenceResult(row.sequence, (), adapter, faults[row.sequence])
        scores = tuple(TokenLogprobs(known.ids[row.start + i + 1], -1.0) for i in range(row.score_rows))
        assert row.start + row.score_rows <= prompt - 1 or not row.score_rows
        if not row.logit_rows:
            return SequenceResult(row.sequence, (), adapter, None, (), scores)
        token = self.token(known.new, adapter, end - prompt)
        known.ids.append(token)
        logprobs = (TokenLogprobs(token, -1.0),) if known.new.output.top_logprobs is not None else ()
        return SequenceResult(row.sequence, (token,), adapter, None, logprobs, scores)

    def _attend(self, row: SequenceStep, known: _Known, adapter: AdapterKey | None) -> None:
        """Write this row's positions, then read all positions up to its end."""
        end, size = row.start + row.query_len, self.page_tokens
        assert row.query_len >= 1
        assert end <= len(known.ids), "ids are known when they are fed"
        assert row.logit_rows == (1 if end == len(known.ids) else 0)
        assert len(row.block_table) == -(-end // size), "the table covers exactly what is computed"
        assert len(set(row.block_table)) == len(row.block_table)
        assert all(0 <= page < self.pages for page in row.block_table)
        shared = row.shared_pages * size
        assert row.start >= shared or (row.start == shared - 1 and row.query_len == 1), "shared pages are not computed"
        self.computed += row.query_len
        content = known.content(adapter, end)
        for position in range(max(row.start, shared), end):
            self.kv[row.block_table[position // size], position % size] = content[position]
            self.page_memory.add(row.block_table[position // size])
        for position in range(end):
            where = (row.block_table[position // size], position % size)
            assert self.kv.get(where) == content[position], "KV is missing, or something else is there"
