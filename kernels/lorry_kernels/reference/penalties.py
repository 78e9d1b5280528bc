"""One row's penalties and bias, written out in plain Python floats."""

from __future__ import annotations

from collections.abc import Sequence

LIMIT = 1e300
"""No adjusted logit lies beyond it on either side, so that none becomes infinite or NaN."""


def adjust_reference(
    logits: Sequence[float],
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    repetition: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
    bias: Sequence[tuple[int, float]] = (),
) -> list[float]:
    """The logits that are sampled from: repetition first (an id of prompt or output: a positive logit is divided, any
    other multiplied), then frequency (once for each time in the output) and presence (once), then bias."""
    seen = {*prompt_ids, *output_ids}
    adjusted = []
    for token, logit in enumerate(logits):
        if token in seen:
            logit = _limited(logit / repetition if logit > 0 else logit * repetition)
        count = output_ids.count(token)
        if count:
            logit = _limited(logit - frequency * count - presence)
        logit = _limited(logit + sum(value for biased, value in bias if biased == token))
        adjusted.append(logit)
    return adjusted


def _limited(value: float) -> float:
    return min(max(value, -LIMIT), LIMIT)


__all__ = ["LIMIT", "adjust_reference"]
