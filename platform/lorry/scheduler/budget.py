"""How a step's query tokens are shared between prompts."""

from __future__ import annotations

from lorry.config import SchedulerConfig


def is_long(config: SchedulerConfig, prefill_left: int) -> bool:
    """More than half a step's budget of the prompt is left."""
    return prefill_left > max(1, config.token_budget // 2)


class StepBudget:
    """Of one step. Decodes come first, a token each; some of the prompts are *long* (``is_long``).

    In a step that also serves others, all long ones together get ``long_prefill_share`` of the budget: they neither
    wait for ever nor slow the others by more than that. In a step that serves nobody else they get all of it.
    """

    def __init__(self, config: SchedulerConfig, decodes: int, *, any_long: bool) -> None:
        self._chunk = config.prefill_chunk_tokens
        self._share = max(1, int(config.token_budget * config.long_prefill_share))
        self._left = config.token_budget - decodes
        self._reserve = min(self._share, self._left) if any_long else 0
        self._serves_others = decodes > 0
        self._joined = 0

    @property
    def short_left(self) -> int:
        """Tokens that short prompts can still have."""
        return self._left - self._reserve

    def take_short(self, prefill_left: int) -> int:
        tokens = min(prefill_left, self._chunk, self.short_left)
        self._left -= tokens
        self._serves_others |= tokens > 0
        return tokens

    def hold(self) -> None:
        """A long prompt was admitted and must have a token at least."""
        self._joined += 1
        self._reserve = min(self._left, max(self._joined, self._share))

    def share_long(self, prefills_left: list[int]) -> list[int]:
        """Tokens of each long prompt, the first first; each of the last, for which ``hold`` was called, gets one."""
        joined = self._joined
        pot = min(self._left, max(self._share, joined)) if self._serves_others else self._left
        tokens: list[int] = []
        for index, left in enumerate(prefills_left):
            owed = min(joined, len(prefills_left) - index - 1)
            tokens.append(max(0, min(left, self._chunk, pot - owed)))
            pot -= tokens[-1]
        return tokens


__all__ = ["StepBudget", "is_long"]
