"""Numbers that a config gives by module: a default and patterns over it, with PEFT's matching. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.adapters.config.pattern import Pattern
from lorry.adapters.config.problems import Problems
from lorry.adapters.header import show

_LITERAL = re.compile(r"[A-Za-z0-9_.]+\Z")
_MAX_REGEXES = 64


@dataclass(frozen=True, slots=True)
class ByModule:
    """A value by module name: that of the first pattern that matches, else the default.

    A pattern matches as in PEFT: the whole module name, or what follows any of its dots.
    """

    default: float
    patterns: tuple[tuple[Pattern | re.Pattern[str], float], ...] = ()

    def of(self, module: str) -> float:
        """Raises PatternRefused where matching takes too long."""
        for pattern, value in self.patterns:
            if isinstance(pattern, Pattern):
                found = pattern.matches_after_dot(module)
            else:
                found = pattern.match(module) is not None
            if found:
                return value
        return self.default


def read_ranks(raw: Mapping[str, Any], default: int, problems: Problems) -> ByModule:
    """From ``r`` and ``rank_pattern``."""
    rank = raw.get("r", default)
    if not _is_rank(rank):
        problems("r", f"{show(rank)} must be an integer of at least 1", rank, 1)
        rank = default
    return ByModule(rank, _patterns("rank_pattern", raw, problems))


def read_alphas(raw: Mapping[str, Any], default: float, problems: Problems) -> ByModule:
    """From ``lora_alpha`` and ``alpha_pattern``."""
    alpha = raw.get("lora_alpha", default)
    if not _is_alpha(alpha):
        problems("lora_alpha", f"{show(alpha)} must be a finite number", alpha)
        alpha = default
    return ByModule(alpha, _patterns("alpha_pattern", raw, problems))


def _patterns(
    field: str, raw: Mapping[str, Any], problems: Problems
) -> tuple[tuple[Pattern | re.Pattern[str], float], ...]:
    given = raw.get(field)
    if given is not None and not isinstance(given, dict):
        problems(field, f"{show(given)} must map patterns to numbers", given)
        return ()
    check, want = (_is_rank, "an integer of at least 1") if field == "rank_pattern" else (_is_alpha, "a finite number")
    patterns: list[tuple[Pattern | re.Pattern[str], float]] = []
    regexes = 0
    for source, value in (given or {}).items():
        if not check(value):
            problems(field, f"{show(value)} for {show(source)} must be {want}", value)
            continue
        if _LITERAL.match(source):  # no repeats: re cannot be made to backtrack
            patterns.append((re.compile(rf"(.*\.)?({source})$"), value))
            continue
        regexes += 1
        if regexes > _MAX_REGEXES:
            problems(field, f"over {_MAX_REGEXES} regular expressions; name the modules", regexes, _MAX_REGEXES)
            break
        compiled = problems.regex(field, source)
        if compiled is not None:
            patterns.append((compiled, value))
    return tuple(patterns)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def _is_alpha(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e30  # false for NaN and infinities, and safe for integers too big to be a float


__all__ = ["ByModule", "read_alphas", "read_ranks"]
