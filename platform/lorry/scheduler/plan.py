"""The only things that cross between scheduler and runner: StepPlan down, StepResult up.

A plan never depends on values sampled in the step before it: the runner keeps each sequence's last
sampled token, so a plan for step k+1 can be made while step k runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from lorry.ids import AdapterDigest, ChunkId, Generation, PageId, SequenceId, SlotId
from lorry.request import SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Sent once, with the first step of a sequence (and again when it resumes after preemption).

    ``token_ids`` are all ids known so far: the prompt, and on a resume the output too.
    ``prompt_tokens`` tells where the output begins: output token i has position prompt_tokens + i,
    which is the position its draw is counted by.
    """

    sequence: SequenceId
    token_ids: tuple[int, ...]
    prompt_tokens: int
    sampling: SamplingParams
    choice: int = 0


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """Copy the host tier's device image of ``digest`` into ``chunks``, then publish the slot.

    The runner does this before the step's forward pass, in order. ``chunks`` hold
    ``ceil(rank / chunk_rank)`` adapter pages, not necessarily adjacent, in rank order.
    """

    slot: SlotId
    generation: Generation
    digest: AdapterDigest
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's part of a step: ``query_len`` tokens at positions ``start ..``.

    A prefill chunk takes its ids from NewSequence.token_ids[start:start + query_len]; a decode step
    (start == number of known ids - 1) takes the last known id, sampled or given.
    ``logit_rows`` counts the last query rows that need logits and a sampled token: 0 for a prefill
    chunk that is not the last, 1 otherwise. ``block_table`` covers positions 0 .. start+query_len-1.
    ``slot`` is BASE_SLOT for the base; else (slot, generation, digest) must match the device's table.
    """

    sequence: SequenceId
    start: int
    query_len: int
    logit_rows: int
    slot: SlotId
    generation: Generation
    digest: AdapterDigest | None
    block_table: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything the runner needs for one step. ``finished`` sequences are forgotten first."""

    step: int
    finished: tuple[SequenceId, ...]
    new: tuple[NewSequence, ...]
    unloads: tuple[SlotId, ...]
    loads: tuple[SlotLoad, ...]
    sequences: tuple[SequenceStep, ...]

    @property
    def distinct_adapters(self) -> int:
        """Distinct adapters among the rows, the base counted as one."""
        return len({s.slot for s in self.sequences})

    @property
    def tokens(self) -> int:
        return sum(s.query_len for s in self.sequences)


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """``tokens`` has one id per logit row. ``adapter`` is read from the device's slot table, not from
    the plan. ``fault`` is a reason of lorry.errors (`NON_FINITE_LOGITS`, `SLOT_INTEGRITY`): that
    sequence ends, no other does."""

    sequence: SequenceId
    tokens: tuple[int, ...]
    adapter: AdapterDigest | None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    results: tuple[SequenceResult, ...]
    seconds: float
    failed_loads: tuple[tuple[SlotId, str], ...] = ()
    """Slots whose load did not happen, with the reason; no sequence on them ran."""


__all__ = ["NewSequence", "SequenceResult", "SequenceStep", "SlotLoad", "StepPlan", "StepResult"]
