"""A running sequence: how far it is planned, what it has put out, and when it ends."""

from __future__ import annotations

from typing import Generic

from lorry.ids import BASE_SLOT, Generation, PageId, SequenceId, SlotId
from lorry.kvcache import Block
from lorry.request import OutputParams, TokenLogprobs
from lorry.residency.host import R
from lorry.scheduler.entry import Entry
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep
from lorry.scheduler.requests import Ending, FirstStep

NEVER = 1 << 62


class Running(Generic[R]):
    """Made when a request first runs and kept over its preemptions. A plain class with slots, since the step loop reads
    and writes it for every row.

    ``known``: ids that were known when it (re)joined: the prompt, and what it had put out. ``planned`` positions have
    been put into plans; a plan may run ahead of its results, so ``output`` can be shorter than what is planned.
    ``room``: positions that ``table`` covers. ``cached``: the table's first pages, which were another's when it
    joined. ``last_step``: the last plan that the sequence is in.
    """

    __slots__ = (
        "adapter",
        "admitted_at",
        "blocks",
        "cached",
        "cached_prompt_tokens",
        "entry",
        "first_token_at",
        "generation",
        "known",
        "last_position",
        "last_step",
        "last_token_at",
        "max_distinct",
        "max_tokens",
        "min_distinct",
        "output",
        "planned",
        "preemptions",
        "prompt_tokens",
        "publish_at",
        "request_id",
        "room",
        "scored",
        "sequence",
        "slot",
        "stop_ids",
        "table",
    )

    def __init__(self, entry: Entry[R], now: float, eos: frozenset[int]) -> None:
        request = entry.request
        self.entry = entry
        self.request_id = request.request_id
        self.adapter = entry.adapter
        self.admitted_at = now
        self.sequence = SequenceId(-1)
        self.slot: SlotId = BASE_SLOT
        self.generation = Generation(0)
        self.prompt_tokens = len(request.prompt)
        self.max_tokens = request.stopping.max_tokens
        # Output token i is sampled at position prompt + i - 1.
        self.last_position = self.prompt_tokens + request.stopping.max_tokens - 1
        self.known = 0
        self.planned = 0
        self.room = 0
        self.table: tuple[PageId, ...] = ()
        self.cached = 0
        self.cached_prompt_tokens = 0
        self.blocks: list[Block] = []
        self.publish_at = NEVER
        self.last_step = -1
        self.output: list[int] = []
        self.scored = 0
        self.preemptions = 0
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.max_distinct = 0
        self.min_distinct = 0
        own = request.end_ids
        ends = frozenset() if request.stopping.ignore_eos else eos if own is None else frozenset(own)
        self.stop_ids = ends | frozenset(request.stopping.stop_token_ids)

    @property
    def prefill_left(self) -> int:
        """Known ids that no plan has yet; 0 or less: it decodes."""
        return self.known - self.planned

    @property
    def advanced(self) -> bool:
        """It has put out a token since it (re)joined."""
        return self.prompt_tokens + len(self.output) > self.known

    @property
    def wants_scores(self) -> bool:
        """Prompt tokens are still to be scored: token 0 is not, choices after the first have the same."""
        request = self.entry.request
        asked = request.output.prompt_logprobs is not None and not request.choice
        return asked and self.scored < self.prompt_tokens - 1

    def join(self, sequence: SequenceId, blocks: list[Block], page_tokens: int) -> None:
        """Begin, or begin again after a preemption, with the KV of ``blocks`` there."""
        self.sequence = sequence
        self.known = self.prompt_tokens + len(self.output)
        self.blocks = blocks
        self.cached = len(blocks)
        # Of a prompt that is cached to its end the last token is computed again, for its logits.
        self.planned = min(self.cached * page_tokens, self.known - 1)
        self.room, self.table = self.cached * page_tokens, ()
        self.publish_at = NEVER if self.entry.root is None else (self.cached + 1) * page_tokens
        if self.preemptions == 0:
            self.cached_prompt_tokens = self.planned

    def as_new(self) -> NewSequence:
        request = self.entry.request
        ids = (*request.prompt, *self.output) if self.output else request.prompt
        output = request.output
        if request.choice:
            output = OutputParams(output.top_logprobs, None)
        return NewSequence(self.sequence, ids, self.prompt_tokens, request.sampling, request.choice, output)

    def advance(self, step: int, query_len: int, table: tuple[PageId, ...], page_tokens: int) -> SequenceStep:
        """Put the next ``query_len`` positions, which ``table`` covers, into plan ``step``."""
        start = self.planned
        self.planned += query_len
        self.last_step = step
        self.table, self.room = table, len(table) * page_tokens
        score = max(0, min(query_len, self.prompt_tokens - 1 - start)) if self.wants_scores else 0
        return SequenceStep(
            self.sequence,
            start,
            query_len,
            1 if self.planned >= self.known else 0,
            self.slot,
            self.generation,
            self.adapter,
            table,
            self.cached,
            score,
        )

    def ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Ids of prompt and output at these positions."""
        prompt = self.entry.request.prompt
        if stop <= self.prompt_tokens:
            return prompt[start:stop]
        return (*prompt[start:], *self.output[max(0, start - self.prompt_tokens) : stop - self.prompt_tokens])

    def take_scores(self, row: SequenceStep, result: SequenceResult) -> tuple[TokenLogprobs, ...]:
        """The prompt logprobs that are new: what was scored before a preemption is passed over."""
        if not row.score_rows:
            return ()
        new = result.prompt_logprobs[max(0, self.scored - row.start) :]
        self.scored = max(self.scored, row.start + row.score_rows)
        return new

    def accept(self, tokens: tuple[int, ...], now: float) -> tuple[tuple[int, ...], Ending | None]:
        """Append sampled ids: the ones to print, and the ending if one of them ends the sequence.

        A stop id ends it only after ``min_tokens`` other output tokens; it is counted and not printed. What
        was sampled beyond the end is dropped.
        """
        stopping, output = self.entry.request.stopping, self.output
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        for index, token in enumerate(tokens):
            before = len(output)
            output.append(token)
            if token in self.stop_ids and before >= stopping.min_tokens:
                return tokens[:index], self.ending("stop", token)
            if before + 1 >= stopping.max_tokens:
                return tokens[: index + 1], self.ending("length", None)
        return tokens, None

    def note_distinct(self, adapters: int) -> None:
        if adapters > self.max_distinct:
            self.max_distinct = adapters
        if adapters < self.min_distinct or not self.min_distinct:
            self.min_distinct = adapters

    def goes_on(self, row: SequenceStep, result: SequenceResult, now: float, distinct: int) -> bool:
        """Take in the result of a decode step with nothing remarkable about it, as nearly all are: no fault, no page
        that filled, no ending. False, and nothing changed, for every other: ``accept`` and its callers see to those."""
        _, start, query_len, logit_rows, _, _, adapter, _, _, score_rows = row
        _, tokens, ran, fault, _, _ = result
        if query_len != 1 or logit_rows != 1 or score_rows or fault is not None or ran != adapter:
            return False
        if len(tokens) != 1 or self.first_token_at is None or start + 1 >= self.publish_at:
            return False
        output = self.output
        if tokens[0] in self.stop_ids or len(output) + 1 >= self.max_tokens:
            return False
        output.append(tokens[0])
        self.last_token_at = now
        if distinct != self.max_distinct or distinct != self.min_distinct:
            self.note_distinct(distinct)
        return True

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
            cached_prompt_tokens=self.cached_prompt_tokens,
            prefill_s=first - self.admitted_at,
            ttft_s=first - self.entry.added_at,
            decode_s=self.last_token_at - first,
            max_distinct_adapters=self.max_distinct,
            min_distinct_adapters=self.min_distinct,
        )


__all__ = ["NEVER", "Running"]
