"""A step's logits become tokens and logprobs, each under its own sequence's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lorry.ids import SequenceId
from lorry.request import OutputParams, SamplingParams, TokenLogprobs
from lorry.scheduler.plan import NewSequence, SequenceStep
from lorry_kernels.cpu import Penalties, RowSampling, logprobs, sample

SCORE_ROWS = 64
"""Rows whose logits exist at once while a prompt is scored: 12.6 MB of them at 49,152 ids."""


@dataclass(slots=True)
class SequenceState:
    """What the runner keeps of one sequence. ``penalties`` only where its sampling is not plain; they derive from
    ``ids`` alone, so a sequence that resumes counts what it had counted. ``largest_id`` is of those that it came with,
    the biased ones too: what is drawn has a row."""

    ids: list[int]
    sampling: SamplingParams
    choice: int
    output: OutputParams
    penalties: Penalties | None
    largest_id: int
    started: bool = False

    @classmethod
    def of(cls, new: NewSequence) -> SequenceState:
        sampling, penalties = new.sampling, None
        if not sampling.plain:
            penalties = Penalties(
                new.token_ids[: new.prompt_tokens],
                new.token_ids[new.prompt_tokens :],
                repetition=sampling.repetition_penalty,
                frequency=sampling.frequency_penalty,
                presence=sampling.presence_penalty,
                bias=sampling.logit_bias,
            )
        largest = max(*new.token_ids, *(token for token, _ in sampling.logit_bias), 0)
        return cls(list(new.token_ids), sampling, new.choice, new.output, penalties, largest)

    def append(self, token: int) -> None:
        """``token`` was drawn."""
        self.ids.append(token)
        if self.penalties is not None:
            self.penalties.add(token)

    def row(self, position: int) -> RowSampling:
        """How the token at ``position`` is drawn."""
        p = self.sampling
        return RowSampling(p.temperature, p.top_k, p.top_p, p.min_p, p.seed, self.choice, position, self.penalties)


class Drawn(NamedTuple):
    """``logprobs`` is of ``token``, where its sequence asks for them."""

    token: int
    logprobs: tuple[TokenLogprobs, ...]


def draw(
    steps: Sequence[SequenceStep], states: Mapping[SequenceId, SequenceState], logits: Tensor
) -> dict[SequenceId, Drawn | None]:
    """One token for each of ``steps``, whose rows of ``logits`` ``[len(steps), V]`` stand in their order. None where
    they are not finite. Draws change no state."""
    if not steps:
        return {}
    tokens, finite = sample(logits, [states[step.sequence].row(step.start + step.query_len) for step in steps])
    tops = [states[step.sequence].output.top_logprobs for step in steps]
    wanted = [i for i, top in enumerate(tops) if top is not None and finite[i]]
    scored: dict[int, tuple[TokenLogprobs, ...]] = {}
    if wanted:
        rows = logits.index_select(0, torch.tensor(wanted))
        found = _logprobs(rows, [tokens[i] for i in wanted], [tops[i] or 0 for i in wanted])
        scored = {i: (one,) for i, one in zip(wanted, found, strict=True)}
    return {step.sequence: Drawn(tokens[i], scored.get(i, ())) if finite[i] else None for i, step in enumerate(steps)}


def score_prompt(
    step: SequenceStep, state: SequenceState, hidden: Tensor, head: Callable[[Tensor], Tensor]
) -> tuple[TokenLogprobs, ...] | None:
    """The logprobs of the prompt tokens that follow the step's first ``score_rows`` rows, whose states are ``hidden``
    ``[score_rows, H]``. None where a logit of them is not finite."""
    wanted, top = state.ids[step.start + 1 : step.start + 1 + step.score_rows], state.output.prompt_logprobs or 0
    found: list[TokenLogprobs] = []
    for begin in range(0, step.score_rows, SCORE_ROWS):
        logits = head(hidden[begin : begin + SCORE_ROWS])
        if not all(bool(torch.isfinite(edge)) for edge in torch.aminmax(logits)):
            return None
        tokens = wanted[begin : begin + SCORE_ROWS]
        found.extend(_logprobs(logits, tokens, [top] * len(tokens)))
    return tuple(found)


def _logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprobs]:
    rows = logprobs(logits, tokens, tops)
    return [TokenLogprobs(token, row.logprob, row.top) for token, row in zip(tokens, rows, strict=True)]


__all__ = ["SCORE_ROWS", "Drawn", "SequenceState", "draw", "score_prompt"]
