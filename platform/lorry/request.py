"""What a request asks of the engine, after the gateway has checked and completed it. No torch, no wire."""

from __future__ import annotations

from dataclasses import dataclass


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


__all__ = ["SamplingParams", "StoppingParams"]
