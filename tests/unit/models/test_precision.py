"""bfloat16 and float16 engines against float32, each beside transformers in the same type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorry.models.weights import DTYPES
from tests.support.tiny_base import FAMILIES, cast_parameters, write_tiny_model
from tests.unit.models.driver import Driver

LENGTH, CHUNKS = 61, [40, 1, 1, 19]
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 17},
    "qwen2": {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1},
    "qwen3": {},
}


def tokens() -> list[int]:
    return torch.randint(0, 256, (LENGTH,), generator=torch.Generator().manual_seed(8)).tolist()


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0].float()
    return found


@pytest.mark.parametrize("family", CHANGES)
def test_float16_is_exact_but_for_the_weights_own_rounding(tmp_path: Path, family: str) -> None:
    model = write_tiny_model(tmp_path, family, dtype=torch.float16, **CHANGES[family])
    got = Driver(tmp_path, [LENGTH], dtype=torch.float16).run(tokens(), CHUNKS)
    torch.testing.assert_close(got, logits(model, tokens()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", CHANGES)
def test_bfloat16_is_nearer_to_float32_than_transformers_in_bfloat16(tmp_path: Path, family: str) -> None:
    model = write_tiny_model(tmp_path, family, dtype=torch.bfloat16, **CHANGES[family])
    want = logits(model, tokens())
    got = Driver(tmp_path, [LENGTH], dtype=torch.bfloat16).run(tokens(), CHUNKS)
    theirs = logits(FAMILIES[family][1].from_pretrained(tmp_path, dtype=torch.bfloat16), tokens())
    error = (got - want).pow(2).mean().sqrt() / want.std()
    assert error < 0.02
    assert error < (theirs - want).pow(2).mean().sqrt() / want.std()


@pytest.mark.parametrize("engine", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("file", ["float32", "bfloat16", "float16"])
def test_any_file_in_any_engine(tmp_path: Path, file: str, engine: str) -> None:
    """The files' values rounded to the engine's type are the model; what is left is the products' rounding."""
    model: Any = write_tiny_model(tmp_path, "qwen2", dtype=DTYPES[file], num_hidden_layers=1)
    cast_parameters(model, DTYPES[engine])
    cast_parameters(model, torch.float32)
    want = logits(model, tokens())
    got = Driver(tmp_path, [LENGTH], dtype=DTYPES[engine]).run(tokens(), CHUNKS)
    atol = 0.05 * float(want.std()) if engine == "bfloat16" else 1e-4
    torch.testing.assert_close(got, want, atol=atol, rtol=0)


@pytest.mark.parametrize("engine", ["bfloat16", "float16"])
def test_large_biases_do_not_swallow_the_product(tmp_path: Path, engine: str) -> None:
    """Some of Qwen2's key biases are in the hundreds, where bfloat16 counts in ones and twos."""
    write_tiny_model(tmp_path, "qwen2", dtype=DTYPES[engine])
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name.endswith("k_proj.bias"):
            tensors[name][:] = torch.where(torch.arange(32) % 16 == 7, 300.0, tensors[name].float())
    save_file(tensors, path, metadata={"format": "pt"})
    model = FAMILIES["qwen2"][1].from_pretrained(tmp_path, dtype=torch.float32)
    want = logits(model, tokens())
    got = Driver(tmp_path, [LENGTH], dtype=DTYPES[engine]).run(tokens(), CHUNKS)
    error = (got - want).pow(2).mean().sqrt() / want.std()
    assert error < (0.02 if engine == "bfloat16" else 1e-4)


def test_activations_beyond_float16_stay_finite_in_a_float16_engine(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "llama", dtype=torch.float16)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if "gate_proj" in name or "up_proj" in name:
            tensors[name] *= 300
        elif "down_proj" in name:
            tensors[name] /= 64
    save_file(tensors, path, metadata={"format": "pt"})
    model = FAMILIES["llama"][1].from_pretrained(tmp_path, dtype=torch.float16)
    assert not torch.isfinite(logits(model, tokens())).all(), "or the case shows nothing"
    got = Driver(tmp_path, [LENGTH], dtype=torch.float16).run(tokens(), CHUNKS)
    torch.testing.assert_close(got, logits(model.float(), tokens()), atol=1e-2, rtol=1e-3)
