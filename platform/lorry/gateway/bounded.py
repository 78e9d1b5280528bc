"""JSON for operators that stays small whatever is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_ENTRIES = 64
"""Of a list or an object; numbers in a list: four times as many."""
MOST_CHARACTERS = 512
_TAIL_CHARACTERS = 4096
_DEPTH = 8


def bounded(value: Any, depth: int = _DEPTH) -> Any:
    """The same with every list, object and string cut to its bound, and a note of what was left out."""
    if isinstance(value, str):
        most = _TAIL_CHARACTERS if "\n" in value else MOST_CHARACTERS
        return value if len(value) <= most else f"{value[:most]} ... ({len(value)} characters)"
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        kept = {str(name)[:MOST_CHARACTERS]: bounded(value[name], depth - 1) for name in list(value)[:MOST_ENTRIES]}
        return kept if len(value) <= MOST_ENTRIES else kept | {"...": f"{len(value) - MOST_ENTRIES} more"}
    if isinstance(value, list | tuple):
        plain = all(isinstance(entry, int | float) for entry in value)
        most = MOST_ENTRIES * (4 if plain else 1)
        cut = [bounded(entry, depth - 1) for entry in value[:most]]
        return cut if len(value) <= most else [*cut, f"... {len(value) - most} more"]
    return str(value)[:MOST_CHARACTERS]


__all__ = ["MOST_CHARACTERS", "MOST_ENTRIES", "bounded"]
