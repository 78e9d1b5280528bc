"""The only things that cross between scheduler and runner: StepPlan down, StepResult up.

A plan never depends on values sampled in the step before it: the runner keeps each sequence's last
sampled token, so a plan for step k+1 can be made while step k runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lorry.ids import AdapterKey, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.request import OutputParams, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Sent once, with the first step of a sequence. One that resumes after preemption is a new sequence.

    ``token_ids`` are all ids known so far: the prompt, and on a resume the output too.
    ``prompt_tokens`` tells where the output begins: output token i has position prompt_tokens + i,
    which is the position its draw is counted by. What the penalties count is derived from these ids.
    """

    sequence: SequenceId
    token_ids: tuple[int, ...] = field(repr=False)
    prompt_tokens: int
    sampling: SamplingParams
    choice: int = 0
    output: OutputParams = OutputParams()


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """Copy the host tier's device image of ``adapter`` into ``chunks``, then publish the slot.

    The runner does this before the step's forward pass, in order. ``chunks`` are ``ceil(rank / chunk_rank)`` of them,
    not necessarily adjacent, in rank order; none for an adapter without rank rows. What else the adapter brings has its
    bytes in the budget, and no place: the runner allocates it here, and lets it go at the slot's unload.
    """

    slot: SlotId
    generation: Generation
    adapter: AdapterKey
    chunks: tuple[ChunkId, ...]


class SequenceStep(NamedTuple):
    """One sequence's part of a step: ``query_len`` tokens at positions ``start ..``.

    A named tuple, as one is made for every row of every step and a frozen dataclass costs four times as much.

    A prefill chunk takes its ids from NewSequence.token_ids[start:start + query_len]; a decode step
    (start == number of known ids - 1) takes the last known id, sampled or given.
    ``logit_rows`` counts the last query rows that need logits and a sampled token: 0 for a prefill
    chunk that is not the last, 1 otherwise. ``block_table`` covers positions 0 .. start+query_len-1.
    ``slot`` is BASE_SLOT for the base; else (slot, generation, adapter) must match the device's table.

    The first ``shared_pages`` pages of the table hold another sequence's keys and values of the same prefix: they are
    read and never written or cleared. ``start`` may lie within them by one token only, where the whole prompt was
    cached: its logits are computed and its keys and values, which are there already, are not stored.
    ``score_rows``: so many of the first query rows also score the prompt token after them (row i the token at
    start + i + 1), for the prompt's logprobs.
    """

    sequence: SequenceId
    start: int
    query_len: int
    logit_rows: int
    slot: SlotId
    generation: Generation
    adapter: AdapterKey | None
    block_table: tuple[PageId, ...]
    shared_pages: int = 0
    score_rows: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything the runner needs for one step, in this order: ``finished`` sequences are forgotten, ``unloads`` empty
    their slots (one is empty already where its load failed in a step that was under way), the memory behind
    ``idle_pages`` and ``idle_chunks`` (which nothing uses now) goes back to the system, ``loads`` fill slots, the rows
    run. An id that was given back may be used again in the same plan; its memory then reads as zero."""

    step: int
    finished: tuple[SequenceId, ...]
    new: tuple[NewSequence, ...]
    unloads: tuple[SlotId, ...]
    loads: tuple[SlotLoad, ...]
    sequences: tuple[SequenceStep, ...]
    idle_pages: tuple[PageId, ...] = ()
    idle_chunks: tuple[ChunkId, ...] = ()

    @property
    def distinct_adapters(self) -> int:
        """Distinct adapters among the rows, the base counted as one."""
        return len({s.slot for s in self.sequences})

    @property
    def tokens(self) -> int:
        return sum(s.query_len for s in self.sequences)


class SequenceResult(NamedTuple):
    """``tokens`` has one id per logit row. ``adapter`` is read from the device's slot table, not from the plan.
    ``fault`` is a reason of lorry.errors (`NON_FINITE_LOGITS`, `SLOT_INTEGRITY`): that sequence ends, no other does,
    and what the next plan has of it, where that was made already, has the same fault. ``logprobs``: one for each of
    ``tokens`` where the sequence's OutputParams ask for them. ``prompt_logprobs``: one for each score row."""

    sequence: SequenceId
    tokens: tuple[int, ...]
    adapter: AdapterKey | None
    fault: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    results: tuple[SequenceResult, ...]
    seconds: float
    failed_loads: tuple[tuple[SlotId, str], ...] = ()
    """Slots whose load did not happen, with the reason; no sequence on them ran."""
    lost: tuple[AdapterKey, ...] = ()
    """Versions whose bytes on the device turned out to be others when their slot was unloaded: what was computed with
    them cannot be trusted."""


__all__ = ["NewSequence", "SequenceResult", "SequenceStep", "SlotLoad", "StepPlan", "StepResult"]
