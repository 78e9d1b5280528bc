"""Numbers of an adapter: finite, in range, and the largest change by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorry.adapters.report import Check
from lorry.adapters.validate import validate_directory

from .craft import CONFIG, SPEC, tensor_name, tensors, write_adapter

HEAD = "base_model.model.lm_head"
EMBED = "base_model.model.model.embed_tokens"


def check(folder: Path, arrays: dict[str, np.ndarray], id: str, **fields: Any) -> Check:
    write_adapter(folder, {**CONFIG, **fields}, arrays)
    found = validate_directory(folder, SPEC, probe=False).check(id)
    assert found is not None
    return found


@pytest.mark.parametrize("stored", ["<f4", "<f2", "bf16"])
def test_the_largest_delta_by_norm(tmp_path: Path, stored: str) -> None:
    arrays = {name: array * np.float32(0.01) for name, array in tensors(rank=4).items()}
    for side in "AB":
        arrays[tensor_name(1, "v_proj", side)] *= 8
    if stored == "bf16":
        arrays = {name: (array.view(np.uint32) >> 16).astype("<u2") for name, array in arrays.items()}
    else:
        arrays = {name: array.astype(stored) for name, array in arrays.items()}
    found = check(tmp_path, arrays, "weights.norms")
    a, b = (arrays[tensor_name(1, "v_proj", side)] for side in "AB")
    if stored == "bf16":
        a, b = ((array.astype(np.uint32) << 16).view(np.float32) for array in (a, b))
    want = 2.0 * np.linalg.norm(b.astype(float) @ a.astype(float))
    assert found.outcome == "pass"
    assert found.value == pytest.approx(want)
    assert "model.layers.1.self_attn.v_proj" in found.message


def test_head_and_embedding_are_looked_at_too(tmp_path: Path) -> None:
    arrays = {name: array * np.float32(0.01) for name, array in tensors(rank=4).items()}
    draw = np.random.default_rng(0)
    for name, shape in (("A.weight", (4, 16)), ("B.weight", (32, 4))):
        arrays[f"{HEAD}.lora_{name}"] = draw.standard_normal(shape).astype("<f4")
    targets = {"target_modules": ["q_proj", "v_proj", "lm_head", "embed_tokens"]}
    found = check(tmp_path / "head", arrays, "weights.norms", **targets)
    assert "at lm_head" in found.message
    assert found.outcome == "warn", "elements of about 4 are no trained weights"
    for name, shape in (("A", (4, 32)), ("B", (16, 4))):
        arrays[f"{EMBED}.lora_embedding_{name}"] = 9 * draw.standard_normal(shape).astype("<f4")
    found = check(tmp_path / "embedding", arrays, "weights.norms", **targets)
    a, b = arrays[f"{EMBED}.lora_embedding_A"], arrays[f"{EMBED}.lora_embedding_B"]
    assert "at model.embed_tokens" in found.message
    assert found.value == pytest.approx(2.0 * np.linalg.norm(b.astype(float) @ a.astype(float)))


@pytest.mark.parametrize("name", [f"{EMBED}.lora_embedding_A", "base_model.model.model.norm.weight"])
def test_every_applied_tensor_must_be_finite(tmp_path: Path, name: str) -> None:
    arrays = tensors()
    arrays[f"{EMBED}.lora_embedding_A"] = np.ones((4, 32), "<f4")
    arrays[f"{EMBED}.lora_embedding_B"] = np.ones((16, 4), "<f4")
    arrays["base_model.model.model.norm.weight"] = np.ones(16, "<f4")
    arrays[name].reshape(-1)[3] = np.nan
    targets = ["q_proj", "v_proj", "embed_tokens"]
    found = check(tmp_path, arrays, "weights.values", target_modules=targets, modules_to_save=["model.norm"])
    assert found.outcome == "fail"
    assert name in found.message


def test_a_delta_of_nothing_beside_something_is_no_warning(tmp_path: Path) -> None:
    zeros = {name: np.zeros_like(array) for name, array in tensors().items()}
    assert check(tmp_path / "nothing", zeros, "weights.values").outcome == "warn"
    zeros["base_model.model.model.norm.weight"] = np.ones(16, "<f4")
    assert check(tmp_path / "norm", zeros, "weights.values", modules_to_save=["model.norm"]).outcome == "pass"
