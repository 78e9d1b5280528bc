"""PEFT is the oracle of what a config means; every field that it can write is in the table."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from lorry.adapters.config.read import ConfigRefused, parse_config, read_config
from lorry.layers.sites import SITE_SLICES, module_name

from . import craft

# PEFT asks transformers for a property that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

MODULES = [module_name(layer, name) for layer in range(12) for names in SITE_SLICES.values() for name in names]


@pytest.fixture(scope="module")
def base() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=12,
            hidden_size=16,
            intermediate_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=32,
        )
    )


def config(**fields: Any) -> dict[str, Any]:
    return {**craft.CONFIG, **fields}


def problems(**fields: Any) -> dict[str, str]:
    with pytest.raises(ConfigRefused) as caught:
        parse_config(config(**fields))
    return {problem.field: problem.message for problem in caught.value.problems}


def test_a_config_with_all_of_pefts_defaults_is_taken(tmp_path: Path) -> None:
    LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    read = read_config(tmp_path / "adapter_config.json", 1 << 16)
    assert (read.rank(MODULES[0]), read.scale(MODULES[0])) == (8, 1.0)


MATCHES: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "mlp.up_proj"]},
    {"target_modules": ["proj", "_proj", "v_proj", ""]},  # a part of a name is not a name
    {"target_modules": ["model.layers.1.self_attn.q_proj", "layers.11.mlp.down_proj"]},
    {"target_modules": r".*\.(1|1[01])\..*(q|v)_proj"},
    {"target_modules": r".*layers\.1.*_proj"},
    {"target_modules": "all-linear", "exclude_modules": ["o_proj", "model.layers.3.mlp.up_proj"]},
    {"target_modules": ["q_proj", "k_proj"], "exclude_modules": r".*\.[0-5]\..*"},
    {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["mlp", "layers.1.self_attn.q_proj"]},
    {"target_modules": "all-linear", "modules_to_save": ["o.proj"]},  # a dot is any character, as PEFT reads it
    {"target_modules": "all-linear", "modules_to_save": ["ml", "self_att", "layers.1"]},  # parts of names are none
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 11]},
    {"target_modules": ["q_proj"], "layers_to_transform": 3},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "model.layers"]},
    {"target_modules": ["q_proj", "model.layers.7.self_attn.v_proj"], "layers_to_transform": [1]},
]


@pytest.mark.parametrize("fields", MATCHES, ids=[json.dumps(fields)[:70] for fields in MATCHES])
def test_targets_are_pefts(base: LlamaForCausalLM, fields: dict[str, Any]) -> None:
    model = copy.deepcopy(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT remarks on odd lists
        peft_model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields))
    adapted = {
        name.removeprefix("base_model.model.")
        for name, module in peft_model.named_modules()
        if hasattr(module, "lora_A")
    }
    read = parse_config(config(**fields))
    assert {module for module in MODULES if read.targets(module)} == adapted


PATTERNS: list[dict[str, Any]] = [
    {"rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 16}, "alpha_pattern": {"v_proj": 3}},
    {"rank_pattern": {"proj": 2, "_proj": 3}},
    {"rank_pattern": {"layers.1.self_attn": 2, "layers.11.self_attn.q_proj": 5}},
    {"rank_pattern": {r"layers\.1\..*": 2, r".*\.(10|11)\..*": 5, "q_proj": 6}},
    {"rank_pattern": {"q_proj": 6, r"^model\.layers\.1\.self_attn\.q_proj": 2}, "use_rslora": True},
    {"rank_pattern": {r"^model\.layers\.1\.self_attn\.q_proj": 2, "q_proj": 6}, "use_rslora": True},
    {"rank_pattern": {"layers.1.self_attn.q.proj": 2}},  # a dot is any character, as PEFT reads it
    {"alpha_pattern": {"q_proj": 0.5, "v_proj": -1}, "use_rslora": True},
    {"rank_pattern": {}, "alpha_pattern": None},
]


@pytest.mark.parametrize("fields", PATTERNS, ids=[json.dumps(fields)[:70] for fields in PATTERNS])
def test_ranks_and_scales_are_pefts(base: LlamaForCausalLM, tmp_path: Path, fields: dict[str, Any]) -> None:
    kept = {key: value for key, value in fields.items() if value is not None}
    made = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=4, lora_alpha=12, **kept)
    made.save_pretrained(str(tmp_path))
    # PEFT sorts the patterns as it saves, and the first that matches counts: what was saved decides.
    loaded = LoraConfig.from_pretrained(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT remarks on patterns that match nothing
        model = get_peft_model(copy.deepcopy(base), loaded)
    read = read_config(tmp_path / "adapter_config.json", 1 << 16)
    seen = 0
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            base_name = name.removeprefix("base_model.model.")
            assert read.rank(base_name) == module.r["default"]
            assert read.scale(base_name) == module.scaling["default"]
            seen += 1
    assert seen == 24


def test_all_problems_are_told_at_once() -> None:
    assert set(problems(r=0, use_dora=1, bias="some")) == {"r", "use_dora", "bias"}


def test_target_string_with_layers_is_refused_as_peft_does() -> None:
    assert "layers_to_transform" in problems(target_modules=".*q_proj", layers_to_transform=[1])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b'{"r": 8, "r": 4}', "'r' is there twice"),
        (b'{"r": NaN}', "NaN"),
        (b'{"lora_alpha": Infinity}', "Infinity"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not UTF-8"),
        (b"", "not readable"),
        (b'{"a":' + b"[" * 9999, "nested deeper"),
        (b"{}" + b" " * (1 << 16), "over 65536 bytes"),
        (b"{}", "peft_type: absent"),
    ],
)
def test_a_config_file_that_is_not_one(tmp_path: Path, data: bytes, match: str) -> None:
    (tmp_path / "adapter_config.json").write_bytes(data)
    with pytest.raises(ConfigRefused, match=match):
        read_config(tmp_path / "adapter_config.json", 1 << 16)


def test_patterns_of_one_config_share_one_budget() -> None:
    read = parse_config(config(rank_pattern={f"(((.*)*)*)*[{n}]" + ".*" * 300: 2 for n in range(9)}))

    def match_often() -> None:
        for module in MODULES * 40:
            read.rank(module)

    with pytest.raises(ValueError, match="costs too much"):
        match_often()
