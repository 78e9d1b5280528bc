"""How near a draw is to coming out otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lorry_kernels.reference.philox import uniform


def sampling_margin(
    logits: Sequence[float],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    choice: int,
    position: int,
) -> float:
    """The least distance, in units of the likeliest id's weight, of a number that ``sample_reference`` compares to what
    it is compared with: top-p's mass and the drawn one to the masses up to each id, min-p to each weight. Two ways to
    round that differ by less give one token. Infinite where nothing is compared."""
    if temperature <= 0:
        return math.inf
    ordered = sorted(logits, reverse=True)
    weights = [math.exp((logit - ordered[0]) / temperature) for logit in ordered[: top_k or None]]
    running = [0.0]
    for weight in weights:
        running.append(running[-1] + weight)
    margins = []
    kept = len(weights)
    if top_p < 1.0:
        target = top_p * running[-1]
        margins += [abs(edge - target) for edge in running[1:-1]]
        kept = max(sum(edge < target for edge in running[:-1]), 1)
    if min_p > 0.0:
        # An equal of the peak weighs exactly 1 however exp rounds.
        margins += [abs(weight - min_p) for weight, logit in zip(weights, ordered, strict=False) if logit < ordered[0]]
        kept = min(kept, sum(weight >= min_p for weight in weights))
    target = uniform(seed, choice, position) * running[kept]
    margins += [abs(edge - target) for edge in running[1 : kept + 1]]
    return min(margins)


__all__ = ["sampling_margin"]
