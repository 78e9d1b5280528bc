"""Reads ``config.json`` field by field and keeps every refusal, so that all are named at once. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorry.errors import FieldViolation, UnsupportedBase
from lorry.layers.families import HARMLESS, INERT, Family

_HUGE = 1e300


class ConfigFields:
    """The config with its family's defaults. A refused field reads as a harmless value, until ``check``."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._config = config
        self._family = family
        self._bad: list[FieldViolation] = []
        inert = {**INERT, **family.inert}
        for field in sorted(set(config) - HARMLESS - set(family.defaults)):
            if field not in inert:
                self.refuse(field, config[field], "the field is unknown to this runtime, which will not guess")
            elif config[field] not in inert[field]:
                allowed = " or ".join(repr(value) for value in inert[field])
                self.refuse(field, config[field], f"use a base of type {family.model_type!r} where it is {allowed}")

    def refuse(self, field: str, value: object, remedy: str) -> None:
        self._bad.append(FieldViolation(field, f"{value!r} is not supported; {remedy}"))

    def check(self) -> None:
        """Raises UnsupportedBase naming every field that was refused."""
        if self._bad:
            listing = "; ".join(f"{v.field}: {v.description}" for v in self._bad)
            raise UnsupportedBase(f"the base's config.json cannot be served: {listing}", violations=self._bad)

    def get(self, field: str) -> Any:
        """As written, or the family's default where it is left out."""
        return self._config[field] if field in self._config else self._family.defaults.get(field)

    def has(self, field: str) -> bool:
        """Whether config.json says something about it."""
        return field in self._config

    def reads(self, field: str) -> bool:
        """Whether this family's arithmetic depends on it."""
        return field in self._family.defaults

    def size(self, field: str, null: int | None = None, most: int = 1 << 40) -> int:
        """An integer from 1 to ``most``. ``null`` is what null means; None: nothing, it is refused."""
        value = self.get(field)
        value = null if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(field, value, "it must be a positive integer")
            return 1
        if value > most:
            self.refuse(field, value, f"it must be at most {most}")
            return 1
        return value

    def number(self, field: str, value: object) -> float:
        """``value``, which stands in ``field``, as a finite number above zero."""
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _HUGE:
            return float(value)
        self.refuse(field, value, "it must be a number above 0")
        return 1.0

    def flag(self, field: str) -> bool:
        value = self.get(field)
        if isinstance(value, bool):
            return value
        self.refuse(field, value, "it must be true or false")
        return False

    def token_ids(self, field: str) -> tuple[int, ...]:
        """An id, a list of ids, or null for none."""
        value = self.get(field)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if all(isinstance(one, int) and not isinstance(one, bool) for one in listed):
            return tuple(listed)
        self.refuse(field, value, "it must be a token id or a list of them")
        return ()


__all__ = ["ConfigFields"]
