"""Random adapters for benchmarks, in PEFT's format: rank 16 on all seven projections unless asked otherwise.

Speed does not depend on the values; they are small enough that the text stays text and differ by seed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from lorry.layers.sites import SLICE_SITE, module_name
from lorry.layers.spec import DecoderSpec

B_SCALE = 0.01


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


def write_random_adapters(root: Path, base_dir: Path, count: int, *, rank: int = 16) -> list[Path]:
    """``root/bench-0`` .. ``root/bench-{count - 1}``, 9.8 MB each at rank 16 on SmolLM2-135M."""
    spec = load_spec(base_dir)
    return [write_random_adapter(root / f"bench-{seed}", spec, seed, rank=rank) for seed in range(count)]
