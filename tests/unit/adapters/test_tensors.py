"""Every tensor has its part in the plan by its exact name, or refuses the adapter with what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorry.layers.sites import module_name

from .craft import tensors
from .judging import (
    A0,
    B0,
    BASE,
    BIASED,
    BOTH,
    DELTA,
    EMBED,
    EMBED_PAIR,
    HEAD,
    IA3,
    LARGER,
    PAIR,
    Q0,
    QWEN3,
    ROWS,
    Arrays,
    judge,
    plan_of,
    some,
)

BAD: dict[str, tuple[dict[str, Any], Arrays, str, str]] = {
    # kind: (the config's changes, tensors beside the good ones, id of the check that fails, what its message says)
    "without PEFT's prefix": ({}, {f"x{A0}": some(4, 16)}, "tensors.names", "no module"),
    "a name that only begins like a module's": (
        {},
        {A0.replace("q_proj", "q_proj_2"): some(4, 16)},
        "tensors.names",
        "no module",
    ),
    "a name with a module's inside": (
        {},
        {f"{BASE}.extra.layers.0.self_attn.q_proj.lora_A.weight": some(4, 16)},
        "tensors.names",
        "no module",
    ),
    "extra tensor": ({}, {f"{BASE}.something": some(4)}, "tensors.names", "matches no module"),
    "both spellings": ({}, {A0.replace(".weight", ".default.weight"): some(4, 16)}, "tensors.names", "is there twice"),
    "another adapter's name": (
        {},
        {A0.replace(".weight", ".other.weight"): some(4, 16)},
        "tensors.names",
        "matches no module",
    ),
    "KaSA's diagonal": ({}, {f"{Q0}.lora_diag": some(4)}, "tensors.names", "kasa_config"),
    "a whole linear": ({}, {f"{Q0}.weight": some(16, 16)}, "tensors.names", "replaces a whole linear"),
    "a norm of heads that the base has not": (
        {"modules_to_save": ["q_norm"]},
        {f"{BASE}.layers.0.self_attn.q_norm.weight": some(4)},
        "tensors.names",
        "matches no module",
    ),
    "the old infix alone": (
        {"modules_to_save": ["lm_head"]},
        {f"{HEAD}.modules_to_save.default.weight": some(ROWS, 16)},
        "tensors.names",
        "that PEFT does not read",
    ),
    "magnitude without the field": (
        {},
        {f"{Q0}.lora_magnitude_vector": some(16)},
        "config.use_dora",
        "the config says false",
    ),
    "the field without magnitudes": ({"use_dora": True}, {}, "config.use_dora", "not the tensor of this field"),
    "magnitude without factors": (
        {"use_dora": True},
        {f"{BASE}.layers.0.mlp.up_proj.lora_magnitude_vector": some(24)},
        "tensors.pairs",
        "has no lora_A",
    ),
    "bias of B without the field": (
        {},
        {B0.replace("weight", "bias"): some(16)},
        "config.lora_bias",
        "the config says false",
    ),
    "the field without biases of B": ({"lora_bias": True}, {}, "config.lora_bias", "not the tensor"),
    "bias where the base has none": (
        {"bias": "all"},
        {f"{Q0}.base_layer.bias": some(16)},
        "tensors.shapes",
        "the base has none there",
    ),
    "gain in a LoRA": ({}, {f"{Q0}.ia3_l": some(16, 1)}, "config.peft_type", "IA3's"),
    "LoRA in an IA3": (IA3, {}, "config.peft_type", "LoRA's"),
    "copy of a linear": ({}, {f"{Q0}.base_layer.weight": some(16, 16)}, "tensors.copies", "not on this machine"),
    "copy of the head": ({}, {f"{HEAD}.weight": some(ROWS, 16)}, "tensors.copies", "not on this machine"),
    "lora on a head that is not targeted": ({}, PAIR, "config.target_modules", "lm_head has tensors"),
    "lora on a head that is saved": (
        {"target_modules": BOTH, "modules_to_save": ["lm_head"]},
        {**PAIR, **EMBED_PAIR, f"{HEAD}.weight": some(ROWS, 16)},
        "config.target_modules",
        "lm_head has tensors",
    ),
    "lora on an embedding that is not targeted": ({}, EMBED_PAIR, "config.target_modules", "model.embed_tokens"),
    "all-linear leaves the head out": ({"target_modules": "all-linear"}, PAIR, "config.target_modules", "lm_head"),
    "half of an embedding's pair": (
        {"target_modules": BOTH},
        {f"{EMBED}.lora_embedding_B": some(16, 4)},
        "tensors.pairs",
        "has no lora_embedding_A",
    ),
    "bias of B on an embedding": (
        {"target_modules": BOTH, "lora_bias": True},
        EMBED_PAIR,
        "config.lora_bias",
        "PEFT has none",
    ),
    "a head of other rows": (
        {"target_modules": BOTH},
        {**PAIR, f"{HEAD}.lora_B.weight": some(ROWS + 1, 4)},
        "tensors.shapes",
        f"want [{ROWS}, r]",
    ),
    "a saved module that is not there": (
        {"modules_to_save": ["lm_head"]},
        {},
        "config.modules_to_save",
        "lm_head is named",
    ),
    "a saved norm that is not there in one layer": (
        {"modules_to_save": ["input_layernorm"]},
        {f"{BASE}.layers.0.input_layernorm.weight": some(16)},
        "config.modules_to_save",
        "model.layers.1.input_layernorm is named",
    ),
    "a norm that is not named": (
        {},
        {f"{BASE}.norm.weight": some(16)},
        "config.modules_to_save",
        "is not named",
    ),
    "a norm of another size": (
        {"modules_to_save": ["model.norm"]},
        {f"{BASE}.norm.weight": some(17)},
        "tensors.shapes",
        "want [16]",
    ),
    "a saved linear": ({"modules_to_save": ["o_proj"]}, {}, "config.modules_to_save", "would be replaced whole"),
    "a saved layer": ({"modules_to_save": ["layers.0"]}, {}, "config.modules_to_save", "model.layers.0 would be"),
    "saved again under the wrapper's name": (
        {},
        {f"{HEAD}.modules_to_save.weight": some(ROWS, 16)},
        "config.modules_to_save",
        "does not name it",
    ),
    "saved twice, and not the same": (
        {"modules_to_save": ["lm_head"]},
        {f"{HEAD}.weight": some(ROWS, 16), f"{HEAD}.modules_to_save.weight": some(ROWS, 16) * 2},
        "tensors.twins",
        "is not base_model.model.lm_head.weight",
    ),
    "ids without rows": (
        {"trainable_token_indices": [1]},
        {},
        "config.trainable_token_indices",
        "rows are not in the file",
    ),
    "rows without ids": (
        {},
        {f"{EMBED}.{DELTA}": some(2, 16)},
        "config.trainable_token_indices",
        "the config has no ids",
    ),
    "rows of the head without ids": (
        {"trainable_token_indices": [1, 2]},
        {f"{EMBED}.{DELTA}": some(2, 16), f"{HEAD}.{DELTA}": some(2, 16)},
        "config.trainable_token_indices",
        "no ids for it",
    ),
    "more ids than rows": (
        {"trainable_token_indices": [1, 2, 3]},
        {f"{EMBED}.{DELTA}": some(2, 16)},
        "tensors.shapes",
        "want [3, 16]",
    ),
    "an id beyond the vocabulary": (
        {"trainable_token_indices": [1, ROWS]},
        {f"{EMBED}.{DELTA}": some(2, 16)},
        "config.trainable_token_indices",
        f"there are {ROWS} rows",
    ),
    "tokens and a whole embedding": (
        {"trainable_token_indices": [1], "modules_to_save": ["embed_tokens"]},
        {f"{EMBED}.{DELTA}": some(1, 16), f"{EMBED}.weight": some(ROWS, 16)},
        "config.trainable_token_indices",
        "modules_to_save",
    ),
    "tokens and LoRA on one embedding": (
        {"trainable_token_indices": [1], "target_modules": BOTH},
        {f"{EMBED}.{DELTA}": some(1, 16), **EMBED_PAIR},
        "config.trainable_token_indices",
        "target_modules",
    ),
    "a larger vocabulary of one matrix": (
        {},
        {f"{EMBED}.weight": some(LARGER, 16)},
        "vocabulary",
        f"lm_head's matrix of the {LARGER} rows",
    ),
    "matrices of two vocabularies": (
        {},
        {f"{EMBED}.weight": some(LARGER, 16), f"{HEAD}.weight": some(LARGER + 1, 16)},
        "vocabulary",
        f"has {LARGER + 1} rows",
    ),
    "a smaller vocabulary": (
        {},
        {f"{EMBED}.weight": some(ROWS - 1, 16), f"{HEAD}.weight": some(ROWS - 1, 16)},
        "vocabulary",
        "fewer than the base's",
    ),
    "LoRA of a larger vocabulary without its matrices": (
        {"target_modules": BOTH},
        {**EMBED_PAIR, f"{EMBED}.lora_embedding_A": some(4, LARGER)},
        "tensors.shapes",
        f"want [r, {ROWS}]",
    ),
    "a matrix of another width": ({}, {f"{EMBED}.weight": some(ROWS, 17)}, "tensors.shapes", "has shape [32, 17]"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_tensor_is_refused(tmp_path: Path, kind: str) -> None:
    fields, arrays, id, message = BAD[kind]
    report = judge(tmp_path, fields, arrays)
    assert report.plan is None
    failed = [check.message for check in report.failed if check.id == id]
    assert any(message in one for one in failed), report.to_dict()["checks"]
    assert all("; " in one for one in failed), "no remedy"


@pytest.mark.parametrize(
    ("targeted", "name", "bias", "taken"),
    [
        (True, "base_layer.bias", "all", True),
        (True, "base_layer.bias", "lora_only", True),
        (True, "base_layer.bias", "none", False),
        (True, "bias", "all", False),
        (False, "bias", "all", True),
        (False, "bias", "lora_only", False),
        (False, "bias", "none", False),
        (False, "base_layer.bias", "all", False),
    ],
)
def test_a_bias_counts_under_the_name_that_peft_reads(
    tmp_path: Path, targeted: bool, name: str, bias: str, taken: bool
) -> None:
    module = "q_proj" if targeted else "k_proj"
    arrays = {f"{Q0.replace('q_proj', module)}.{name}": some(BIASED.slice_shape(module)[0])}
    report = judge(tmp_path, {"bias": bias}, arrays, BIASED)
    assert report.ok == taken
    wrong_name = name != ("base_layer.bias" if targeted else "bias")
    assert any("PEFT reads no bias" in check.message for check in report.failed) == wrong_name
    if taken:
        assert plan_of(report).modules[0, module].bias_tensor == next(iter(arrays))
        assert (1, "k_proj") not in plan_of(report).modules


@pytest.mark.parametrize(
    ("bias", "targets", "ok"),
    [("all", ["up_proj"], False), ("lora_only", ["up_proj"], True), ("lora_only", ["q_proj"], False)],
)
def test_a_file_without_any_of_the_biases_that_it_should_have(
    tmp_path: Path, bias: str, targets: list[str], ok: bool
) -> None:
    """The linears of the attention have biases in this base, those of the MLP none."""
    fields = {"bias": bias, "target_modules": targets}
    report = judge(tmp_path, fields, {}, BIASED, tensors(slices=tuple(targets)))
    assert report.ok == ok
    assert ok or "no bias is in the file" in report.failed[0].message


def test_ia3_by_feedforward_modules(tmp_path: Path) -> None:
    down, head = f"{BASE}.layers.1.mlp.down_proj", f"{HEAD}.ia3_l"
    arrays = {f"{Q0}.ia3_l": some(16, 1), f"{down}.ia3_l.default": some(1, 24), head: some(ROWS, 1)}
    plan = plan_of(judge(tmp_path, IA3, arrays, base={}))
    assert plan.rank == 0
    assert plan.modules[0, "q_proj"].output_gain_tensor == f"{Q0}.ia3_l"
    assert plan.modules[1, "down_proj"].input_gain_tensor == f"{down}.ia3_l.default"
    assert set(plan.modules) == {(0, "q_proj"), (1, "down_proj")}
    assert plan.head is not None
    assert plan.head.module is not None
    assert plan.head.module.output_gain_tensor == head
    turned = {**arrays, f"{Q0}.ia3_l": some(1, 16)}
    report = judge(tmp_path / "turned", IA3, turned, base={})
    row = report.check("tensors.shapes")
    assert row is not None
    assert "want [16, 1]: it is not in feedforward_modules" in row.message


@pytest.mark.parametrize("spelling", ["", ".weight", ".default.weight"])
def test_every_spelling_of_a_magnitude_that_peft_reads(tmp_path: Path, spelling: str) -> None:
    sizes = {"q_proj": 16, "v_proj": 8}
    arrays = {
        f"base_model.model.{module_name(layer, name)}.lora_magnitude_vector{spelling}": some(size)
        for layer in (0, 1)
        for name, size in sizes.items()
    }
    plan = plan_of(judge(tmp_path, {"use_dora": True}, arrays))
    assert plan.modules[1, "v_proj"].magnitude_tensor in arrays
    assert plan.tensors == 12


def test_norms_by_the_ends_of_their_names(tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.self_attn.{norm}" for layer in (0, 1) for norm in ("q_norm", "k_norm")]
    arrays = {f"base_model.model.{name}.weight": some(4) for name in names}
    slices = {"q_proj": 16, "v_proj": 8}
    pairs = {
        f"base_model.model.{module_name(0, name)}.lora_{side}.weight": some(*shape)
        for name, size in slices.items()
        for side, shape in (("A", (4, 16)), ("B", (size, 4)))
    }
    plan = plan_of(judge(tmp_path, {"modules_to_save": ["_norm"]}, arrays, QWEN3, pairs))
    assert plan.norms == {f"{name}.weight": f"base_model.model.{name}.weight" for name in names}


def test_a_saved_name_that_the_base_has_not_is_passed_over_as_peft_does(tmp_path: Path) -> None:
    report = judge(tmp_path, {"modules_to_save": ["classifier"]}, {})
    row = report.check("config.modules_to_save")
    assert report.ok
    assert row is not None
    assert row.outcome == "warn"


def test_one_scale_and_rank_for_each_module_whatever_the_others_are(tmp_path: Path) -> None:
    """Field fault 7: a largest rank that pads the rest must not reach their scales."""
    arrays = tensors(rank=4)
    arrays[A0], arrays[B0] = some(6, 16), some(16, 6)
    fields = {"rank_pattern": {"layers.0.self_attn.q_proj": 6}, "lora_alpha": 12, "use_rslora": True}
    plan = plan_of(judge(tmp_path, fields, {}, base=arrays))
    assert {key: (module.rank, module.scale) for key, module in plan.modules.items()} == {
        (0, "q_proj"): (6, 12 / 6**0.5),
        (0, "v_proj"): (4, 6.0),
        (1, "q_proj"): (4, 6.0),
        (1, "v_proj"): (4, 6.0),
    }


def test_an_adapter_of_copies_alone_is_refused(tmp_path: Path) -> None:
    """Field fault 6: it would answer as the base."""
    report = judge(tmp_path, {}, {f"{HEAD}.weight": some(ROWS, 16)}, base={})
    assert {"tensors.modules", "coverage"} <= {check.id for check in report.failed}
