"""The first steps, made before anybody waits for them. Torch-free: it speaks to a runner in plans."""

from __future__ import annotations

from typing import Any, Protocol

from lorry.config import SchedulerConfig
from lorry.errors import NonFiniteLogits
from lorry.ids import BASE_SLOT, Generation, PageId, SequenceId
from lorry.request import SamplingParams
from lorry.scheduler.plan import NewSequence, SequenceStep, StepPlan, StepResult

CPU_CHUNK_TOKENS = 64
"""Of a CPU's prefill step: the largest takes seconds, and the first one of a request no longer than it does later."""


class Runner(Protocol):
    def submit(self, plan: StepPlan) -> Any: ...

    def collect(self, handle: Any) -> StepResult: ...


def warm_up(
    runner: Runner, limits: SchedulerConfig, pages: int, page_tokens: int, chunk_tokens: int | None = None
) -> None:
    """A prefill chunk of ``chunk_tokens`` (None, and at most, the largest), and decode steps of one row, of as many as
    may run at once and of the powers of two between: so no request pays for lazy initialisation, thread teams or (with
    the largest chunk) memory that is touched first. Products are compiled for each number of rows, which costs its
    first step 2 to 4 ms; a step of every number here would take a CPU seconds. Call it on the thread that runs the
    steps, since a thread team belongs to its caller. The pages used are given back.

    Raises NonFiniteLogits for a base whose own logits are not finite.
    """
    most = limits.prefill_chunk_tokens if chunk_tokens is None else min(chunk_tokens, limits.prefill_chunk_tokens)
    chunk = max(1, min(most, limits.token_budget, limits.context_tokens - 2, (pages - 1) * page_tokens))
    first = tuple(PageId(page) for page in range(min(pages, -(-(chunk + 2) // page_tokens))))
    rows = max(1, min(limits.max_sequences, limits.token_budget, 1 + pages - len(first)))
    long = SequenceId(-1)
    others = [SequenceId(-2 - i) for i in range(rows - 1)]
    greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
    news = [NewSequence(long, (0,) * chunk, chunk, greedy), *(NewSequence(one, (0,), 1, drawn) for one in others)]
    singles = [_row(one, 0, 1, (PageId(len(first) + i),)) for i, one in enumerate(others)]
    steps: tuple[tuple[tuple[NewSequence, ...], tuple[SequenceStep, ...]], ...] = (
        ((news[0],), (_row(long, 0, chunk, first),)),
        ((), (_row(long, chunk, 1, first),)),
        (tuple(news[1:]), (_row(long, chunk + 1, 1, first), *singles)),
        *(((), tuple(singles[:count])) for count in range(rows - 1, 1, -1) if not count & (count - 1)),
    )
    for number, (new, sequences) in enumerate(steps, -1 - len(steps)):
        plan = StepPlan(number, (), new, (), (), sequences)
        for result in runner.collect(runner.submit(plan)).results:
            if result.fault is not None:
                raise NonFiniteLogits(f"the base's own logits are not finite ({result.fault}); check its weights")
    used = (*first, *(page for row in singles for page in row.block_table))
    runner.submit(StepPlan(-1, (long, *others), (), (), (), (), idle_pages=used))


def _row(sequence: SequenceId, start: int, length: int, table: tuple[PageId, ...]) -> SequenceStep:
    return SequenceStep(sequence, start, length, 1, BASE_SLOT, Generation(0), None, table)


__all__ = ["CPU_CHUNK_TOKENS", "Runner", "warm_up"]
