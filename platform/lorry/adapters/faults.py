"""Faults found while a plan is made, gathered so that many of one kind are one row of the report. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from lorry.adapters.report import Check


@dataclass(slots=True)
class Faults:
    """Keyed by row id, what is wrong and the remedy; the values name what it is wrong with."""

    found: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def __call__(self, id: str, name: str, what: str, remedy: str) -> None:
        """The row reads: names, ``what``, ``remedy``. ``what`` may be empty where each name says it."""
        self.found.setdefault((id, what, remedy), []).append(name)

    def field(self, field: str, name: str, what: str, remedy: str) -> None:
        """A fault of one of the config's fields: the row is ``config.FIELD`` and begins with its name."""
        self(f"config.{field}", name, what, remedy)

    def any(self, id: str) -> bool:
        return any(found == id for found, _, _ in self.found)

    def checks(self) -> list[Check]:
        rows = []
        for (id, what, remedy), names in self.found.items():
            start = f"{id.removeprefix('config.')}: " if id.startswith("config.") else ""
            rows.append(Check.some_fail(id, [start + names[0], *names[1:]], what, remedy))
        return rows


__all__ = ["Faults"]
