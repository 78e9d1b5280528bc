"""One command line: what it must ask, and what it must make of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """``asks``: what the server was asked last, as proto JSON; ``says``: words of the text; ``holds``: (path, value) in
    the JSON document."""

    line: str
    method: str
    asks: dict[str, Any]
    says: Sequence[str]
    holds: tuple[Sequence[str | int], Any]
    scripts: dict[str, Any] = field(default_factory=dict)
    status: int = 0


def case(line: str, method: str, answer: Any, asks: dict[str, Any], says: Any, holds: Any, **more: Any) -> Case:
    words = [says] if isinstance(says, str) else says
    return Case(line, method, asks, words, holds, {method: answer, **more.pop("also", {})}, **more)
