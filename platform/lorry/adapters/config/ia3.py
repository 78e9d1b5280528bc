"""The fields of a config that are IA3's alone, with PEFT's meaning. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.adapters.config.pattern import Pattern
from lorry.adapters.config.problems import Problems
from lorry.adapters.header import show


@dataclass(frozen=True, slots=True)
class GainRule:
    """Which modules' gain multiplies the input. A list names endings of a module's name (dots or not, as in PEFT); a
    regex must match the whole name."""

    endings: tuple[str, ...] = ()
    regex: Pattern | None = None

    def on_input(self, module: str) -> bool:
        """Else the gain multiplies the output. Raises PatternRefused where matching takes too long."""
        return module.endswith(self.endings) if self.regex is None else self.regex.fullmatch(module)


def read_ia3(raw: Mapping[str, Any], problems: Problems) -> GainRule:
    """What is wrong is told to ``problems``."""
    field = "feedforward_modules"
    given = raw.get(field)
    if isinstance(given, str):
        return GainRule(regex=problems.regex(field, given))
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        problems(field, f"{show(given)} must be a string or a list of strings; PEFT saves the list that it used", given)
        return GainRule()
    targets = raw.get("target_modules")
    if isinstance(targets, list) and not all(name in targets for name in given):
        problems(field, f"{show(given)} must all be in target_modules, as PEFT demands", given)
    return GainRule(endings=tuple(given))


__all__ = ["GainRule", "read_ia3"]
