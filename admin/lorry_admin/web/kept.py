"""A form that could not be taken, kept for its sender: after the next login, or beside the error that refused it.

It travels through the browser, since any process may get the next request. Nothing is done with it before its sender
has seen it and pressed the button again.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

SECRET = frozenset({"csrf", "password", "new_password", "again", "kept"})
"""Never kept."""
HIDDEN = frozenset({"etag", "request_id", "back"})
"""Sent again as they are, and not shown."""
FIELDS_MAX = 100
_ACTION = re.compile(r"/(?!/)[A-Za-z0-9/._@~-]{0,300}")


@dataclass(frozen=True, slots=True)
class Kept:
    """``action``: where it is sent. ``files``: it had some, which a browser lets nobody fill in again."""

    action: str
    fields: tuple[tuple[str, str], ...]
    files: bool = False

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        return tuple(pair for pair in self.fields if pair[0] not in HIDDEN)

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        return tuple(pair for pair in self.fields if pair[0] in HIDDEN)

    def encode(self) -> str:
        """For a hidden field."""
        found = {"action": self.action, "fields": self.fields, "files": self.files}
        return base64.urlsafe_b64encode(json.dumps(found).encode()).decode()


def keep(action: str, fields: Iterable[tuple[str, str]], files: bool, most_bytes: int) -> Kept | None:
    """None for what is too large to be kept, or was sent to no page."""
    found = tuple((name, value) for name, value in fields if name not in SECRET)
    if not found or not _ACTION.fullmatch(action) or len(found) > FIELDS_MAX:
        return None
    if sum(len(name) + len(value.encode()) for name, value in found) > most_bytes:
        return None
    return Kept(action, found, files)


def decode(text: str, most_bytes: int) -> Kept | None:
    """The inverse of ``Kept.encode``; None for what it did not make."""
    if not text or len(text) > 3 * most_bytes:
        return None
    try:
        found = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        fields = [(name, value) for name, value in found["fields"]]
        action, files = found["action"], found["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(action, str) or not all(isinstance(part, str) for pair in fields for part in pair):
        return None
    return keep(action, fields, files is True, most_bytes)


__all__ = ["FIELDS_MAX", "HIDDEN", "SECRET", "Kept", "decode", "keep"]
