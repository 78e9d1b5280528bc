"""``adapter_config.json``: read strictly, every field accounted for, served ones with PEFT's meaning. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lorry.adapters.config.fields import FIELDS, PeftType, rule_of
from lorry.adapters.config.ia3 import GainRule, read_ia3
from lorry.adapters.config.lora import LoraFields, read_flag, read_lora
from lorry.adapters.config.problems import ConfigProblem, ConfigRefused, Problems
from lorry.adapters.config.targets import SavedRule, TargetRule
from lorry.adapters.header import HeaderRefused, read_bounded, show, strict_json
from lorry.layers.families import FAMILIES

CONFIG_NAME = "adapter_config.json"
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The served fields. ``module`` is a base module's name, as ``model.layers.0.self_attn.q_proj``. One of ``lora``
    and ``gains`` (IA3's) is there, by ``peft_type``; ``saved``: ``modules_to_save``."""

    peft_type: PeftType
    target: TargetRule
    saved: SavedRule
    base_model_name: str | None
    lora: LoraFields | None = None
    gains: GainRule | None = None

    def rank(self, module: str) -> int:
        """>= 1; of a LoRA."""
        assert self.lora is not None
        return self.lora.rank(module)

    def scale(self, module: str) -> float:
        """What B(Ax) is multiplied by; finite; of a LoRA."""
        assert self.lora is not None
        return self.lora.scale(module)

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on the module, given that the base has it as a linear or embedding."""
        return not self.saved.excludes(module) and self.target.targets(module)


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
    problems = Problems()
    peft_type = _peft_type(raw, problems)
    unknown = [field for field in raw if rule_of(peft_type, field) is None]
    for field in unknown[:_SHOWN]:
        problems(show(field).strip("'"), "unknown field, and this platform does not guess; remove it or ask for it")
    if len(unknown) > _SHOWN:
        problems(CONFIG_NAME, f"{len(unknown)} unknown fields; remove them", len(unknown), 0)
    for field, value in raw.items():
        rule = rule_of(peft_type, field)
        if rule is not None and not rule.takes(value):
            problems(field, f"{show(value)} is refused: {rule.reason}; {rule.remedy}", value)
    read_flag(raw, "fan_in_fan_out", problems)
    name = raw.get("base_model_name_or_path")
    if name is not None and not isinstance(name, str):
        problems("base_model_name_or_path", f"{show(name)} must be a string or null", name)
    _check_class(raw.get("auto_mapping"), base_class, problems)
    lora = read_lora(raw, problems) if peft_type == "LORA" else None
    gains = read_ia3(raw, problems) if peft_type == "IA3" else None
    saved = SavedRule.parse(raw.get("modules_to_save"), problems)
    target = TargetRule.parse(raw, problems)
    problems.raise_any()
    assert target is not None
    return AdapterConfig(peft_type, target, saved, name, lora, gains)


def _peft_type(raw: Mapping[str, Any], problems: Problems) -> PeftType:
    """LORA where it is wrong, so that the other fields are looked at too."""
    if "peft_type" not in raw:
        problems("peft_type", "absent; save the adapter with PEFT, as peft_type LORA or IA3")
        return "LORA"
    given = raw["peft_type"]
    if isinstance(given, str) and given in FIELDS:
        return cast(PeftType, given)
    problems("peft_type", f"{show(given)} is refused: {' and '.join(FIELDS)} are served; train one of those", given)
    return "LORA"


def _check_class(mapping: object, base_class: str | None, problems: Problems) -> None:
    trained_on = mapping.get("base_model_class") if isinstance(mapping, dict) else mapping
    classes = [family.causal_lm for family in FAMILIES.values()] if base_class is None else [base_class]
    if trained_on not in (None, *classes):
        problems(
            "auto_mapping", f"{show(trained_on)} is not the base's class; train on {' or '.join(classes)}", trained_on
        )


__all__ = ["CONFIG_NAME", "AdapterConfig", "ConfigProblem", "ConfigRefused", "parse_config", "read_config"]
