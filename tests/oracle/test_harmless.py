"""What the table passes over changes nothing: PEFT answers the same bits with such a field and without it, and so does
the platform take it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.adapters.config.fields import FIELDS, FORMER, PeftType
from tests.oracle.changes import reasons
from tests.oracle.worlds import IDS, World
from tests.support.kinds import LAYER_KINDS
from tests.support.zoo import Kind

FIND = Callable[[str], World]
ODD: Mapping[str, Any] = {
    "peft_version": "0.13.2",
    "revision": "another",
    "inference_mode": False,
    "lora_dropout": 0.9,
    "runtime_config": {"ephemeral_gpu_offload": True},
    "megatron_core": "no.such.module",
    "loftq_config": {"loftq_bits": 2, "loftq_iter": 5},
    "eva_config": {"rho": 3.0, "tau": 0.5},
    "corda_config": {"corda_method": "kpm"},
    "lora_ga_config": {"direction": "ArBr", "scale": "gd"},
    "qalora_group_size": 3,
    "init_ia3_weights": False,
    "merge_weights": True,
}
"""A value that is not PEFT's default, for each field that is passed over."""
KINDS: Mapping[PeftType, Kind] = {"LORA": LAYER_KINDS["dora, rslora, patterns"], "IA3": LAYER_KINDS["ia3 everywhere"]}


def passed_over(peft_type: PeftType) -> list[str]:
    table = {**FIELDS[peft_type], **FORMER}
    return [field for field, rule in table.items() if rule.treatment == "harmless"]


CASES = [(peft_type, field) for peft_type in FIELDS for field in passed_over(peft_type)]


def test_every_field_that_is_passed_over_is_tried() -> None:
    assert {field for _, field in CASES} == set(ODD)


@pytest.mark.parametrize(("peft_type", "field"), CASES)
def test_peft_answers_the_same_with_it(world_of: FIND, tmp_path: Path, peft_type: PeftType, field: str) -> None:
    world = world_of("llama")
    made = world.made(f"plain of {peft_type}", KINDS[peft_type])
    shutil.copytree(made.folder, tmp_path / "edited")
    path = tmp_path / "edited" / "adapter_config.json"
    config = json.loads(path.read_text())
    assert field not in config or config[field] != ODD[field]
    path.write_text(json.dumps({**config, field: ODD[field]}))
    assert torch.equal(world.truth.logits(tmp_path / "edited", IDS), made.logits)
    assert reasons(world, tmp_path / "edited") == []
