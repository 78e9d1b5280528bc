"""Tokens of a step on the device; what asks for more than a token and its logprob is done on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lorry.engine.gpu.block_tables import upload
from lorry.engine.sampler import Drawn, SequenceState, draw
from lorry.ids import SequenceId
from lorry.request import TokenLogprobs
from lorry.scheduler.plan import SequenceStep
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, sample

_DIVISOR = 16
"""Of a number: Triton compiles a kernel of its own for those that it divides."""
Draws = Callable[[], dict[SequenceId, Drawn | None]]
"""Waits for the device."""


def draw_on_device(steps: Sequence[SequenceStep], states: Mapping[SequenceId, SequenceState], logits: Tensor) -> Draws:
    """As ``lorry.engine.sampler.draw``. Rows that are penalised or want alternatives go to the host with their logits;
    of all others a token, whether it is finite, and where one is wanted a logprob."""
    if not steps:
        return dict
    asked = [states[step.sequence] for step in steps]
    host = [i for i, state in enumerate(asked) if state.penalties is not None or (state.output.top_logprobs or 0) > 0]
    own = [i for i in range(len(steps)) if i not in set(host)]
    parts: list[Draws] = []
    if own:
        rows = logits if len(own) == len(steps) else logits.index_select(0, _ids(own, logits.device))
        parts.append(_drawn([steps[i] for i in own], states, rows))
    if host:
        rows = logits.index_select(0, _ids(host, logits.device)).float().cpu()
        found = draw([steps[i] for i in host], states, rows)
        parts.append(lambda: found)

    def result() -> dict[SequenceId, Drawn | None]:
        return {sequence: drawn for part in parts for sequence, drawn in part().items()}

    return result


def _drawn(steps: Sequence[SequenceStep], states: Mapping[SequenceId, SequenceState], logits: Tensor) -> Draws:
    params = [states[step.sequence].row(step.start + step.query_len) for step in steps]
    rows = None
    if any(row.temperature > 0 for row in params):
        device = logits.device
        whole = upload(torch.tensor([[_signed(r.seed), r.choice, r.position, r.top_k] for r in params]), device)
        real = upload(torch.tensor([[r.temperature, r.top_p, r.min_p] for r in params], dtype=torch.float64), device)
        seed, choice, position, top_k = (column.contiguous() for column in whole.unbind(1))
        temperature, top_p, min_p = (column.contiguous() for column in real.unbind(1))
        filters = None
        if any(row.top_k or row.top_p < 1 or row.min_p > 0 for row in params):
            filters = SamplingFilters(top_k.to(torch.int32), top_p, min_p)
        rows = SamplingRows(temperature, seed, choice, position, filters)
    tokens, finite = sample(logits, rows)
    scored = [i for i, step in enumerate(steps) if states[step.sequence].output.top_logprobs is not None]
    scores = logprobs(logits, tokens)[0] if scored else None

    def result() -> dict[SequenceId, Drawn | None]:
        ids, good = tokens.tolist(), finite.tolist()
        values = {} if scores is None else dict(zip(scored, scores[scored].tolist(), strict=True))
        found: dict[SequenceId, Drawn | None] = {}
        for i, step in enumerate(steps):
            own = (TokenLogprobs(ids[i], values[i], ()),) if i in values else ()
            found[step.sequence] = Drawn(ids[i], own) if good[i] else None
        return found

    return result


def warm_draws(logits: Tensor) -> None:
    """Every way to draw from rows like these, once: what it launches is compiled then. A kernel is compiled once for
    vocabularies of a multiple of 16 and once for all others, and an adapter may bring its own: so both kinds."""
    other = _DIVISOR + 1 if logits.shape[1] % _DIVISOR == 0 else _DIVISOR
    for rows in (logits[:1], torch.zeros(1, other, dtype=logits.dtype, device=logits.device)):
        _warm_draws(rows)


def _warm_draws(logits: Tensor) -> None:
    zeros = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    ones = torch.ones(logits.shape[0], dtype=torch.float64, device=logits.device)
    for filters in (None, SamplingFilters(zeros.to(torch.int32), ones, zeros.to(torch.float64))):
        sample(logits, SamplingRows(ones, zeros, zeros, zeros, filters))
    tokens, _ = sample(logits)
    logprobs(logits, tokens)


def _signed(seed: int) -> int:
    """The same 64 bits."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _ids(rows: Sequence[int], device: torch.device) -> Tensor:
    return upload(torch.tensor(rows, dtype=torch.int64), device)


__all__ = ["Draws", "draw_on_device", "warm_draws"]
