"""Tokens of several choices on their way to one client: merged while they wait, never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lorry.request import TokenLogprobs


class Piece(NamedTuple):
    """Consecutive tokens of one choice, and the text that became certain with them. ``logprobs`` are of ``token_ids``,
    or empty where nobody asked."""

    choice: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()

    def __repr__(self) -> str:
        """Nothing of the answer."""
        return f"Piece(choice={self.choice}, {len(self.token_ids)} tokens)"

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
        self._only: Piece | None = None
        """All that waits, where only one piece came: so it is with most."""
        self._waiting: dict[int, _Waiting] = {}

    @property
    def waits(self) -> bool:
        return self._only is not None or bool(self._waiting)

    def add(self, choice: int, ids: tuple[int, ...], text: str, logprobs: tuple[TokenLogprobs, ...]) -> int:
        """How many tokens of this choice wait now."""
        if self._only is None and not self._waiting:
            self._only = Piece(choice, ids, text, logprobs)
            return len(ids)
        if self._only is not None:
            only, self._only = self._only, None
            self._put(only)
        return self._put(Piece(choice, ids, text, logprobs))

    def take(self) -> tuple[Piece, ...]:
        """All that waits, one piece for each choice that has something, in their order; then nothing waits."""
        if self._only is not None:
            only, self._only = self._only, None
            return (only,) if only.token_ids or only.text else ()
        if not self._waiting:
            return ()
        taken, self._waiting = self._waiting, {}
        return tuple(
            Piece(choice, tuple(found.token_ids), "".join(found.text), tuple(found.logprobs))
            for choice, found in sorted(taken.items())
            if found.token_ids or found.text
        )

    def _put(self, piece: Piece) -> int:
        waiting = self._waiting.get(piece.choice)
        if waiting is None:
            waiting = self._waiting[piece.choice] = _Waiting()
        waiting.token_ids.extend(piece.token_ids)
        if piece.text:
            waiting.text.append(piece.text)
        waiting.logprobs.extend(piece.logprobs)
        return len(waiting.token_ids)


__all__ = ["Merger", "Piece"]
