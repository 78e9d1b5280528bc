"""Stop strings over text that arrives in pieces."""

from __future__ import annotations


class StopMatcher:
    """Finds the stop string that starts first (of those that start together: the shortest), however it is split.

    Text is held back only while it may still become part of a stop string, so at most one stop string's
    length. How the text is cut into pieces never changes what is emitted in all.
    """

    def __init__(self, stops: tuple[str, ...], include_stop: bool = False) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("stop: an empty string would stop before the first token; leave it out")
        self._stops = stops
        self._include = include_stop
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str]:
        """(text to emit, the stop string found or ''). Once one is found nothing more may be fed."""
        if not self._stops:
            return piece, ""
        if not piece:
            return "", ""
        text = self._held + piece
        return self._cut(text, self._first_open(text))

    def flush(self) -> tuple[str, str]:
        """As feed, when no more text follows: what was held is decided."""
        return self._cut(self._held, len(self._held)) if self._held else ("", "")

    def _cut(self, text: str, first_open: int) -> tuple[str, str]:
        start, stop = self._first_found(text)
        if stop and start <= first_open:
            self._held = ""
            return text[: start + len(stop) if self._include else start], stop
        self._held = text[first_open:]
        return text[:first_open], ""

    def _first_found(self, text: str) -> tuple[int, str]:
        found = [(text.find(stop), len(stop), stop) for stop in self._stops]
        start, _, stop = min((entry for entry in found if entry[0] >= 0), default=(-1, 0, ""))
        return start, stop

    def _first_open(self, text: str) -> int:
        """Where the earliest unfinished stop string may begin; len(text) where none may."""
        first = len(text)
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), len(text) - first, -1):
                if text.endswith(stop[:length]):
                    first = len(text) - length
                    break
        return first


__all__ = ["StopMatcher"]
