"""One row's log-softmax, written out in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence


def logprobs_reference(logits: Sequence[float], token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """The natural logarithm of ``token``'s probability, and the ``top`` likeliest ids with theirs, ties by id."""
    peak = max(logits)
    total = peak + math.log(sum(math.exp(logit - peak) for logit in logits))
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return logits[token] - total, [(i, logits[i] - total) for i in order[:top]]


__all__ = ["logprobs_reference"]
