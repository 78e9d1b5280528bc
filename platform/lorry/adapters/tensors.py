"""From tensor names to modules of the base: every tensor is one half of one pair, or refuses the adapter. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lorry.adapters.config import AdapterConfig
from lorry.adapters.header import TensorFile, TensorInfo
from lorry.adapters.plan import ModulePlan
from lorry.adapters.report import Check
from lorry.layers.sites import module_name, parse_module
from lorry.layers.spec import DecoderSpec

_LORA = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)(?:\.default)?\.weight\Z")
_KINDS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern), what, remedy)
    for pattern, what, remedy in (
        (r"\.base_layer\.", "is a saved copy of a base weight", "save with save_embedding_layers=False"),
        (r"\.lora_magnitude_vector", "belongs to DoRA (use_dora), not served yet", "train a plain LoRA"),
        (r"\.lora_[AB]\..*bias\Z", "is a bias on a LoRA factor (lora_bias), not served yet", "train without it"),
        (r"\blm_head\.lora_", "is LoRA on lm_head, not served yet", "leave lm_head out of target_modules"),
        (r"\.lora_embedding_", "is LoRA on an embedding, not served yet", "leave embeddings out of target_modules"),
        (r"\.token_adapter\.|trainable_tokens", "is trained tokens (trainable_token_indices)", "train without them"),
        (
            r"\.modules_to_save\.|\b(?:lm_head|embed_tokens|(?:[qk]_)?norm|[a-z]+_layernorm)\.weight\Z",
            "replaces a whole module (modules_to_save), not served yet",
            "train without modules_to_save and save with save_embedding_layers=False",
        ),
        (r"\.bias\Z", "is a trained bias (bias), not served yet", "train with bias 'none'"),
    )
)
_FOREIGN = ("matches no module of the base", "train the adapter on this base")


@dataclass(frozen=True, slots=True)
class Pair:
    """``a`` is ``[rank, K]``, ``b`` is ``[N, rank]``; K and N are the base's, the ranks still to be compared."""

    a: TensorInfo
    b: TensorInfo


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Complete pairs by (layer, slice name), in the order of the layers."""

    pairs: Mapping[tuple[int, str], Pair]

    def modules(self, config: AdapterConfig) -> dict[tuple[int, str], ModulePlan]:
        found: dict[tuple[int, str], ModulePlan] = {}
        for key, pair in self.pairs.items():
            name = module_name(*key)
            found[key] = ModulePlan(config.rank(name), config.scale(name), pair.a.name, pair.b.name)
        return found


def map_tensors(weights: TensorFile, spec: DecoderSpec) -> tuple[TensorMap, list[Check]]:
    """Pairs that are right in shape, and one row per kind of fault."""
    halves: dict[tuple[int, str], dict[str, TensorInfo]] = {}
    wrong: dict[tuple[str, str], list[str]] = {}
    for info in weights.tensors.values():
        key, side = _place(info.name, spec)
        if key is None:
            wrong.setdefault(_kind(info.name), []).append(info.name)
        elif side in halves.setdefault(key, {}):
            wrong.setdefault(("is there twice, with and without '.default'", "save one of them"), []).append(info.name)
        else:
            halves[key][side] = info
    checks = [Check.some_fail("tensors.names", names, what, remedy) for (what, remedy), names in wrong.items()]
    lonely = [
        f"{module_name(*key)} has no lora_{'B' if 'A' in half else 'A'}"
        for key, half in halves.items()
        if len(half) < 2
    ]
    if lonely:
        checks.append(Check.some_fail("tensors.pairs", lonely, "", "save the adapter again, whole"))
    pairs = {key: Pair(half["A"], half["B"]) for key, half in sorted(halves.items()) if len(half) == 2}
    misfits = [fault for key, pair in pairs.items() for fault in _misfits(key[1], pair, spec)]
    if misfits:
        checks.append(Check.some_fail("tensors.shapes", misfits, "", "train the adapter on this base"))
    if not pairs:
        message = "no pair of tensors matches a module of the base; train the adapter on this base"
        checks.append(Check.fail("tensors.modules", message, 0, 1))
    if not checks:
        checks.append(Check("tensors", "pass", f"{len(pairs)} modules, every tensor on one", len(pairs)))
    return TensorMap({key: pair for key, pair in pairs.items() if not _misfits(key[1], pair, spec)}), checks


def _place(name: str, spec: DecoderSpec) -> tuple[tuple[int, str] | None, str]:
    match = _LORA.match(name)
    key = None if match is None else parse_module(match[1])
    if match is None or key is None or key[0] >= spec.layers:
        return None, ""
    return key, match[2]


def _kind(name: str) -> tuple[str, str]:
    return next(((what, remedy) for pattern, what, remedy in _KINDS if pattern.search(name)), _FOREIGN)


def _misfits(slice_name: str, pair: Pair, spec: DecoderSpec) -> list[str]:
    out_features, in_features = spec.slice_shape(slice_name)
    found: list[str] = []
    if len(pair.a.shape) != 2 or pair.a.shape[1] != in_features:
        found.append(f"{pair.a.name} has shape {list(pair.a.shape)}, want [r, {in_features}]")
    if len(pair.b.shape) != 2 or pair.b.shape[0] != out_features:
        found.append(f"{pair.b.name} has shape {list(pair.b.shape)}, want [{out_features}, r]")
    return found


__all__ = ["Pair", "TensorMap", "map_tensors"]
