"""What a request asks of the engine, after the gateway has checked and completed it. No torch, no wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lorry.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """``temperature`` 0 is greedy. ``top_k`` 0 is all. Draws depend on (seed, choice, position) alone."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StoppingParams:
    """``max_tokens`` >= 1 output tokens; nothing stops a sequence before ``min_tokens`` but its length."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False


def check_params(sampling: SamplingParams, stopping: StoppingParams) -> None:
    """What an engine relies on, whoever calls it. Raises InvalidRequest with every field that is out of range."""
    bad: list[FieldViolation] = []

    def expect(right: bool, field: str, value: object, remedy: str) -> None:
        if not right:
            bad.append(FieldViolation(field, f"is {value!r}; {remedy}"))

    temperature = sampling.temperature
    fine = math.isfinite(temperature) and temperature >= 0
    expect(fine, "sampling.temperature", temperature, "give 0 (greedy) or a positive number")
    expect(0 < sampling.top_p <= 1, "sampling.top_p", sampling.top_p, "give a number over 0, at most 1")
    expect(sampling.top_k >= 0, "sampling.top_k", sampling.top_k, "give 0 (all) or more")
    expect(0 <= sampling.min_p <= 1, "sampling.min_p", sampling.min_p, "give a number from 0 to 1")
    expect(0 <= sampling.seed < 1 << 64, "sampling.seed", sampling.seed, "give 64 bits without a sign")
    expect(stopping.max_tokens >= 1, "stopping.max_tokens", stopping.max_tokens, "give at least 1")
    expect(stopping.min_tokens >= 0, "stopping.min_tokens", stopping.min_tokens, "give 0 or more")
    expect("" not in stopping.stop, "stopping.stop", "", "leave the empty string out")
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


__all__ = ["SamplingParams", "StoppingParams", "check_params"]
