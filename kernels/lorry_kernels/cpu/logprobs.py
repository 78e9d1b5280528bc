"""Log-softmax of a batch of rows: of one id each, and of the likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lorry_kernels.cpu.sampling import likeliest


class RowLogprobs(NamedTuple):
    """Natural logarithms, as float32 holds them. ``top``: (id, logprob), likeliest first, ties by id."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[RowLogprobs]:
    """Finite logits ``[B, V]``, an id and a count of likeliest ids for each row -> each row's answer, as
    ``reference.logprobs_reference``."""
    rows, vocabulary = logits.shape
    most = min(max(tops, default=0), vocabulary)
    # One more than asked for shows whether ids beyond the last tie with it: then topk's choice among them is arbitrary.
    values, ids = torch.topk(logits, min(most + 1, vocabulary), dim=-1)
    own = logits.gather(1, torch.tensor(tokens, dtype=torch.int64).view(rows, 1))
    total = torch.logsumexp(logits, -1, keepdim=True).to(torch.float64)
    stated = (torch.cat([own, values], 1) - total).to(torch.float32).tolist()
    found: list[RowLogprobs] = []
    for i, (scores, chosen, (logprob, *likely), top) in enumerate(
        zip(values.tolist(), ids.tolist(), stated, tops, strict=True)
    ):
        top = min(top, vocabulary)
        if 0 < top < len(scores) and scores[top - 1] == scores[top]:
            best = likeliest(logits[i], top)[:top]
            pairs = zip(best.tolist(), (logits[i, best] - total[i]).to(torch.float32).tolist(), strict=True)
            found.append(RowLogprobs(logprob, tuple(pairs)))
        else:
            order = sorted(range(top), key=lambda j: (-scores[j], chosen[j]))
            found.append(RowLogprobs(logprob, tuple((chosen[j], likely[j]) for j in order)))
    return found


__all__ = ["RowLogprobs", "logprobs"]
