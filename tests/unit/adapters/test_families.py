"""Adapters that PEFT trained on a Mistral, Qwen2 or Qwen3 base validate there, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict

from lorry.adapters.image.build import build_image
from lorry.adapters.validate import validate_directory
from lorry.ids import AdapterDigest
from lorry.layers.sites import SITE_SLICES, module_name
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from tests.support.adapters import save_adapter
from tests.support.tiny_base import write_tiny_model

BASES: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 1},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
}


def base_and_adapter(tmp_path: Path, family: str, **lora: Any) -> tuple[DecoderSpec, Path]:
    model = write_tiny_model(tmp_path / "base", family, **BASES[family])
    save_adapter(model, tmp_path / "adapter", **lora)
    return read_spec(tmp_path / "base"), tmp_path / "adapter"


@pytest.mark.parametrize("family", BASES)
@pytest.mark.parametrize("targets", ["all-linear", ["k_proj", "down_proj"], r".*\.(q_proj|o_proj|up_proj)"], ids=str)
def test_the_image_is_peft_s_delta_at_every_site(tmp_path: Path, family: str, targets: Any) -> None:
    spec, folder = base_and_adapter(tmp_path, family, r=5, lora_alpha=15, target_modules=targets)
    report = validate_directory(folder, spec, base_dir=tmp_path / "base")
    assert report.plan is not None, report.error()
    image = build_image(folder, report.plan, spec, torch.float32, AdapterDigest("a" * 64))
    model = write_tiny_model(tmp_path / "again", family, **BASES[family])
    tuned = save_adapter(model, tmp_path / "twin", r=5, lora_alpha=15, target_modules=targets)
    factors = get_peft_model_state_dict(tuned)
    seen = 0
    for site in spec.lora_sites():
        for index, name in enumerate(SITE_SLICES[site.site]):
            prefix = f"base_model.model.{module_name(site.layer, name)}.lora"
            loaded = image.site(site.layer, site.site)
            b = loaded.b[index] if loaded is not None else None
            assert (b is not None) == (f"{prefix}_A.weight" in factors)
            if loaded is not None and b is not None:
                want = 3.0 * factors[f"{prefix}_B.weight"] @ factors[f"{prefix}_A.weight"]
                torch.testing.assert_close((loaded.a[:, index].T @ b).T, want, atol=1e-5, rtol=1e-5)
                assert want.shape == spec.slice_shape(name)
                seen += 1
    assert seen == len(factors) // 2 > 0


@pytest.mark.parametrize("family", BASES)
def test_an_adapter_that_names_its_base_s_class_is_bound_to_it(tmp_path: Path, family: str) -> None:
    """PEFT writes auto_mapping where task_type is absent."""
    spec, folder = base_and_adapter(tmp_path, family, task_type=None)
    mapping = json.loads((folder / "adapter_config.json").read_text())["auto_mapping"]
    assert mapping["base_model_class"] == spec.causal_lm
    assert validate_directory(folder, spec, base_dir=tmp_path / "base").ok
    other = next(name for name in BASES if name != family)
    write_tiny_model(tmp_path / "other", other, **BASES[family])
    report = validate_directory(folder, read_spec(tmp_path / "other"))
    assert not report.ok
    assert "auto_mapping" in str(report.error())
    assert spec.causal_lm in str(report.error())


@pytest.mark.parametrize("module", ["q_norm", "k_norm"])
def test_a_trained_norm_of_heads_is_served_where_the_base_has_it(tmp_path: Path, module: str) -> None:
    spec, folder = base_and_adapter(tmp_path, "qwen3", modules_to_save=[module])
    plan = validate_directory(folder, spec, base_dir=tmp_path / "base").plan
    assert plan is not None
    assert set(plan.norms) == {f"model.layers.{layer}.self_attn.{module}.weight" for layer in range(spec.layers)}
    write_tiny_model(tmp_path / "other", "mistral", head_dim=24)
    report = validate_directory(folder, read_spec(tmp_path / "other"))
    names = [check.message for check in report.failed if check.id == "tensors.names"]
    assert len(names) == 1
    assert module in names[0]


def test_an_adapter_for_other_head_sizes_is_refused(tmp_path: Path) -> None:
    _, folder = base_and_adapter(tmp_path, "qwen3")
    write_tiny_model(tmp_path / "other", "qwen3", head_dim=16)
    report = validate_directory(folder, read_spec(tmp_path / "other"))
    assert not report.ok
    assert "tensors.shapes" in [check.id for check in report.checks if check.outcome == "fail"]
