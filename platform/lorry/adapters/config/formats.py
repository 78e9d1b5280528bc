"""The capability statement: what is served and what is refused, out of the tables that the validator uses. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.adapters.config.fields import FIELDS, GROUPS, INITIALISER_REMEDY, INITIALISERS, FieldRule
from lorry.adapters.config.read import CONFIG_NAME
from lorry.adapters.directory import COMPANIONS, HARMLESS, TOKENIZER
from lorry.adapters.header import ITEM_BYTES, PICKLE_SUFFIXES
from lorry.adapters.names import PARTS, PREFIX
from lorry.adapters.shards import INDEX_NAMES, WEIGHTS_NAME
from lorry.adapters.validate import Limits
from lorry.layers.families import FAMILIES
from lorry.layers.sites import SLICE_SITE
from lorry.text import TEXT_FILES

_SHARD = "adapter_model-00001-of-0000N.safetensors"
_GROUP_TITLES: Mapping[str, str] = {
    "both": "Fields of LoraConfig and IA3Config",
    "LORA": "Fields of LoraConfig",
    "IA3": "Fields of IA3Config",
    "former": "Fields of earlier PEFT",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A table. ``key`` names it in JSON, where each row is an object by ``columns``; cells in backticks are literal."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(limits: Limits | None = None) -> tuple[Section, ...]:
    """In the order to be read."""
    judged = ("outcome", "why", "remedy")
    return (
        Section("methods", "Methods", ("peft_type", "outcome"), _methods()),
        *(
            Section(f"fields_{group}".lower(), _GROUP_TITLES[group], ("field", *judged), _fields(rules))
            for group, rules in GROUPS.items()
        ),
        Section("initialisers", "Values of init_lora_weights", ("value", *judged), _initialisers()),
        Section("tensors", "Tensors", ("name", "what it is"), _tensors()),
        Section("modules", "Modules", ("module", "what can be on it"), _modules()),
        Section("files", "Files", ("name", "outcome"), _files()),
        Section("limits", "Limits", ("of", "limit"), _limits(limits or Limits())),
    )


def statement() -> dict[str, Any]:
    """Plain JSON."""
    return {
        section.key: [
            {column: cell.replace("`", "") for column, cell in zip(section.columns, row, strict=True)}
            for row in section.rows
        ]
        for section in sections()
    }


def _methods() -> tuple[tuple[str, ...], ...]:
    return (*((f"`{name}`", "served") for name in FIELDS), ("every other", "refused"))


def _fields(rules: Mapping[str, FieldRule]) -> tuple[tuple[str, ...], ...]:
    order = ("served", "refused", "harmless")
    found = sorted(rules.items(), key=lambda item: order.index(item[1].treatment))
    return tuple((f"`{name}`", _outcome(rule), rule.reason, rule.remedy) for name, rule in found)


def _outcome(rule: FieldRule) -> str:
    if rule.treatment == "refused":
        return f"refused, but for {', '.join(f'`{json.dumps(value)}`' for value in rule.allowed)}"
    return "passed over" if rule.treatment == "harmless" else "served"


def _initialisers() -> tuple[tuple[str, ...], ...]:
    known = tuple(
        (
            f"`{json.dumps(one.value)}`",
            "served" if one.served else "refused",
            one.reason,
            "" if one.served else INITIALISER_REMEDY,
        )
        for one in INITIALISERS
    )
    return (*known, ("every other", "refused", "unknown, and may change the base's weights", INITIALISER_REMEDY))


def _tensors() -> tuple[tuple[str, ...], ...]:
    return tuple(
        (", ".join(f"`{PREFIX}MODULE.{spelling}`" for spelling in rule.spellings[:1]), rule.meaning)
        for rule in PARTS.values()
    )


def _modules() -> tuple[tuple[str, ...], ...]:
    linears = ", ".join(f"`{name}`" for name in SLICE_SITE)
    return (
        (linears, "LoRA, DoRA, IA3, trained biases where the base has them"),
        ("`lm_head`", "LoRA, DoRA, IA3; replaced whole; trained tokens"),
        ("`embed_tokens`", "LoRA, DoRA; replaced whole; trained tokens"),
        ("`input_layernorm`, `post_attention_layernorm`, `norm`, `q_norm`, `k_norm`", "replaced whole"),
    )


def _files() -> tuple[tuple[str, ...], ...]:
    def listed(names: Any) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names))

    return (
        (f"`{CONFIG_NAME}`", "required"),
        (f"`{WEIGHTS_NAME}`", f"required, or `{_SHARD}` and one of {listed(INDEX_NAMES)}"),
        (listed(TEXT_FILES), "the version's own text side, in place of the base's"),
        (listed(COMPANIONS), f"passed over beside `{TOKENIZER}`, refused without it"),
        (listed(HARMLESS), "passed over"),
        (", ".join(f"`*{suffix}`" for suffix in PICKLE_SUFFIXES), "refused by name, and a pickle by its first bytes"),
        ("every other, folders, links", "refused"),
    )


def _limits(limits: Limits) -> tuple[tuple[str, ...], ...]:
    header = limits.header
    return (
        ("bases (`model_type`)", ", ".join(FAMILIES)),
        ("numbers of the tensors", ", ".join(ITEM_BYTES)),
        ("rank of a module", f"1 to {limits.max_rank}"),
        ("files of a version", f"{limits.max_files}"),
        (f"`{CONFIG_NAME}`", f"{limits.max_config_bytes >> 10} KiB"),
        ("weights", f"{header.file_bytes >> 30} GiB, {header.tensors} tensors"),
        ("header of each weights file", f"{header.header_bytes >> 10} KiB"),
        ("rows of embed_tokens and lm_head", "the base's or more"),
    )


__all__ = ["Section", "sections", "statement"]
