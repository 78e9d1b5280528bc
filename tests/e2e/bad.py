"""Adapters that must be refused: each is a tracer that would force its token if it were applied all the same."""

from __future__ import annotations

import json
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tracers import HIDDEN, write_tracer

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "make_bad_adapters.py"))
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write_source(folder: Path, number: int) -> int:
    """A good adapter: the tracer, and an attention module without effect for the faults that need one."""
    token = write_tracer(folder, number, rank=2)
    tensors = load_file(folder / WEIGHTS)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors[f"{prefix}.lora_A.weight"] = torch.ones(2, HIDDEN)
    tensors[f"{prefix}.lora_B.weight"] = torch.zeros(32, 2)
    save_file(tensors, folder / WEIGHTS)
    edit_config(folder, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])
    return token


def edit_config(folder: Path, **changes: Any) -> None:
    """``None`` takes the field away."""
    config = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def _pickle_by_another_name(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps({"weights": [1.0]}))


def _infinite(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = min(name for name in tensors if ".lora_B." in name)
    tensors[name][0, 0] = float("inf")
    save_file(tensors, folder / WEIGHTS)


def _other_layer(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name.replace("layers.0", "layers.1"): t for name, t in tensors.items()}, folder / WEIGHTS)


def _no_tensors(folder: Path) -> None:
    save_file({}, folder / WEIGHTS)


def _half_a_pair(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(min(name for name in tensors if ".lora_B." in name))
    save_file(tensors, folder / WEIGHTS)


def _config_no_json(folder: Path) -> None:
    (folder / CONFIG).write_text("{")


def _rank_over_the_limit(folder: Path) -> None:
    write_tracer(folder, 1, rank=17)


OWN: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "pickle-by-another-name": (_pickle_by_another_name, (WEIGHTS, "pickle")),
    "infinite": (_infinite, ("lora_B",)),
    "other-layer": (_other_layer, ("layers.1",)),
    "no-tensors": (_no_tensors, ("0 of 0 tensors",)),
    "half-a-pair": (_half_a_pair, ("lora_B",)),
    "rank-over-the-limit": (_rank_over_the_limit, ("17", "16")),
    "rank-negative": (lambda folder: edit_config(folder, r=-1), ("r", "-1")),
    "rank-is-no-number": (lambda folder: edit_config(folder, r="8"), ("r",)),
    "rank-differs-from-the-file": (lambda folder: edit_config(folder, r=1), ("r",)),
    "alpha-nan": (lambda folder: edit_config(folder, lora_alpha=float("nan")), (CONFIG, "NaN")),
    "type-nonsense": (lambda folder: edit_config(folder, peft_type="LORAX"), ("peft_type", "LORAX")),
    "type-missing": (lambda folder: edit_config(folder, peft_type=None), ("peft_type",)),
    "task-other": (lambda folder: edit_config(folder, task_type="SEQ_CLS"), ("task_type", "SEQ_CLS")),
    "bias": (lambda folder: edit_config(folder, bias="some"), ("bias", "some")),
    "modules-to-save": (lambda folder: edit_config(folder, modules_to_save=["lm_head"]), ("modules_to_save",)),
    "dora-without-magnitudes": (lambda folder: edit_config(folder, use_dora=True), ("use_dora",)),
    "tokens": (lambda folder: edit_config(folder, trainable_token_indices=[1]), ("trainable_token_indices",)),
    "replication": (lambda folder: edit_config(folder, layer_replication=[[0, 1], [0, 1]]), ("layer_replication",)),
    "unknown-field": (lambda folder: edit_config(folder, gain_of_the_moon=2.0), ("gain_of_the_moon",)),
    "config-missing": (lambda folder: (folder / CONFIG).unlink(), (CONFIG,)),
    "weights-missing": (lambda folder: (folder / WEIGHTS).unlink(), (WEIGHTS,)),
    "config-no-json": (_config_no_json, (CONFIG,)),
}
"""How a good adapter becomes this kind, and what the refusal must name."""

SHARED: dict[str, tuple[str, ...]] = {
    "half-dora": ("use_dora",),
    "wrong-shape": ("lora_B", "shape"),
    "rank-zero": ("r", "0"),
    "nan": ("lora_A", "NaN"),
    "no-match": ("attention",),
    "half-matches": ("attention",),
    "unknown-type": ("peft_type", "VERA"),
    "changed-base": ("init_lora_weights", "pissa"),
    "truncated": (WEIGHTS,),
    "pickle": ("adapter_model.bin", "pickle"),
}
"""The kinds of examples/make_bad_adapters.py, and what the refusal must name."""

KINDS = {**SHARED, **{kind: words for kind, (_, words) in OWN.items()}}


def write_bad(kind: str, folder: Path, source: Path) -> None:
    """``folder`` must not exist."""
    if kind in SHARED:
        SCRIPT["make_bad_adapter"](kind, folder, source)
        return
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    OWN[kind][0](folder)


__all__ = ["KINDS", "SCRIPT", "SHARED", "write_bad", "write_source"]
