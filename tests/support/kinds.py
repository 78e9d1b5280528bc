"""The kinds of adapter that are served, by name: one for each field of PEFT's configs that decides something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.zoo import Kind

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
LINEARS = ATTENTION + MLP
TOKENS = [300, 1, 5]
"""Trained ids, not in their order."""
LARGER = 328
"""Rows of the vocabulary where an adapter brings a larger one than the tiny base's 320."""


def _lora(targets: Any = LINEARS, **config: Any) -> Kind:
    return Kind({"r": 4, "lora_alpha": 8, "target_modules": targets, **config})


def _ia3(targets: Any = None, feedforward: Any = None, **config: Any) -> Kind:
    return Kind({"target_modules": targets, "feedforward_modules": feedforward, **config}, ia3=True)


LAYER_KINDS: Mapping[str, Kind] = {
    "r1": _lora(r=1, lora_alpha=2),
    "r3": _lora(r=3, lora_alpha=9),
    "r8": _lora(r=8, lora_alpha=16),
    "r64": _lora(r=64, lora_alpha=64),
    "r256": _lora(["q_proj", "down_proj"], r=256, lora_alpha=256),
    "rslora": _lora(use_rslora=True),
    "negative alpha": _lora(["q_proj", "up_proj"], lora_alpha=-8),
    "patterns": _lora(
        rank_pattern={r"^model\.layers\.0\.self_attn\.q_proj": 3, r"layers\.1\..*k_proj": 2, "down_proj": 7},
        alpha_pattern={"q_proj": 32, r"model.layers.1.*\.v_proj": 1, "up_proj": 2},
    ),
    "patterns, first key wins": _lora(
        rank_pattern={"layers.0.mlp.up_proj": 6, "mlp.up_proj": 2, "up_proj": 5},
        alpha_pattern={"a_proj": 1, "k_proj": 24, "self_attn.k_proj": 3},
    ),
    "patterns, rslora": _lora(use_rslora=True, rank_pattern={"o_proj": 9}, alpha_pattern={r".*mlp\..*": 5}),
    "some targets": _lora(["q_proj", "v_proj"]),
    "one module": _lora(["model.layers.1.mlp.down_proj"]),
    "regex": _lora(r"model\.layers\.(0|1)\.self_attn\.[qv]_proj"),
    "regex, one layer": _lora(r".*\.1\.(self_attn|mlp)\.(q|o|up)_proj$"),
    "all-linear": _lora("all-linear"),
    "default targets": _lora(None),
    "no task": _lora(["q_proj", "up_proj"], task_type=None),
    "exclude list": _lora(exclude_modules=["k_proj", "layers.0.mlp.up_proj"]),
    "exclude regex": _lora("all-linear", exclude_modules=r".*\.0\.self_attn.*|.*up_proj"),
    "one layer": _lora(["q_proj", "up_proj"], layers_to_transform=1),
    "layers of a list": _lora(["q_proj", "up_proj"], layers_to_transform=[0], layers_pattern="layers"),
    "layer beside a whole name": _lora(["q_proj", "model.layers.0.mlp.up_proj"], layers_to_transform=[1]),
    "no module in one layer": _lora(exclude_modules=[f"model.layers.0.self_attn.{name}" for name in ATTENTION]),
    "dora": _lora(use_dora=True),
    "dora, rslora, patterns": _lora(
        use_dora=True, use_rslora=True, rank_pattern={"q_proj": 2}, alpha_pattern={"mlp.up_proj": 3}
    ),
    "dora, some": _lora(["k_proj", "down_proj"], use_dora=True, exclude_modules=["layers.1.self_attn.k_proj"]),
    "dora, bias all": _lora(["q_proj", "v_proj", "o_proj"], use_dora=True, bias="all"),
    "bias all": _lora(["q_proj", "up_proj"], bias="all"),
    "bias lora_only": _lora(["q_proj", "v_proj", "o_proj"], bias="lora_only"),
    "lora_bias": _lora(lora_bias=True),
    "lora_bias, rslora, patterns": _lora(lora_bias=True, use_rslora=True, rank_pattern={"q_proj": 2, "up_proj": 6}),
    "lora_bias, bias all": _lora(["q_proj", "down_proj"], lora_bias=True, bias="all"),
    "fan_in_fan_out": _lora(["q_proj", "down_proj"], fan_in_fan_out=True),
    "norms": _lora(["q_proj"], modules_to_save=["norm"]),
    "layer norms by name": _lora(["q_proj"], modules_to_save=["layers.1.input_layernorm", "post_attention_layernorm"]),
    "last norm": _lora(["q_proj"], modules_to_save=["model.norm"]),
    "dora, norms": _lora(use_dora=True, modules_to_save=["input_layernorm", "norm"]),
    "ia3": _ia3(),
    "ia3 everywhere": _ia3(LINEARS, ["down_proj"]),
    "ia3, inputs of attention": _ia3(LINEARS, ["q_proj", "o_proj", "up_proj"]),
    "ia3, gate_proj only": _ia3(["gate_proj"], ["gate_proj"]),
    "ia3, no feedforward": _ia3(LINEARS, []),
    "ia3, regex": _ia3(r".*\.(q|k|up|down)_proj", r".*\.1\..*down_proj"),
    "ia3, exclude": _ia3(LINEARS, ["down_proj"], exclude_modules=["layers.0.self_attn.q_proj", "up_proj"]),
    "ia3, fan_in_fan_out": _ia3(["q_proj", "down_proj"], ["down_proj"], fan_in_fan_out=True),
    "ia3, norms": _ia3(["k_proj", "v_proj", "down_proj"], ["down_proj"], modules_to_save=["norm"]),
    "float16": Kind(_lora(use_dora=True).config, dtype="float16"),
    "bfloat16": Kind(_lora(lora_bias=True, modules_to_save=["model.norm"]).config, dtype="bfloat16"),
    "ia3, bfloat16": Kind(_ia3(LINEARS, ["down_proj"]).config, ia3=True, dtype="bfloat16"),
    "shards": Kind(_lora().config, shards=3),
    "shards, one tensor each": Kind(_lora(["q_proj"], bias="all", use_dora=True).config, shards=99),
    "shards, index named after the adapter": Kind(
        _lora(["q_proj"]).config, shards=2, index="adapter_model.safetensors.index.json"
    ),
    "init gaussian": _lora(["q_proj"], init_lora_weights="gaussian"),
    "init random": _lora(["q_proj"], init_lora_weights=False),
    "init orthogonal": _lora(["q_proj"], init_lora_weights="orthogonal"),
    "init mica": _lora(["q_proj"], init_lora_weights="mica"),
    "pissa, converted": Kind(_lora(["q_proj", "up_proj"], init_lora_weights="pissa").config, converted=True),
    "olora, converted": Kind(_lora(["q_proj", "up_proj"], init_lora_weights="olora").config, converted=True),
    "said to be fan_in_fan_out": Kind(_lora(use_dora=True).config, edits={"fan_in_fan_out": True}),
}
"""Kinds that touch the layers and the norms only. Which of embedding and head are tied makes no difference."""

BIAS_KINDS: tuple[str, ...] = (
    "bias all",
    "bias lora_only",
    "dora",
    "dora, bias all",
    "dora, rslora, patterns",
    "ia3 everywhere",
    "ia3, no feedforward",
    "ia3, inputs of attention",
    "lora_bias",
    "lora_bias, bias all",
)
"""Those of LAYER_KINDS that a bias in the base matters to."""

HEAD_NORM_KINDS: Mapping[str, Kind] = {
    "head norms": _lora(["q_proj"], modules_to_save=["q_norm", "k_norm"]),
    "head norms, ia3": _ia3(LINEARS, ["down_proj"], modules_to_save=["k_norm"]),
}
"""For a base that has q_norm and k_norm."""

VOCABULARY_KINDS: Mapping[str, Kind] = {
    "lora head": _lora(["q_proj", "lm_head"]),
    "lora head, patterns": _lora(
        ["lm_head", "v_proj"], use_rslora=True, rank_pattern={"lm_head": 2}, alpha_pattern={"lm_head": 3}
    ),
    "lora_bias head": _lora(["q_proj", "lm_head"], lora_bias=True),
    "lora embedding": _lora(["q_proj", "embed_tokens"]),
    "lora embedding only": _lora(["embed_tokens"], r=3),
    "lora head only": _lora(["lm_head"], r=3),
    "lora both": _lora(["q_proj", "embed_tokens", "lm_head"], rank_pattern={"embed_tokens": 6}),
    "lora both, regex": _lora(r".*(q_proj|embed_tokens|lm_head)"),
    "dora head": _lora(["q_proj", "lm_head"], use_dora=True),
    "dora embedding": _lora(["q_proj", "embed_tokens"], use_dora=True),
    "dora both": _lora([*LINEARS, "embed_tokens", "lm_head"], use_dora=True, use_rslora=True),
    "head": _lora(["q_proj"], modules_to_save=["lm_head"]),
    "embedding": _lora(["q_proj"], modules_to_save=["embed_tokens"]),
    "head and embedding": _lora(["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    "head, embedding and norms": _lora(use_dora=True, modules_to_save=["lm_head", "embed_tokens", "norm"]),
    "lora head, embedding": _lora(["q_proj", "lm_head"], modules_to_save=["embed_tokens"]),
    "lora embedding, head": _lora(["q_proj", "embed_tokens"], modules_to_save=["lm_head"]),
    "target that is saved whole": _lora(["q_proj", "lm_head"], modules_to_save=["lm_head"]),
    "tied: embedding": _lora(["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "tied: head": _lora(["q_proj"], modules_to_save=["lm_head"], ensure_weight_tying=True),
    "tied: lora embedding": _lora(["q_proj", "embed_tokens"], ensure_weight_tying=True),
    "tied: lora head": _lora(["q_proj", "lm_head"], ensure_weight_tying=True),
    "tied: lora both, regex": _lora(r".*(q_proj|embed_tokens)", ensure_weight_tying=True),
    "tied: dora both": _lora(["q_proj", "embed_tokens", "lm_head"], use_dora=True, ensure_weight_tying=True),
    "tied: head's own alpha": _lora(
        ["q_proj", "embed_tokens", "lm_head"], ensure_weight_tying=True, alpha_pattern={"lm_head": 2}
    ),
    "tokens": _lora(["q_proj"], trainable_token_indices=TOKENS),
    "tokens by name": _lora(["q_proj"], trainable_token_indices={"embed_tokens": TOKENS}),
    "tokens of the head": _lora(["q_proj"], trainable_token_indices={"lm_head": TOKENS}),
    "tokens of both": _lora(["q_proj"], trainable_token_indices={"embed_tokens": TOKENS, "lm_head": [7, 2]}),
    "tied: tokens of both": _lora(
        ["q_proj"], trainable_token_indices={"embed_tokens": TOKENS, "lm_head": TOKENS}, ensure_weight_tying=True
    ),
    "tokens, dora, norms": _lora(use_dora=True, trainable_token_indices=TOKENS, modules_to_save=["norm"]),
    "tokens, lora head": _lora(["q_proj", "lm_head"], trainable_token_indices=TOKENS),
    "tokens of the head, lora embedding": _lora(
        ["q_proj", "embed_tokens"], trainable_token_indices={"lm_head": TOKENS}
    ),
    "tokens of the head, embedding": _lora(
        ["q_proj"], modules_to_save=["embed_tokens"], trainable_token_indices={"lm_head": TOKENS}
    ),
    "ia3 head": _ia3(["lm_head", "k_proj"], []),
    "ia3 head's input": _ia3(["lm_head", "k_proj"], ["lm_head"]),
    "ia3, head and embedding": _ia3(["k_proj"], [], modules_to_save=["lm_head", "embed_tokens"]),
    "head, float16": Kind(_lora(["q_proj"], modules_to_save=["lm_head"]).config, dtype="float16"),
    "lora both, bfloat16, shards": Kind(
        _lora(["q_proj", "embed_tokens", "lm_head"]).config, dtype="bfloat16", shards=4
    ),
    "larger vocabulary": Kind(_lora(["q_proj"]).config, vocabulary=LARGER, tokenizer=True),
    "larger vocabulary, trained": Kind(
        _lora(["q_proj"], modules_to_save=["lm_head", "embed_tokens"]).config, vocabulary=LARGER, tokenizer=True
    ),
    "larger vocabulary, embedding trained": Kind(
        _lora(["q_proj"], modules_to_save=["embed_tokens"]).config, vocabulary=LARGER, tokenizer=True
    ),
    "larger vocabulary, tokens": Kind(
        _lora(["q_proj"], trainable_token_indices=[320, 5, 327]).config, vocabulary=LARGER, tokenizer=True
    ),
    "larger vocabulary, lora both": Kind(
        _lora(["q_proj", "embed_tokens", "lm_head"]).config, vocabulary=LARGER, tokenizer=True
    ),
    "larger vocabulary, ia3": Kind(_ia3(["k_proj"], []).config, ia3=True, vocabulary=LARGER, tokenizer=True),
    "larger vocabulary, no tokenizer": Kind(
        _lora(["q_proj"], modules_to_save=["lm_head", "embed_tokens"]).config, vocabulary=LARGER
    ),
}
"""Kinds that touch the embedding or the head, where it matters whether the base ties them."""


def kinds_for(family: str) -> dict[str, Kind]:
    """Every kind for a base of the family."""
    return {**LAYER_KINDS, **(HEAD_NORM_KINDS if family == "qwen3" else {}), **VOCABULARY_KINDS}


__all__ = [
    "BIAS_KINDS",
    "HEAD_NORM_KINDS",
    "LARGER",
    "LAYER_KINDS",
    "LINEARS",
    "TOKENS",
    "VOCABULARY_KINDS",
    "kinds_for",
]
