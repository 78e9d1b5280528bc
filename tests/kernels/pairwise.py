"""A pairwise covering array: few cases that hold every pair of values of any two parameters.

Greedy, after AETG (Cohen, Dalal, Fredman, Patton 1997): each new case takes the value that covers most pairs still
open, parameter by parameter. Deterministic, so that a case's id means the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def pairwise(values: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Cases over ``values`` (by parameter's name; each value hashable). ``allowed`` is asked with partial cases too and
    must not forbid one for a parameter that is not in it; pairs that it forbids are not covered. Raises ValueError
    where ``allowed`` leaves no way to complete a case that begins with a pair that it allows."""
    names = list(values)
    open_pairs = {
        (one, first, two, second)
        for one, two in combinations(names, 2)
        for first, second in product(values[one], values[two])
        if allowed({one: first, two: second})
    }
    cases: list[Case] = []
    while open_pairs:
        one, first, two, second = min(open_pairs, key=lambda pair: (repr(pair), len(repr(pair))))
        case = _complete({one: first, two: second}, names, values, allowed, open_pairs)
        open_pairs -= _pairs(case, names)
        cases.append({name: case[name] for name in names})
    return cases


def _complete(
    case: Case,
    names: list[str],
    values: Mapping[str, Sequence[Any]],
    allowed: Callable[[Case], bool],
    open_pairs: set[tuple[str, Any, str, Any]],
) -> Case:
    """Depth first over the parameters that ``case`` lacks, the value that covers most first."""
    missing = [name for name in names if name not in case]
    if not missing:
        return case
    name = missing[0]
    choices = [value for value in values[name] if allowed({**case, name: value})]
    ranked = sorted(
        choices, key=lambda value: (-len(_pairs({**case, name: value}, names) & open_pairs), values[name].index(value))
    )
    for value in ranked:
        try:
            return _complete({**case, name: value}, names, values, allowed, open_pairs)
        except ValueError:
            continue
    raise ValueError(f"no value of {name} completes {case}")


def _pairs(case: Case, names: list[str]) -> set[tuple[str, Any, str, Any]]:
    return {(one, case[one], two, case[two]) for one, two in combinations([name for name in names if name in case], 2)}


__all__ = ["Case", "pairwise"]
