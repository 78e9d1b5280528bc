"""A guard: what ``make mutants`` takes out of a copy of the sources, and the tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """``text`` stands once in ``path``, and ``without`` in its place is the program without the guard. ``tests`` are
    node ids, as narrow as they can be."""

    name: str
    path: str
    text: str
    without: str
    tests: tuple[str, ...]


__all__ = ["Guard"]
