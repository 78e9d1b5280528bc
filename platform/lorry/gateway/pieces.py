"""Tokens of several choices on their way to one client: merged while they wait, never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lorry.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one choice, and the text that became certain with them. ``logprobs`` are of ``token_ids``,
    or empty where nobody asked."""

    choice: int
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    text: str = field(default="", repr=False)
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)

    def split(self, most: int) -> Sequence[Piece]:
        """The piece as several of at most ``most`` tokens. Text may lag behind its tokens, so all of it comes last."""
        if len(self.token_ids) <= most:
            return (self,)
        last = (len(self.token_ids) - 1) // most * most
        parts = [
            Piece(self.choice, self.token_ids[at : at + most], "", self.logprobs[at : at + most])
            for at in range(0, last, most)
        ]
        return [*parts, Piece(self.choice, self.token_ids[last:], self.text, self.logprobs[last:])]


@dataclass(slots=True)
class _Waiting:
    token_ids: list[int] = field(default_factory=list, repr=False)
    text: list[str] = field(default_factory=list, repr=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list, repr=False)


class Merger:
    """Collects tokens by choice; what waits is one piece for each choice, however many came."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def add(self, choice: int, ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprobs]) -> int:
        """How many tokens of this choice wait now."""
        waiting = self._waiting.get(choice)
        if waiting is None:
            waiting = self._waiting[choice] = _Waiting()
        waiting.token_ids.extend(ids)
        if text:
            waiting.text.append(text)
        waiting.logprobs.extend(logprobs)
        return len(waiting.token_ids)

    def take(self) -> tuple[Piece, ...]:
        """All that waits, one piece for each choice that has something, in their order; then nothing waits."""
        taken, self._waiting = self._waiting, {}
        return tuple(
            Piece(choice, tuple(found.token_ids), "".join(found.text), tuple(found.logprobs))
            for choice, found in sorted(taken.items())
            if found.token_ids or found.text
        )


__all__ = ["Merger", "Piece"]
