"""Random adapters for benchmarks, in PEFT's format: rank 16 on all seven projections unless asked otherwise.

Speed does not depend on the values; they are small enough that the text stays text and differ by seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lorry.layers.base_tensors import BaseTensors
from lorry.layers.sites import SLICE_SITE, module_name
from lorry.layers.spec import HEAD, DecoderSpec

B_SCALE = 0.01
KINDS = ("lora", "dora", "lora_bias", "ia3", "lm_head")
"""What ``write_kind`` can make."""


def load_spec(base_dir: Path) -> DecoderSpec:
    return DecoderSpec.from_config(json.loads((base_dir / "config.json").read_text(encoding="utf-8")))


def write_random_adapter(
    folder: Path,
    spec: DecoderSpec,
    seed: int,
    *,
    rank: int = 16,
    targets: Sequence[str] = tuple(SLICE_SITE),
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """adapter_config.json and adapter_model.safetensors under ``folder`` (made). A ``[rank, K]``, B ``[N, rank]``."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(spec.layers):
        for name in targets:
            out_features, in_features = spec.slice_shape(name)
            prefix = f"base_model.model.{module_name(layer, name)}"
            a = torch.randn(rank, in_features, generator=generator) / in_features**0.5
            b = torch.randn(out_features, rank, generator=generator) * B_SCALE
            tensors[f"{prefix}.lora_A.weight"] = a.to(dtype)
            tensors[f"{prefix}.lora_B.weight"] = b.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "SmolLM2-135M-Instruct",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def write_kind(
    folder: Path, base_dir: Path, kind: str, seed: int, *, rank: int = 16, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """As ``write_random_adapter``, as one of KINDS. ``lm_head`` is a whole head beside the LoRA."""
    spec = load_spec(base_dir)
    base = BaseTensors(base_dir, spec, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    if kind == "ia3":
        return _write_ia3(folder, spec, generator)
    write_random_adapter(folder, spec, seed, rank=rank, dtype=dtype)
    weights, path = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    tensors, config = load_file(weights), json.loads(path.read_text(encoding="utf-8"))
    for layer in range(spec.layers):
        for name in SLICE_SITE:
            module = module_name(layer, name)
            if kind == "dora":
                norms = base(f"{module}.weight").norm(dim=1)
                tensors[f"base_model.model.{module}.lora_magnitude_vector"] = norms * 1.02
            elif kind == "lora_bias":
                bias = torch.randn(spec.slice_shape(name)[0], generator=generator) * B_SCALE
                tensors[f"base_model.model.{module}.lora_B.bias"] = bias
    if kind == "lm_head":
        tensors["base_model.model.lm_head.weight"] = base(HEAD) * 1.01
    config |= {
        "use_dora": kind == "dora",
        "lora_bias": kind == "lora_bias",
        "modules_to_save": ["lm_head"] if kind == "lm_head" else None,
    }
    save_file(tensors, weights, metadata={"format": "pt"})
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _write_ia3(folder: Path, spec: DecoderSpec, generator: torch.Generator) -> Path:
    """On PEFT's own choice of modules for these bases: k and v by their outputs, down by its input."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(spec.layers):
        for name in ("k_proj", "v_proj", "down_proj"):
            out_features, in_features = spec.slice_shape(name)
            shape = (1, in_features) if name == "down_proj" else (out_features, 1)
            gain = 1 + 0.05 * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{module_name(layer, name)}.ia3_l"] = gain
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "IA3",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "SmolLM2-135M-Instruct",
        "target_modules": ["k_proj", "v_proj", "down_proj"],
        "feedforward_modules": ["down_proj"],
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def write_random_adapters(root: Path, base_dir: Path, count: int, *, rank: int = 16) -> list[Path]:
    """``root/bench-0`` .. ``root/bench-{count - 1}``, 9.8 MB each at rank 16 on SmolLM2-135M."""
    spec = load_spec(base_dir)
    return [write_random_adapter(root / f"bench-{seed}", spec, seed, rank=rank) for seed in range(count)]
