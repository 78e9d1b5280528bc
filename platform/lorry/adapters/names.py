"""From the names of tensors to the modules of the base and their parts there. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lorry.adapters.config.lora import EMBEDDING, HEAD
from lorry.adapters.header import TensorInfo
from lorry.adapters.report import Check
from lorry.layers.sites import SITE_SLICES, module_name
from lorry.layers.spec import DecoderSpec

Part = Literal[
    "lora_A",
    "lora_B",
    "lora_B.bias",
    "magnitude",
    "embedding_A",
    "embedding_B",
    "gain",
    "bias",
    "base_layer.bias",
    "weight",
    "base_layer.weight",
    "original_module.weight",
    "modules_to_save.weight",
    "token_adapter.base_layer.weight",
    "rows",
]
"""What a tensor is to its module. ``weight`` is the module's own name alone: what ``modules_to_save`` put in its place,
or the base's. The four behind a dot are the base's weight again, as the module's wrapper calls it."""

PREFIX = "base_model.model."
"""What PEFT puts before every module's name."""
_COPY = "must be the base's, or the embedding or head of a larger vocabulary"


@dataclass(frozen=True, slots=True)
class PartRule:
    """Every spelling that PEFT reads, behind the module's name; and what the tensor is."""

    spellings: tuple[str, ...]
    meaning: str


PARTS: Mapping[Part, PartRule] = {
    "lora_A": PartRule(("lora_A.weight", "lora_A.default.weight"), "[r, K], of LoRA and DoRA on a linear"),
    "lora_B": PartRule(("lora_B.weight", "lora_B.default.weight"), "[N, r], of LoRA and DoRA on a linear"),
    "lora_B.bias": PartRule(("lora_B.bias", "lora_B.default.bias"), "[N], of lora_bias"),
    "magnitude": PartRule(
        ("lora_magnitude_vector", "lora_magnitude_vector.weight", "lora_magnitude_vector.default.weight"),
        "[N], of DoRA; on embed_tokens [H]",
    ),
    "embedding_A": PartRule(("lora_embedding_A", "lora_embedding_A.default"), "[r, V], of LoRA on embed_tokens"),
    "embedding_B": PartRule(("lora_embedding_B", "lora_embedding_B.default"), "[H, r], of LoRA on embed_tokens"),
    "gain": PartRule(("ia3_l", "ia3_l.default"), "[N, 1], of IA3; [1, K] on feedforward_modules"),
    "rows": PartRule(("token_adapter.trainable_tokens_delta",), "[ids, H], whole rows of trained tokens"),
    "base_layer.bias": PartRule(("base_layer.bias",), "[N], of a linear with an adapter, by bias all or lora_only"),
    "bias": PartRule(("bias",), "[N], of a linear without an adapter, by bias all"),
    "weight": PartRule(("weight",), "of a norm, embed_tokens or lm_head in modules_to_save; else a saved copy"),
    "base_layer.weight": PartRule(("base_layer.weight",), _COPY),
    "original_module.weight": PartRule(("original_module.weight",), _COPY),
    "token_adapter.base_layer.weight": PartRule(("token_adapter.base_layer.weight",), _COPY),
    "modules_to_save.weight": PartRule(("modules_to_save.weight",), "must equal the module's own weight in the file"),
}
_SUFFIXES: Mapping[str, Part] = {spelling: part for part, rule in PARTS.items() for spelling in rule.spellings}
"""The longest that leaves a module's name counts."""

_LINEAR_PARTS = frozenset[Part](
    {"lora_A", "lora_B", "lora_B.bias", "magnitude", "gain", "bias", "base_layer.bias", "base_layer.weight"}
)
_NORM_PARTS = frozenset[Part]({"weight"})
_WHOLE_PARTS = frozenset[Part](
    {
        "weight",
        "base_layer.weight",
        "original_module.weight",
        "modules_to_save.weight",
        "token_adapter.base_layer.weight",
        "rows",
    }
)
_HEAD_PARTS = _WHOLE_PARTS | frozenset[Part]({"lora_A", "lora_B", "lora_B.bias", "magnitude", "gain"})
_EMBEDDING_PARTS = _WHOLE_PARTS | frozenset[Part]({"embedding_A", "embedding_B", "magnitude"})

_KINDS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), what, remedy)
    for pattern, what, remedy in (
        (
            r"_proj\.weight\Z|_proj\.(?:modules_to_save|original_module)\.",
            "replaces a whole linear (modules_to_save), which is not served",
            "train LoRA on it, or leave it out of modules_to_save",
        ),
        (
            r"\.modules_to_save\.",
            "has a module's name that PEFT does not read (modules_to_save)",
            "save it again with a current PEFT",
        ),
        (r"lora_embedding_[AB]", "is LoRA on an embedding that the base has not", "train the adapter on this base"),
        (r"\.lora_diag\b", "belongs to KaSA (kasa_config)", "train and save it without"),
        (r"\.(?:hada|lokr|vera|oft|boft|hra|miss|road|randlora)_", "belongs to another method than LoRA and IA3", ""),
        (r"prompt_embeddings", "belongs to prompt tuning, which is not served", "train a LoRA or IA3"),
    )
)
_FOREIGN = ("matches no module of the base", "train the adapter on this base")

Parts = Mapping[str, Mapping[Part, TensorInfo]]
"""Tensors by module and part."""


@dataclass(frozen=True, slots=True)
class BaseModules:
    """The modules of a base that an adapter can touch, by PEFT's names. ``norms`` with the elements of their weight."""

    linears: Mapping[str, tuple[int, str]]
    norms: Mapping[str, int]

    @classmethod
    def of(cls, spec: DecoderSpec) -> BaseModules:
        linears = {
            module_name(layer, name): (layer, name)
            for layer in range(spec.layers)
            for names in SITE_SLICES.values()
            for name in names
        }
        norms = {name.removesuffix(".weight"): size for name, size in spec.norms().items()}
        return cls(linears, norms)

    def parts(self, module: str) -> frozenset[Part]:
        """Which parts a tensor of the module can be; empty: there is no such module."""
        if module in self.linears:
            return _LINEAR_PARTS
        if module in self.norms:
            return _NORM_PARTS
        if module == HEAD:
            return _HEAD_PARTS
        return _EMBEDDING_PARTS if module == EMBEDDING else frozenset()

    def with_weights(self) -> tuple[str, ...]:
        """Every module that has a weight, and every one that holds such."""
        found = dict.fromkeys((HEAD, EMBEDDING, *self.linears, *self.norms))
        for name in list(found):
            parents = name.split(".")[:-1]
            found |= dict.fromkeys(".".join(parents[:count]) for count in range(1, len(parents) + 1))
        return tuple(found)


def place_tensors(
    tensors: Mapping[str, TensorInfo], base: BaseModules
) -> tuple[dict[str, dict[Part, TensorInfo]], list[Check]]:
    """The tensors by module and part, and one failed row for each kind of name that is not taken."""
    found: dict[str, dict[Part, TensorInfo]] = {}
    wrong: dict[tuple[str, str], list[str]] = {}
    for info in tensors.values():
        module, part = _place(info.name, base)
        if part is None:
            wrong.setdefault(_kind(info.name), []).append(info.name)
        elif part in found.setdefault(module, {}):
            wrong.setdefault(("is there twice under two spellings", "save one of them"), []).append(info.name)
        else:
            found[module][part] = info
    checks = [Check.some_fail("tensors.names", names, what, remedy) for (what, remedy), names in wrong.items()]
    return found, checks


def _place(name: str, base: BaseModules) -> tuple[str, Part | None]:
    if name.startswith(PREFIX):
        pieces = name.removeprefix(PREFIX).rsplit(".", 3)
        for count in (3, 2, 1):
            part = _SUFFIXES.get(".".join(pieces[-count:]))
            module = ".".join(pieces[:-count])
            if part is not None and part in base.parts(module):
                return module, part
    return "", None


def _kind(name: str) -> tuple[str, str]:
    return next(((what, remedy) for pattern, what, remedy in _KINDS if pattern.search(name)), _FOREIGN)


__all__ = ["PARTS", "PREFIX", "BaseModules", "Part", "PartRule", "Parts", "place_tensors"]
