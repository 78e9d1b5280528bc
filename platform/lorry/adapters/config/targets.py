"""Which modules a config targets, with PEFT's own meaning of lists, regexes, ``all-linear``, exclusions and layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.adapters.config.pattern import Pattern
from lorry.adapters.config.problems import Problems
from lorry.adapters.header import show

_ALL_LINEAR = "all-linear"
_LIST_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_SAVED_NAME = re.compile(r"[A-Za-z0-9_.]+\Z")
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")
_EMBEDDINGS = ("embed_tokens", "lm_head")


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
        """``module`` must be a linear or the embedding of the base. Raises PatternRefused if matching would take too
        long."""
        if self.exclude is not None and self.exclude.matches(module):
            return False
        if self.target is None:
            return module.rpartition(".")[2] not in _EMBEDDINGS
        if not self.target.matches(module):
            return False
        if self.layers is None or self.target.exact(module):  # a whole name in the list overrides the layers
            return True
        layer = _LAYER.match(module)
        if layer is None or (self.layer_lists and not any(lists.fullmatch(module) for lists in self.layer_lists)):
            return False
        return int(layer[1]) in self.layers

    def names_an_embedding(self) -> bool:
        """Whether PEFT takes embed_tokens or lm_head for named, which with ``ensure_weight_tying`` ties them: by the
        last part of a listed name, or by a regex that matches the bare name."""
        if self.target is None:
            return False
        if self.target.regex is not None:
            return any(self.target.regex.fullmatch(name) for name in _EMBEDDINGS)
        return any(name.rpartition(".")[2] in _EMBEDDINGS for name in self.target.names)

    @classmethod
    def parse(cls, raw: Mapping[str, Any], problem: Problems) -> TargetRule | None:
        """None where ``problem`` was told why."""
        given = raw.get("target_modules")
        target = _names("target_modules", given, problem)
        if given is None or given == []:
            problem("target_modules", f"{show(given)} names no module; list those that the adapter is on", given)
        exclude = _names("exclude_modules", raw.get("exclude_modules"), problem)
        layers = _layers(raw.get("layers_to_transform"), problem)
        lists = _layer_lists(raw.get("layers_pattern"), problem)
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


@dataclass(frozen=True, slots=True)
class SavedRule:
    """``modules_to_save``: every module whose name ends so (dots or not) is replaced whole; and no adapter is put on a
    module that is named, or lies inside one, by whole parts of its name."""

    names: tuple[str, ...] = ()

    def saves(self, module: str) -> bool:
        return module.endswith(self.names)

    def excludes(self, module: str) -> bool:
        # a dot in a name is any character here, as PEFT reads it; there are no repeats that could backtrack
        return any(re.search(rf"(?:^|\.){name}(?:$|\.)", module) for name in self.names)

    def names_an_embedding(self) -> bool:
        """As ``TargetRule.names_an_embedding``."""
        return any(name.rpartition(".")[2] in _EMBEDDINGS for name in self.names)

    @classmethod
    def parse(cls, given: object, problem: Problems) -> SavedRule:
        if given is None:
            return cls()
        if not isinstance(given, list) or not all(isinstance(name, str) and _SAVED_NAME.match(name) for name in given):
            problem("modules_to_save", f"{show(given)} must be a list of module names", given)
            return cls()
        return cls(tuple(given))


def _names(field: str, given: object, problem: Problems) -> NameRule | None:
    if given is None or given == [] or (given == "" and field == "exclude_modules"):
        return None
    if isinstance(given, str):
        if given.lower() == _ALL_LINEAR and field == "target_modules":
            return NameRule()
        compiled = problem.regex(field, given)
        return None if compiled is None else NameRule(regex=compiled)
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return NameRule(names=frozenset(given))
    problem(field, f"{show(given)} must be a string or a list of strings", given)
    return None


def _layers(given: object, problem: Problems) -> frozenset[int] | None:
    if given is None or given == []:
        return None
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in listed):
        problem("layers_to_transform", f"{show(given)} must be an integer or a list of integers", given)
        return None
    return frozenset(listed)


def _layer_lists(given: object, problem: Problems) -> tuple[Pattern, ...]:
    """PEFT reads these as regexes; names with dots are all that is taken, and a dot keeps its regex meaning."""
    if given is None or given in ([], ""):
        return ()
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and _LIST_NAME.match(name) for name in listed):
        problem("layers_pattern", f"{show(given)} must be module names, such as 'layers'", given)
        return ()
    compiled = [problem.regex("layers_pattern", rf"(?:.*\.)?{name}\.\d+\..*") for name in listed]
    return tuple(pattern for pattern in compiled if pattern is not None)


__all__ = ["NameRule", "SavedRule", "TargetRule"]
