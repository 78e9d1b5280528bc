"""Reads the fields of one JSON object, each once, and collects what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lorry.gateway.checks import Violations

_T = TypeVar("_T")
UINT32_MAX = (1 << 32) - 1
_SHOWN = 80


class Fields:
    """``null`` is as good as absent, as clients send it for what is not set. What nobody has read when ``finish`` is
    called is unknown."""

    def __init__(self, found: Mapping[str, Any], bad: Violations, path: str = "") -> None:
        self._left = {name: value for name, value in found.items() if value is not None}
        self._known: list[str] = []
        self._bad = bad
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, what: str) -> None:
        self._bad.add(self.path(name), what)

    def take(self, name: str) -> Any:
        """As it is; None where it is absent."""
        self._known.append(name)
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "text")

    def flag(self, name: str) -> bool | None:
        return self._typed(name, bool, "true or false")

    def object(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "an object")

    def list(self, name: str) -> list[Any] | None:
        return self._typed(name, list, "a list")

    def number(self, name: str) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        number = as_number(value)
        if number is None:
            self.refuse(name, f"{shown(value)}; send a number")
        return number

    def whole(self, name: str, low: int = 0, high: int = UINT32_MAX) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if not is_whole(value) or not low <= value <= high:
            self.refuse(name, f"{shown(value)}; send a whole number from {low} to {high}")
            return None
        return int(value)

    def choice(self, name: str, values: Mapping[str, _T]) -> _T | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in values:
            self.refuse(name, f"{shown(value)}; send one of {', '.join(values)}")
            return None
        return values[value]

    def finish(self) -> None:
        """Refuses every field that is left, by name."""
        for name in self._left:
            self.refuse(name[:_SHOWN], "unknown field; leave it out")

    def _typed(self, name: str, kind: type[_T], what: str) -> _T | None:
        value = self.take(name)
        if value is None or isinstance(value, kind):
            return value
        self.refuse(name, f"{shown(value)}; send {what}")
        return None


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def as_number(value: Any) -> float | None:
    """None where it is none; an integer beyond every float is infinite, and refused where numbers are checked."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def shown(value: Any) -> str:
    """A value in a message, short whatever it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > 1 << 70:
        return "a number of many digits"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def set_if(target: Any, name: str, value: Any) -> None:
    """Sets a protobuf's field, unless the value is None."""
    if value is not None:
        setattr(target, name, value)


__all__ = ["UINT32_MAX", "Fields", "as_number", "is_whole", "set_if", "shown"]
