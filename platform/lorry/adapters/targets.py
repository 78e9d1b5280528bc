"""Which modules a config targets, with PEFT's own meaning of lists, regexes, ``all-linear``, exclusions and layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lorry.adapters.header import show
from lorry.adapters.pattern import Pattern

_ALL_LINEAR = "all-linear"
_LIST_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")


class Problem(Protocol):
    def __call__(self, field: str, message: str, value: object = None, limit: object = None) -> None: ...


Regex = Callable[[str, str], Pattern | None]


@dataclass(frozen=True, slots=True)
class NameRule:
    """A list names modules by their whole name or by what follows a dot; a regex must match the whole name."""

    names: frozenset[str] = frozenset()
    regex: Pattern | None = None

    def exact(self, module: str) -> bool:
        return module in self.names

    def matches(self, module: str) -> bool:
        if self.regex is not None:
            return self.regex.fullmatch(module)
        parts = module.split(".")
        return any(".".join(parts[at:]) in self.names for at in range(len(parts)))


@dataclass(frozen=True, slots=True)
class TargetRule:
    """``target`` None is all-linear. ``layers`` None is every layer."""

    target: NameRule | None
    exclude: NameRule | None
    layers: frozenset[int] | None
    layer_lists: tuple[Pattern, ...]

    def targets(self, module: str) -> bool:
        """``module`` must be a linear of the base. Raises PatternRefused if matching would take too long."""
        if self.exclude is not None and self.exclude.matches(module):
            return False
        if self.target is None:
            return True
        if not self.target.matches(module):
            return False
        if self.layers is None or self.target.exact(module):  # a whole name in the list overrides the layers
            return True
        layer = _LAYER.match(module)
        if layer is None or (self.layer_lists and not any(lists.fullmatch(module) for lists in self.layer_lists)):
            return False
        return int(layer[1]) in self.layers

    @classmethod
    def parse(cls, raw: Mapping[str, Any], problem: Problem, regex: Regex) -> TargetRule | None:
        """None where ``problem`` was told why."""
        given = raw.get("target_modules")
        target = _names("target_modules", given, problem, regex)
        if given is None or given == []:
            problem("target_modules", f"{show(given)} names no module; list those that the adapter is on", given)
        exclude = _names("exclude_modules", raw.get("exclude_modules"), problem, regex)
        layers = _layers(raw.get("layers_to_transform"), problem)
        lists = _layer_lists(raw.get("layers_pattern"), problem, regex)
        if isinstance(given, str):
            for field in ("layers_to_transform", "layers_pattern"):
                if raw.get(field) is not None:
                    problem(field, "cannot be used where target_modules is a string; list the modules")
        if lists and raw.get("layers_to_transform") is None:
            problem("layers_pattern", "needs layers_to_transform; set that, or remove this")
        if target is None:
            return None
        everything = isinstance(given, str) and given.lower() == _ALL_LINEAR
        return cls(None if everything else target, exclude, layers, lists)


def _names(field: str, given: object, problem: Problem, regex: Regex) -> NameRule | None:
    if given is None or given == [] or (given == "" and field == "exclude_modules"):
        return None
    if isinstance(given, str):
        if given.lower() == _ALL_LINEAR and field == "target_modules":
            return NameRule()
        compiled = regex(field, given)
        return None if compiled is None else NameRule(regex=compiled)
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return NameRule(names=frozenset(given))
    problem(field, f"{show(given)} must be a string or a list of strings", given)
    return None


def _layers(given: object, problem: Problem) -> frozenset[int] | None:
    if given is None or given == []:
        return None
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in listed):
        problem("layers_to_transform", f"{show(given)} must be an integer or a list of integers", given)
        return None
    return frozenset(listed)


def _layer_lists(given: object, problem: Problem, regex: Regex) -> tuple[Pattern, ...]:
    """PEFT reads these as regexes; names with dots are all that is taken, and a dot keeps its regex meaning."""
    if given is None or given in ([], ""):
        return ()
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and _LIST_NAME.match(name) for name in listed):
        problem("layers_pattern", f"{show(given)} must be module names, such as 'layers'", given)
        return ()
    compiled = [regex("layers_pattern", rf"(?:.*\.)?{name}\.\d+\..*") for name in listed]
    return tuple(pattern for pattern in compiled if pattern is not None)


__all__ = ["NameRule", "Problem", "TargetRule"]
