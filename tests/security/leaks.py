"""Everything that this process says, collected: log records of every logger at every level, standard output and error,
statuses, bodies and trailers; and the secrets that must be in none of it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lorry.logs import JsonFormatter, TextFormatter, fields_of


@dataclass
class Said:
    """``secrets``: by what they are."""

    secrets: dict[str, str] = field(default_factory=dict)
    words: list[tuple[str, str]] = field(default_factory=list)

    def hear(self, where: str, text: object) -> None:
        self.words.append((where, text if isinstance(text, str) else repr(text)))

    def leaks(self) -> list[tuple[str, str, str]]:
        """(which secret, where, the text around it)."""
        found = []
        for what, secret in self.secrets.items():
            assert len(secret) >= 8, what
            for where, text in self.words:
                at = text.find(secret)
                if at >= 0:
                    found.append((what, where, text[max(0, at - 80) : at + len(secret) + 20]))
        return found


_FORMATTERS = {"json": JsonFormatter(), "text": TextFormatter()}


class _Listener(logging.Handler):
    def __init__(self, said: Said) -> None:
        super().__init__(logging.DEBUG)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.getMessage()}\n{record.args!r}\n{fields_of(record)!r}"
        if record.exc_info and record.exc_info[1] is not None:
            text += "".join(traceback.format_exception(record.exc_info[1]))
        self._said.hear(f"log {record.name} {record.levelname}", text)
        if fields_of(record):
            for kind, formatter in _FORMATTERS.items():
                self._said.hear(f"{kind} line", formatter.format(record))


@contextmanager
def listening(said: Said) -> Iterator[None]:
    """The root logger at DEBUG, and with it all that were not told otherwise."""
    root, listener = logging.getLogger(), _Listener(said)
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(listener)
    try:
        yield
    finally:
        root.removeHandler(listener)
        root.setLevel(level)
