"""``adapter_config.json``: read strictly, every field accounted for, served ones with PEFT's meaning. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.adapters.fields import FIELDS
from lorry.adapters.header import HeaderRefused, read_bounded, show, strict_json
from lorry.adapters.pattern import MatchBudget, Pattern, PatternRefused
from lorry.adapters.targets import TargetRule
from lorry.layers.families import FAMILIES

CONFIG_NAME = "adapter_config.json"
_LITERAL = re.compile(r"[A-Za-z0-9_.]+\Z")
_MAX_REGEXES = 64
_DEFAULT_RANK = 8
_DEFAULT_ALPHA = 8


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


@dataclass(frozen=True, slots=True)
class ByModule:
    """A value by module name: that of the first pattern that matches, else the default.

    A pattern matches as in PEFT: the whole module name, or what follows any of its dots.
    """

    default: float
    patterns: tuple[tuple[Pattern | re.Pattern[str], float], ...] = ()

    def of(self, module: str) -> float:
        for pattern, value in self.patterns:
            if isinstance(pattern, Pattern):
                found = pattern.matches_after_dot(module)
            else:
                found = pattern.match(module) is not None
            if found:
                return value
        return self.default


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The served fields. ``module`` is a base module's name, as ``model.layers.0.self_attn.q_proj``."""

    ranks: ByModule
    alphas: ByModule
    rslora: bool
    target: TargetRule
    base_model_name: str | None

    def rank(self, module: str) -> int:
        """>= 1."""
        return int(self.ranks.of(module))

    def scale(self, module: str) -> float:
        """What B(Ax) is multiplied by; finite."""
        rank = self.rank(module)
        return self.alphas.of(module) / (math.sqrt(rank) if self.rslora else rank)

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on the module, given that the base has it as a linear."""
        return self.target.targets(module)


def read_config(path: Path, max_bytes: int, base_class: str | None = None) -> AdapterConfig:
    """See ``parse_config``."""
    try:
        text = read_bounded(path, max_bytes).decode("utf-8")
        raw = strict_json(text, path.name)
    except UnicodeDecodeError as error:
        raise ConfigRefused((ConfigProblem(path.name, f"{path.name}: not UTF-8; save it again"),)) from error
    except HeaderRefused as error:
        raise ConfigRefused((ConfigProblem(error.field, error.message, error.value, error.limit),)) from error
    if not isinstance(raw, dict):
        raise ConfigRefused((ConfigProblem(path.name, f"{path.name}: must be a JSON object; save it again"),))
    return parse_config(raw, base_class)


def parse_config(raw: Mapping[str, Any], base_class: str | None = None) -> AdapterConfig:
    """``base_class`` is the base's class in transformers; None: any that is served.

    Raises ConfigRefused with one problem for each field that is wrong, unknown or not served.
    """
    problems: list[ConfigProblem] = []
    budget = MatchBudget()

    def problem(field: str, message: str, value: object = None, limit: object = None) -> None:
        problems.append(ConfigProblem(field, f"{field}: {message}", value, limit))

    if "peft_type" not in raw:
        problem("peft_type", "absent; save the adapter with PEFT, as peft_type LORA")
    for field, value in raw.items():
        rule = FIELDS.get(field)
        if rule is None:
            problem(show(field).strip("'"), "unknown field, and this platform does not guess; remove it or ask for it")
        elif not rule.takes(value):
            problem(field, f"{show(value)} is refused: {rule.reason}; {rule.remedy}", value)

    def regex(field: str, source: str) -> Pattern | None:
        try:
            return Pattern.compile(source, budget)
        except PatternRefused as error:
            problem(field, f"the pattern {show(source)} {error}", source)
            return None

    rank = raw.get("r", _DEFAULT_RANK)
    if not _is_rank(rank):
        problem("r", f"{show(rank)} must be an integer of at least 1", rank, 1)
    alpha = raw.get("lora_alpha", _DEFAULT_ALPHA)
    if not _is_alpha(alpha):
        problem("lora_alpha", f"{show(alpha)} must be a finite number", alpha)
    rslora = raw.get("use_rslora", False)
    if not isinstance(rslora, bool):
        problem("use_rslora", f"{show(rslora)} must be true or false", rslora)
    name = raw.get("base_model_name_or_path")
    if name is not None and not isinstance(name, str):
        problem("base_model_name_or_path", f"{show(name)} must be a string or null", name)
    mapping = raw.get("auto_mapping")
    trained_on = mapping.get("base_model_class") if isinstance(mapping, dict) else mapping
    classes = [family.causal_lm for family in FAMILIES.values()] if base_class is None else [base_class]
    if trained_on not in (None, *classes):
        problem(
            "auto_mapping", f"{show(trained_on)} is not the base's class; train on {' or '.join(classes)}", trained_on
        )

    by_module: dict[str, ByModule] = {}
    for field, default, check, want in (
        ("rank_pattern", rank, _is_rank, "an integer of at least 1"),
        ("alpha_pattern", alpha, _is_alpha, "a finite number"),
    ):
        given = raw.get(field)
        if given is not None and not isinstance(given, dict):
            problem(field, f"{show(given)} must map patterns to numbers", given)
            given = None
        patterns: list[tuple[Pattern | re.Pattern[str], float]] = []
        regexes = 0
        for source, value in (given or {}).items():
            if not check(value):
                problem(field, f"{show(value)} for {show(source)} must be {want}", value)
                continue
            if _LITERAL.match(source):  # no repeats: re cannot be made to backtrack
                patterns.append((re.compile(rf"(.*\.)?({source})$"), value))
                continue
            regexes += 1
            if regexes > _MAX_REGEXES:
                problem(field, f"over {_MAX_REGEXES} regular expressions; name the modules", regexes, _MAX_REGEXES)
                break
            compiled = regex(field, source)
            if compiled is not None:
                patterns.append((compiled, value))
        if check(default):
            by_module[field] = ByModule(default, tuple(patterns))

    target = TargetRule.parse(raw, problem, regex)
    if problems or target is None:
        raise ConfigRefused(tuple(problems))
    return AdapterConfig(by_module["rank_pattern"], by_module["alpha_pattern"], rslora, target, name)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def _is_alpha(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e30  # false for NaN and infinities, and safe for integers too big to be a float


__all__ = ["CONFIG_NAME", "AdapterConfig", "ByModule", "ConfigProblem", "ConfigRefused", "parse_config", "read_config"]
