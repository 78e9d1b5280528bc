"""A runner under plans made by hand: sequences in one batch, chunked and resumed at will, and the oracle beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lorry.engine.arena import AdapterArena
from lorry.engine.runner import CpuRunner
from lorry.ids import BASE_SLOT, Generation, PageId, SequenceId
from lorry.layers.kv import KVView
from lorry.models.decoder import Decoder
from lorry.models.weights import load_tensors, read_spec
from lorry.request import OutputParams, SamplingParams, TokenLogprobs
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep, StepPlan
from lorry_kernels.reference import adjust_reference, sample_reference

PAGE_TOKENS = 16
PAGES_EACH = 16
GREEDY = SamplingParams(temperature=0.0)
SILENT = OutputParams()
NONE_YET = SequenceId(-1)


@dataclass(slots=True)
class Run:
    """What to run, and what came of it. ``resume_at``: after so many output tokens it is forgotten and begins anew
    under another id, with all its ids so far."""

    prompt: Sequence[int]
    sampling: SamplingParams = GREEDY
    tokens: int = 8
    choice: int = 0
    output: OutputParams = SILENT
    chunk: int = 64
    resume_at: int | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    fault: str | None = None
    sequence: SequenceId = NONE_YET
    done: int = 0

    @property
    def known(self) -> tuple[int, ...]:
        return (*self.prompt, *self.ids)

    @property
    def over(self) -> bool:
        return self.fault is not None or len(self.ids) >= self.tokens


class Planner:
    """Runs ``Run``s together, one step after another; every step takes a chunk or a token of each."""

    def __init__(self, base: Path, runs: int = 8) -> None:
        spec = read_spec(base)
        self.decoder = Decoder(spec, load_tensors(base, spec, torch.float32))
        kv = KVView.allocate(spec, runs * PAGES_EACH, PAGE_TOKENS)
        self.arena = AdapterArena(spec, 2, 8)
        self.runner = CpuRunner(self.decoder, kv, self.arena, lambda digest: None)
        self._sequences = itertools.count()
        self._steps = itertools.count()
        self._finished: list[SequenceId] = []

    def run(self, *runs: Run) -> None:
        tables = [tuple(PageId(i * PAGES_EACH + page) for page in range(PAGES_EACH)) for i in range(len(runs))]
        fresh = list(runs)
        while left := [run for run in runs if not run.over]:
            for run in left:
                if run.resume_at is not None and len(run.ids) >= run.resume_at:
                    self._finished.append(run.sequence)
                    run.resume_at, run.done = None, 0
                    fresh.append(run)
            new = [self._begin(run) for run in fresh]
            fresh = []
            rows = tuple(self._row(run, tables[runs.index(run)]) for run in left)
            plan = StepPlan(next(self._steps), tuple(self._finished), tuple(new), (), (), rows)
            self._finished = []
            result = self.runner.collect(self.runner.submit(plan))
            found = {one.sequence: one for one in result.results}
            for run, row in zip(left, rows, strict=True):
                self._take(run, row, found[run.sequence])
        self._finished.extend(run.sequence for run in runs)

    def _begin(self, run: Run) -> NewSequence:
        run.sequence = SequenceId(next(self._sequences))
        return NewSequence(run.sequence, run.known, len(run.prompt), run.sampling, run.choice, run.output)

    def _row(self, run: Run, table: tuple[PageId, ...]) -> SequenceStep:
        known = len(run.known)
        count = min(run.chunk, known - run.done)
        scored = 0
        if run.output.prompt_logprobs is not None and run.done == len(run.prompt_logprobs):
            scored = min(count, len(run.prompt) - 1 - run.done)
        last = int(run.done + count == known)
        return SequenceStep(
            run.sequence, run.done, count, last, BASE_SLOT, Generation(0), None, table, score_rows=scored
        )

    @staticmethod
    def _take(run: Run, row: SequenceStep, result: SequenceResult) -> None:
        run.fault = result.fault
        run.done += row.query_len
        run.ids.extend(result.tokens)
        run.logprobs.extend(result.logprobs)
        run.prompt_logprobs.extend(result.prompt_logprobs)


def oracle_ids(model: Any, prompt: Sequence[int], tokens: int, sampling: SamplingParams, choice: int = 0) -> list[int]:
    """transformers' logits under the reference's penalties and the reference's draws."""
    ids: list[int] = []
    for _ in range(tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, -1].tolist()
        adjusted = adjust_reference(
            logits,
            prompt,
            ids,
            repetition=sampling.repetition_penalty,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
            bias=sampling.logit_bias,
        )
        token = sample_reference(
            adjusted,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=sampling.seed,
            choice=choice,
            position=len(prompt) + len(ids),
        )
        ids.append(token)
    return ids


def oracle_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """float64 log-softmax of transformers' logits: row i is the distribution of token i + 1 of prompt and output."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0]
    return torch.log_softmax(logits.double(), -1)


def check_logprobs(found: Sequence[TokenLogprobs], tokens: Sequence[int], want: torch.Tensor, top: int) -> None:
    """``want[i]`` is the distribution of ``tokens[i]``."""
    assert [one.token_id for one in found] == list(tokens)
    for one, row in zip(found, want, strict=True):
        assert abs(one.logprob - float(row[one.token_id])) < 1e-4
        assert len(one.top) == top
        for token, logprob in one.top:
            assert abs(logprob - float(row[token])) < 1e-4
        stated = [logprob for _, logprob in one.top]
        assert stated == sorted(stated, reverse=True)
        if top:
            # The likeliest, give or take what lies within the two models' difference.
            assert min(stated) > float(torch.topk(row, top).values[-1]) - 2e-4


__all__ = ["GREEDY", "Planner", "Run", "check_logprobs", "oracle_ids", "oracle_logprobs"]
