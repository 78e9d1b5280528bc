"""The committed adapters are what the demo promises: small, different, applicable, with a card and no local path."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from lorry.adapters.validate import validate_directory
from lorry.layers.spec import DecoderSpec
from tests.unit.examples.smollm2 import SMOLLM2

ADAPTERS = Path(__file__).resolve().parents[3] / "examples" / "adapters"
NAMES = sorted(path.name for path in ADAPTERS.iterdir() if path.is_dir())
MAX_BYTES = 600_000


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((ADAPTERS / name / "adapter_config.json").read_text(encoding="utf-8"))
    return config


def test_there_are_at_least_four_of_different_ranks_and_targets() -> None:
    configs = [config_of(name) for name in NAMES]
    shapes = {(c["r"], tuple(c["target_modules"]), tuple(c["layers_to_transform"] or ())) for c in configs}
    assert len(shapes) == len(NAMES) >= 4
    assert len({c["r"] for c in configs}) >= 3


def test_rslora_and_patterns_are_among_them() -> None:
    configs = [config_of(name) for name in NAMES]
    assert any(c["use_rslora"] for c in configs)
    assert any(c["rank_pattern"] and c["alpha_pattern"] for c in configs)


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_the_platform_can_apply_all_of_them(name: str) -> None:
    folder = ADAPTERS / name
    assert {path.name for path in folder.iterdir()} == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < MAX_BYTES
    report = validate_directory(folder, SMOLLM2)
    assert report.ok, report.error()


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_bfloat16(name: str) -> None:
    with safe_open(ADAPTERS / name / "adapter_model.safetensors", "pt") as weights:
        kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118  not a mapping
    assert kinds == {"BF16"}


@pytest.mark.parametrize("name", NAMES)
def test_base_is_a_hint_and_not_a_path(name: str) -> None:
    config = config_of(name)
    assert config["base_model_name_or_path"] == "SmolLM2-135M-Instruct"
    assert not [value for value in config.values() if isinstance(value, str) and "/" in value]


@pytest.mark.parametrize("name", NAMES)
def test_card_says_what_it_is(name: str) -> None:
    config, card = config_of(name), (ADAPTERS / name / "README.md").read_text(encoding="utf-8")
    for fact in (
        "license: apache-2.0",
        f"| rank | {config['r']} |",
        ", ".join(_in_site_order(config)),
        "answers.jsonl",
    ):
        assert fact in card


def _in_site_order(config: dict[str, Any]) -> list[str]:
    order = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return sorted(config["target_modules"], key=order.index)


@pytest.mark.model
def test_shape_used_here_is_the_prepared_base_s_own(base_dir: Path) -> None:
    config = json.loads((base_dir / "config.json").read_text(encoding="utf-8"))
    assert DecoderSpec.from_config(config) == SMOLLM2
