"""A running sequence: how far it is planned, what it has put out, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from lorry.ids import BASE_SLOT, AdapterDigest, Generation, PageId, SequenceId, SlotId
from lorry.residency.host import R
from lorry.scheduler.entry import Entry
from lorry.scheduler.plan import NewSequence, SequenceStep
from lorry.scheduler.requests import Ending, FirstStep


@dataclass(slots=True, eq=False)
class Running(Generic[R]):
    """``planned`` positions have been put into plans; a plan may run ahead of its results, so ``output`` can
    be shorter than what is planned. ``last_step`` is the last plan that the sequence is in."""

    entry: Entry[R]
    sequence: SequenceId
    admitted_at: float
    slot: SlotId = BASE_SLOT
    generation: Generation = field(default_factory=lambda: Generation(0))
    planned: int = 0
    last_step: int = -1
    output: list[int] = field(default_factory=list)
    first_token_at: float | None = None
    last_token_at: float = 0.0
    max_distinct: int = 0
    min_distinct: int = 0
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.stop_ids = frozenset(self.entry.request.stopping.stop_token_ids)

    @property
    def digest(self) -> AdapterDigest | None:
        return self.entry.digest

    @property
    def prompt_tokens(self) -> int:
        return len(self.entry.request.prompt)

    @property
    def prefill_left(self) -> int:
        """Prompt tokens that no plan has yet; 0 or less: it decodes."""
        return len(self.entry.request.prompt) - self.planned

    @property
    def planned_out(self) -> bool:
        """Its last token is in a plan already: output token i is sampled at position prompt + i - 1."""
        return self.planned >= len(self.entry.request.prompt) + self.entry.request.stopping.max_tokens - 1

    def as_new(self) -> NewSequence:
        request = self.entry.request
        return NewSequence(self.sequence, request.prompt, len(request.prompt), request.sampling)

    def advance(self, step: int, query_len: int, block_table: tuple[PageId, ...]) -> SequenceStep:
        """Put the next ``query_len`` positions, which ``block_table`` covers, into plan ``step``."""
        start = self.planned
        self.planned += query_len
        self.last_step = step
        rows = 1 if self.planned >= len(self.entry.request.prompt) else 0
        return SequenceStep(self.sequence, start, query_len, rows, self.slot, self.generation, self.digest, block_table)

    def note_distinct(self, adapters: int) -> None:
        self.max_distinct = max(self.max_distinct, adapters)
        self.min_distinct = min(self.min_distinct, adapters) if self.min_distinct else adapters

    def accept(self, tokens: tuple[int, ...], now: float, eos: frozenset[int]) -> tuple[tuple[int, ...], Ending | None]:
        """Append sampled ids: the ones to print, and the ending if one of them ends the sequence.

        A stop id ends it only after ``min_tokens`` other output tokens; it is counted and not printed. What
        was sampled beyond the end is dropped.
        """
        stopping = self.entry.request.stopping
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        printed: list[int] = []
        for token in tokens:
            before = len(self.output)
            self.output.append(token)
            stops = token in self.stop_ids or (token in eos and not stopping.ignore_eos)
            if stops and before >= stopping.min_tokens:
                return tuple(printed), self.ending("stop", token)
            printed.append(token)
            if before + 1 >= stopping.max_tokens:
                return tuple(printed), self.ending("length", None)
        return tuple(printed), None

    def first_step(self) -> FirstStep:
        entry = self.entry
        ready_at = entry.added_at if entry.ready_at is None else entry.ready_at
        return FirstStep(entry.tier, self.admitted_at - entry.added_at, ready_at - entry.added_at)

    def ending(self, reason: str, stop_id: int | None) -> Ending:
        first = self.last_token_at if self.first_token_at is None else self.first_token_at
        return Ending(
            reason=reason,
            matched_stop_id=stop_id,
            prompt_tokens=self.prompt_tokens,
            output_tokens=len(self.output),
            cached_prompt_tokens=0,
            prefill_s=first - self.admitted_at,
            ttft_s=first - self.entry.added_at,
            decode_s=self.last_token_at - first,
            max_distinct_adapters=self.max_distinct,
            min_distinct_adapters=self.min_distinct,
        )


__all__ = ["Running"]
