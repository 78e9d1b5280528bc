"""DecoderSpec against transformers' configuration classes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorry.errors import UnsupportedBase
from lorry.layers.spec import DecoderSpec
from tests.support.tiny_base import FAMILIES, write_tiny_model
from tests.unit.layers.hugging_face import FULL, expected

EACH_FIELD = [(family, field) for family, config in FULL.items() for field in config]


def read(family: str, config: dict[str, Any]) -> DecoderSpec:
    return DecoderSpec.from_config({"model_type": family, **config})


@pytest.mark.parametrize("family", FULL)
def test_every_field_is_read_as_transformers_reads_it(family: str) -> None:
    assert read(family, FULL[family]) == expected(family, FULL[family])


@pytest.mark.parametrize(("family", "field"), EACH_FIELD)
def test_a_field_that_is_left_out_has_transformers_own_default(family: str, field: str) -> None:
    config = {key: value for key, value in FULL[family].items() if key != field}
    want = expected(family, config)
    if field == "num_hidden_layers":  # the default of 32 layers goes with max_window_layers = 1
        assert want.layers == 32
    assert read(family, config) == want


@pytest.mark.parametrize("family", FULL)
def test_an_empty_config_is_the_family_s_default_model(family: str) -> None:
    assert read(family, {}) == expected(family, {})


@pytest.mark.parametrize(
    ("family", "field"), [pair for pair in EACH_FIELD if pair != ("mistral", "num_key_value_heads")]
)
def test_null_means_what_it_means_to_transformers_or_is_refused(family: str, field: str) -> None:
    config = FULL[family] | {field: None}
    try:
        want = None if field == "rope_theta" else expected(family, config)  # transformers fails on that one later
    except Exception:  # its validators raise many types, and each says that there is no answer
        want = None
    if want is None:
        with pytest.raises(UnsupportedBase, match=field):
            read(family, config)
    else:
        assert read(family, config) == want


def test_null_for_mistral_s_kv_heads_is_heads_as_before_transformers_5() -> None:
    assert read("mistral", FULL["mistral"] | {"num_key_value_heads": None}).kv_heads == 32


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_config_is_read_whole(tmp_path: Path, family: str) -> None:
    write_tiny_model(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    spec = DecoderSpec.from_config(config)
    assert (spec.model_type, spec.layers, spec.head_dim, spec.context_tokens) == (family, 2, 16, 256)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": False},
        {"sliding_window": None},
        {"max_window_layers": 0},
        {"max_window_layers": 3},
        {"max_window_layers": 400},
        {"layer_types": ["full_attention", "full_attention", "full_attention"]},
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_which_layers_slide(family: str, changes: dict[str, Any]) -> None:
    spec = read(family, FULL[family] | changes)
    assert spec == expected(family, FULL[family] | changes)
    assert [spec.window(layer) for layer in range(3)] == [
        32 if layer in spec.windowed_layers else None for layer in range(3)
    ]


REFUSED: list[tuple[str, str, object]] = [
    ("llama", "hidden_act", "gelu"),
    ("llama", "hidden_act", None),
    ("llama", "quantization_config", {"quant_method": "gptq"}),
    ("llama", "sliding_window", 4096),
    ("llama", "use_sliding_window", True),
    ("llama", "layer_types", ["sliding_attention"] * 3),
    ("llama", "attention_bias", "yes"),
    ("llama", "pretraining_tp", 2),
    ("llama", "rope_interleaved", True),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "num_hidden_layers", 0),
    ("llama", "num_hidden_layers", 10**12),
    ("llama", "vocab_size", "many"),
    ("llama", "vocab_size", True),
    ("llama", "head_dim", 15),
    ("llama", "num_key_value_heads", 3),
    ("llama", "hidden_size", 66),
    ("llama", "rms_norm_eps", 0.0),
    ("llama", "rms_norm_eps", float("nan")),
    ("llama", "rope_theta", -1.0),
    ("llama", "rope_theta", 10**400),
    ("llama", "tie_word_embeddings", "no"),
    ("llama", "eos_token_id", ["</s>"]),
    ("llama", "bos_token_id", [1, 2]),
    ("llama", "logit_scale", 2.0),
    ("llama", "max_window_layers", 2),
    ("mistral", "attention_bias", True),
    ("mistral", "use_sliding_window", False),
    ("mistral", "sliding_window", 0),
    ("mistral", "sliding_window", -1),
    ("mistral", "layer_types", ["full_attention"] * 3),
    ("qwen2", "attention_bias", True),
    ("qwen2", "mlp_bias", True),
    ("qwen2", "use_mrope", True),
    ("qwen2", "use_sliding_window", "yes"),
    ("qwen2", "max_window_layers", "all"),
    ("qwen2", "layer_types", ["sliding_attention"]),
    ("qwen2", "layer_types", ["chunked_attention"] * 3),
    ("qwen2", "layer_types", "full_attention"),
    ("qwen3", "mlp_bias", True),
    ("qwen3", "num_experts", 8),
]


@pytest.mark.parametrize(("family", "field", "value"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(family: str, field: str, value: object) -> None:
    with pytest.raises(UnsupportedBase, match=rf"\b{field}\b") as refused:
        read(family, FULL[family] | {field: value})
    assert field in [violation.field for violation in refused.value.violations]


@pytest.mark.parametrize("model_type", ["gemma2", "qwen3_moe", "ministral", "mixtral", "", None, ["llama"]])
def test_another_type_of_model_is_refused_with_those_that_are_served(model_type: object) -> None:
    with pytest.raises(UnsupportedBase, match=r"model_type.*llama, mistral, qwen2, qwen3"):
        DecoderSpec.from_config({**FULL["llama"], "model_type": model_type})


def test_a_layer_that_slides_without_a_window_is_refused() -> None:
    config = FULL["qwen2"] | {"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3}
    with pytest.raises(UnsupportedBase, match="layer_types"):
        read("qwen2", config)


def test_all_refusals_are_named_at_once() -> None:
    with pytest.raises(UnsupportedBase) as refused:
        read("qwen3", FULL["qwen3"] | {"hidden_act": "gelu", "num_experts": 4, "vocab_size": None})
    assert {violation.field for violation in refused.value.violations} == {"hidden_act", "num_experts", "vocab_size"}


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama", {"sliding_window": None, "use_sliding_window": False, "rope_interleaved": False}),
        ("mistral", {"attention_bias": False, "mlp_bias": False, "layer_types": ["sliding_attention"] * 3}),
        ("qwen2", {"use_mrope": False, "quantization_config": None, "attention_bias": None}),
    ],
)
def test_fields_that_say_what_is_done_anyway_are_taken(family: str, said: dict[str, Any]) -> None:
    assert read(family, FULL[family] | said) == read(family, FULL[family])
