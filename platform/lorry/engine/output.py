"""What a step's tokens become for their readers: text, stop strings, provenance, events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lorry.engine.contract import Provenance
from lorry.ids import AdapterDigest
from lorry.request import StoppingParams
from lorry.text import Detokenizer, StopMatcher, Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """New certain text, and the stop string that ended it, or ''."""

    text: str = field(repr=False)
    matched_stop: str


class OutputStream:
    """One request's text. The stop strings are not looked for before ``min_tokens`` tokens."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stopping: StoppingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops = StopMatcher(stopping.stop, stopping.include_stop)
        self._min_tokens = stopping.min_tokens
        self._tokens = 0

    def push(self, ids: Sequence[int]) -> TextPiece:
        out: list[str] = []
        for token in ids:
            self._tokens += 1
            text = self._detokenizer.push((token,))
            if self._tokens < self._min_tokens:
                out.append(text)
                continue
            emit, matched = self._stops.feed(text)
            out.append(emit)
            if matched:
                return TextPiece("".join(out), matched)
        return TextPiece("".join(out), "")

    def flush(self) -> TextPiece:
        """Nothing follows: what was held back comes out, and may still complete a stop string."""
        emit, matched = self._stops.feed(self._detokenizer.flush())
        if matched:
            return TextPiece(emit, matched)
        rest, matched = self._stops.flush()
        return TextPiece(emit + rest, matched)


ProvenanceOf = Callable[[AdapterDigest | None], Provenance]
"""Completes the digest that the slot table stated with what the engine knows of its base."""

__all__ = ["OutputStream", "ProvenanceOf", "TextPiece"]
