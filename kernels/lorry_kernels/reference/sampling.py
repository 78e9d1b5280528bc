"""One row's next token, written out in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lorry_kernels.reference.philox import uniform


def sample_reference(
    logits: Sequence[float],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    choice: int,
    position: int,
) -> int:
    """Greedy at temperature 0 (the lowest id wins a tie). Else temperature, top-k, top-p, min-p in this
    order, then the inverse of the cumulative distribution over ids from likeliest to least (ties by id)."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if temperature == 0:
        return order[0]
    peak = logits[order[0]]
    if top_k:
        order = order[:top_k]
    weights = [math.exp((logits[i] - peak) / temperature) for i in order]
    total = sum(weights)
    kept, before = 0, 0.0
    for weight in weights:
        if kept and before >= top_p * total:
            break
        kept += 1
        before += weight
    order, weights = order[:kept], weights[:kept]
    allowed = [i for i, weight in enumerate(weights) if weight >= min_p * weights[0]]
    order, weights = [order[i] for i in allowed], [weights[i] for i in allowed]
    target = uniform(seed, choice, position) * sum(weights)
    running = 0.0
    for token, weight in zip(order, weights, strict=True):
        running += weight
        if running > target:
            return token
    return order[-1]


__all__ = ["sample_reference"]
