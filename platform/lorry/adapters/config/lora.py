"""The fields of a config that are LoRA's alone, with PEFT's meaning. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from lorry.adapters.config.by_module import ByModule, read_alphas, read_ranks
from lorry.adapters.config.fields import INITIALISER_REMEDY, initialiser
from lorry.adapters.config.problems import Problems
from lorry.adapters.header import show
from lorry.layers import spec

EMBEDDING, HEAD = spec.EMBEDDING.removesuffix(".weight"), spec.HEAD.removesuffix(".weight")
"""Names of modules, those of their tensors without ``.weight``."""

Bias = Literal["none", "all", "lora_only"]
_BIASES: tuple[Bias, ...] = ("none", "all", "lora_only")
_DEFAULT_RANK = 8
_DEFAULT_ALPHA = 8
_TOKEN_KEYS = {"embed_tokens": EMBEDDING, EMBEDDING: EMBEDDING, HEAD: HEAD}
_MAX_TOKEN_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class LoraFields:
    """``tokens``: the ids whose rows are trained, by module (embedding or head), in the order of the rows.
    ``ties``: ``ensure_weight_tying``, which means something on a tied base alone."""

    ranks: ByModule
    alphas: ByModule
    rslora: bool
    dora: bool
    bias: Bias
    lora_bias: bool
    ties: bool
    tokens: Mapping[str, tuple[int, ...]]

    def rank(self, module: str) -> int:
        """>= 1."""
        return int(self.ranks.of(module))

    def scale(self, module: str) -> float:
        """What B(Ax) is multiplied by; finite."""
        rank = self.rank(module)
        return self.alphas.of(module) / (math.sqrt(rank) if self.rslora else rank)


def read_lora(raw: Mapping[str, Any], problems: Problems) -> LoraFields:
    """What is wrong is told to ``problems``."""
    flags = {name: read_flag(raw, name, problems) for name in ("use_rslora", "use_dora", "lora_bias")}
    ties = read_flag(raw, "ensure_weight_tying", problems)
    bias = raw.get("bias", "none")
    if bias not in _BIASES or not isinstance(bias, str):
        problems("bias", f"{show(bias)} must be one of {', '.join(_BIASES)}", bias)
    _check_initialiser(raw.get("init_lora_weights", True), flags, problems)
    if flags["lora_bias"] and flags["use_dora"]:
        problems("lora_bias", "PEFT has no DoRA with a bias on B; set use_dora or lora_bias to false", True)
    return LoraFields(
        ranks=read_ranks(raw, _DEFAULT_RANK, problems),
        alphas=read_alphas(raw, _DEFAULT_ALPHA, problems),
        rslora=flags["use_rslora"],
        dora=flags["use_dora"],
        bias=cast(Bias, bias),
        lora_bias=flags["lora_bias"],
        ties=ties,
        tokens=_tokens(raw.get("trainable_token_indices"), problems),
    )


def read_flag(raw: Mapping[str, Any], field: str, problems: Problems) -> bool:
    """False where it is absent."""
    value = raw.get(field, False)
    if not isinstance(value, bool):
        problems(field, f"{show(value)} must be true or false", value)
    return value is True


def _check_initialiser(value: object, flags: Mapping[str, bool], problems: Problems) -> None:
    field = "init_lora_weights"
    known = initialiser(value)
    if known is None:
        problems(field, f"{show(value)} is unknown, and may change the base's weights; {INITIALISER_REMEDY}", value)
    elif not known.served:
        problems(
            field,
            f"{show(value)} is refused: it {known.reason}, so the adapter is right on that changed base alone; "
            f"{INITIALISER_REMEDY}",
            value,
        )
    elif flags["lora_bias"] and not isinstance(value, bool):
        problems("lora_bias", f"PEFT has none with init_lora_weights {show(value)}; set it to true", True)
    elif flags["use_dora"] and value == "mica":
        problems("use_dora", "PEFT has no DoRA with init_lora_weights 'mica'; set one of them otherwise", True)


def _tokens(given: object, problems: Problems) -> dict[str, tuple[int, ...]]:
    field = "trainable_token_indices"
    if given is None or given in ([], {}):
        return {}
    by_module = given if isinstance(given, dict) else {EMBEDDING: given}
    found: dict[str, tuple[int, ...]] = {}
    for key, ids in by_module.items():
        module = _TOKEN_KEYS.get(key)
        if module is None or module in found:
            what = "is there twice" if module else "is no embedding of the base"
            problems(field, f"{show(key)} {what}; name {' and '.join(sorted(_TOKEN_KEYS))} alone, each once", key)
        elif not isinstance(ids, list) or not _are_ids(ids):
            problems(field, f"{show(ids)} must be a list of different token ids, each at least 0", ids)
        elif ids:
            found[module] = tuple(ids)
    return found


def _are_ids(ids: list[Any]) -> bool:
    good = all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < _MAX_TOKEN_ID for one in ids)
    return good and len(set(ids)) == len(ids)


__all__ = ["EMBEDDING", "HEAD", "Bias", "LoraFields", "read_flag", "read_lora"]
