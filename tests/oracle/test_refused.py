"""What PEFT can make and is not served: refused from PEFT's own files, by name and with the reason, never the base."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import peft
import pytest

from tests.oracle.changes import reasons
from tests.oracle.worlds import World
from tests.support.zoo import Kind, make, quiet, randomise

FIND = Callable[[str], World]
TARGETS = ["q_proj", "v_proj"]

OTHER_TUNERS: Mapping[str, Callable[[], Any]] = {
    "ADALORA": lambda: peft.AdaLoraConfig(target_modules=TARGETS, total_step=10),
    "BOFT": lambda: peft.BOFTConfig(target_modules=TARGETS, boft_block_size=4),
    "FOURIERFT": lambda: peft.FourierFTConfig(target_modules=TARGETS, n_frequency=10),
    "HRA": lambda: peft.HRAConfig(target_modules=TARGETS),
    "LN_TUNING": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "LOHA": lambda: peft.LoHaConfig(target_modules=TARGETS),
    "LOKR": lambda: peft.LoKrConfig(target_modules=TARGETS),
    "OFT": lambda: peft.OFTConfig(target_modules=TARGETS, r=0, oft_block_size=4),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "P_TUNING": lambda: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "TRAINABLE_TOKENS": lambda: peft.TrainableTokensConfig(token_indices=[1, 2]),
    "VBLORA": lambda: peft.VBLoRAConfig(target_modules=TARGETS, vector_length=8, num_vectors=16, topk=2),
    "VERA": lambda: peft.VeraConfig(target_modules=TARGETS),
}

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "modules_to_save": {"modules_to_save": ["o_proj"]},
    "alora_invocation_tokens": {"alora_invocation_tokens": [5, 9]},
    "target_parameters": {"target_parameters": ["self_attn.o_proj.weight"]},
    "layer_replication": {"layer_replication": [[0, 2], [1, 2]]},
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "task_type": {"task_type": "SEQ_CLS"},
}


@pytest.mark.parametrize("tuner", OTHER_TUNERS)
def test_other_tuners_refuse_by_name(world_of: FIND, tmp_path: Path, tuner: str) -> None:
    world = world_of("mistral")
    with quiet():
        tuned = peft.get_peft_model(copy.deepcopy(world.base), OTHER_TUNERS[tuner]())
        randomise(tuned)
        tuned.save_pretrained(str(tmp_path / "adapter"))
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["peft_type"] == tuner
    assert any("peft_type" in reason and tuner in reason for reason in reasons(world, tmp_path / "adapter"))


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_are_not_served_refuse_by_name(world_of: FIND, tmp_path: Path, field: str) -> None:
    world = world_of("mistral")
    make(world.base, tmp_path / "adapter", Kind({"r": 4, "target_modules": TARGETS, **FIELDS[field]}))
    assert any(field in reason for reason in reasons(world, tmp_path / "adapter"))
