"""What one sequence's penalties count, and one row's logits under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lorry_kernels.reference.penalties import LIMIT


class Penalties:
    """One sequence's penalties, bias and counts, for ``sample``.

    A table with a row for each id that matters (of the bias, of the output, and of the prompt where repetition is
    penalised), so that memory and time follow the sequence's length and not the vocabulary. All of it derives from the
    arguments and the ids added: a sequence that resumes is counted anew and gives the same logits.
    """

    def __init__(
        self,
        prompt_ids: Iterable[int],
        output_ids: Iterable[int] = (),
        *,
        repetition: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
        bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        """``bias`` is finite and its ids are within the vocabulary."""
        self._repetition = repetition
        self._frequency = frequency
        self._presence = presence
        self._biased = bool(bias)
        self._row_of: dict[int, int] = {}
        self._ids = torch.zeros(0, dtype=torch.int64)
        self._columns = torch.zeros(3, 0, dtype=torch.float64)
        """Was the id seen in prompt or output (0 or 1), how often in the output, its bias."""
        seen = prompt_ids if repetition != 1.0 else ()
        self._reserve(list(dict.fromkeys([*(token for token, _ in bias), *seen])))
        for token in dict.fromkeys(seen):
            self._columns[0, self._row_of[token]] = 1.0
        for token, value in bias:
            self._columns[2, self._row_of[token]] += value
        for token in output_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """``token`` was put out."""
        row = self._row_of.get(token)
        if row is None:
            row = len(self._row_of)
            self._reserve([token])
        self._columns[0, row] = 1.0
        self._columns[1, row] += 1.0

    def adjust(self, logits: Tensor) -> Tensor:
        """``[V]`` -> float64 ``[V]`` of its own, finite, as ``reference.adjust_reference``."""
        scores = logits.to(torch.float64, copy=True)
        used = len(self._row_of)
        if not used:
            return scores
        ids, (seen, counts, bias) = self._ids[:used], self._columns[:, :used].unbind(0)
        values = scores.index_select(0, ids)
        if self._repetition != 1.0:
            repeated = torch.where(values > 0, values / self._repetition, values * self._repetition)
            values = torch.where(seen > 0, repeated, values).clamp_(-LIMIT, LIMIT)
        if self._frequency or self._presence:
            values = values - self._frequency * counts - self._presence * (counts > 0).to(torch.float64)
            values.clamp_(-LIMIT, LIMIT)
        if self._biased:
            values = (values + bias).clamp_(-LIMIT, LIMIT)
        return scores.index_copy_(0, ids, values)

    def _reserve(self, tokens: Sequence[int]) -> None:
        """Rows for ids that have none; room grows by doubling."""
        begin, end = len(self._row_of), len(self._row_of) + len(tokens)
        if end > self._ids.shape[0]:
            room = max(16, 2 * self._ids.shape[0], end)
            ids, columns = self._ids, self._columns
            self._ids = torch.zeros(room, dtype=torch.int64)
            self._columns = torch.zeros(3, room, dtype=torch.float64)
            self._ids[:begin], self._columns[:, :begin] = ids[:begin], columns[:, :begin]
        self._ids[begin:end] = torch.tensor(tokens, dtype=torch.int64)
        self._row_of.update(zip(tokens, range(begin, end), strict=True))


__all__ = ["Penalties"]
