"""What a request asks of the engine, after the gateway has checked and completed it. No torch, no wire."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lorry.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """``temperature`` 0 is greedy. ``top_k`` 0 is all. Draws depend on (seed, choice, position) alone.

    ``repetition_penalty`` divides the positive and multiplies the negative logits of ids that occur in prompt or output
    (Keskar and others, CTRL, 2019). ``presence_penalty`` is subtracted once, ``frequency_penalty`` once for each time,
    from the logits of ids that occur in the output. ``logit_bias`` is (id, what is added to its logit), sorted by id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def plain(self) -> bool:
        """Logits are sampled from as the model gave them."""
        return (
            self.repetition_penalty == 1.0
            and self.frequency_penalty == 0.0
            and self.presence_penalty == 0.0
            and not self.logit_bias
        )


TOP_LOGPROBS_MAX = 20
CHOICES_MAX = 16
WEIGHT_MAX = 100
"""Of a tenant, when tenants take turns."""


@dataclass(frozen=True, slots=True)
class OutputParams:
    """``top_logprobs``: None is no logprobs; else each output token comes with its own logprob and those of so many
    likeliest ids, 0 to TOP_LOGPROBS_MAX. ``prompt_logprobs``: the same for every prompt token but the first."""

    top_logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token: natural logarithms of the model's own distribution, before bias, penalties, temperature and
    filters. ``top``: (id, logprob), likeliest first, ties by id."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StoppingParams:
    """``max_tokens`` >= 1 output tokens; nothing stops a sequence before ``min_tokens`` but its length."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False


def check_params(
    sampling: SamplingParams, stopping: StoppingParams, output: OutputParams = OutputParams(), n: int = 1
) -> None:
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
    expect(
        math.isfinite(sampling.repetition_penalty) and sampling.repetition_penalty > 0,
        "sampling.repetition_penalty",
        sampling.repetition_penalty,
        "give 1 (none) or another positive number",
    )
    for name in ("frequency_penalty", "presence_penalty"):
        penalty = getattr(sampling, name)
        expect(math.isfinite(penalty), f"sampling.{name}", penalty, "give 0 (none) or another finite number")
    wrong = next((pair for pair in sampling.logit_bias if not math.isfinite(pair[1])), None)
    expect(wrong is None, "sampling.logit_bias", wrong, "give finite numbers")
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(output, name)
        fine = count is None or 0 <= count <= TOP_LOGPROBS_MAX
        expect(fine, f"output.{name}", count, f"give 0 to {TOP_LOGPROBS_MAX}, or none")
    expect(1 <= n <= CHOICES_MAX, "sampling.n", n, f"give 1 to {CHOICES_MAX}")
    expect(stopping.max_tokens >= 1, "stopping.max_tokens", stopping.max_tokens, "give at least 1")
    expect(stopping.min_tokens >= 0, "stopping.min_tokens", stopping.min_tokens, "give 0 or more")
    expect("" not in stopping.stop, "stopping.stop", "", "leave the empty string out")
    if bad:
        raise InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in bad), violations=bad)


__all__ = [
    "CHOICES_MAX",
    "TOP_LOGPROBS_MAX",
    "WEIGHT_MAX",
    "OutputParams",
    "SamplingParams",
    "StoppingParams",
    "TokenLogprobs",
    "check_params",
]
