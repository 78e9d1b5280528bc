"""What is wrong with an adapter's config, all of it and by field, and the patterns in it. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lorry.adapters.config.pattern import MatchBudget, Pattern, PatternRefused
from lorry.adapters.header import show


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One field that refuses the adapter, and what to do about it."""

    field: str
    message: str
    value: object = None
    limit: object = None


class ConfigRefused(ValueError):
    """Everything that is wrong with the config, not only the first."""

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = problems


class Problem(Protocol):
    def __call__(self, field: str, message: str, value: object = None, limit: object = None) -> None: ...


@dataclass(slots=True)
class Problems:
    """Collects them while a config is read. Every pattern that it compiles spends of one budget of steps."""

    found: list[ConfigProblem] = field(default_factory=list)
    budget: MatchBudget = field(default_factory=MatchBudget)

    def __call__(self, field: str, message: str, value: object = None, limit: object = None) -> None:
        """``message`` says what is wrong and what to do; the field's name is put before it."""
        self.found.append(ConfigProblem(field, f"{field}: {message}", value, limit))

    def regex(self, field: str, source: str) -> Pattern | None:
        """None where the pattern is not taken, and then that is one of the problems."""
        try:
            return Pattern.compile(source, self.budget)
        except PatternRefused as error:
            self(field, f"the pattern {show(source)} {error}", source)
            return None

    def raise_any(self) -> None:
        """Raises ConfigRefused where there are any."""
        if self.found:
            raise ConfigRefused(tuple(self.found))


__all__ = ["ConfigProblem", "ConfigRefused", "Problem", "Problems"]
