"""What a plan says is what PEFT computes: every served field, and all ways in which embedding and head are tied."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from lorry.adapters.validate import validate_directory
from lorry.models.weights import read_spec
from tests.support.tiny_base import write_tiny_model
from tests.unit.adapters.dense import apply_plan

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

LARGER = 328
"""Rows of a resized vocabulary; the base's are 320."""
TOKENS = torch.tensor([[1, 5, 2, 319, 17, 5, 200, 3]])


class Bases:
    """One-layer bases, written once a module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, bool], PreTrainedModel] = {}

    def __call__(self, family: str, tied: bool) -> tuple[PreTrainedModel, Path]:
        folder = self._folder / f"{family}-{tied}"
        if (family, tied) not in self._made:
            changes: dict[str, Any] = {"num_hidden_layers": 1, "tie_word_embeddings": tied, "pad_token_id": None}
            self._made[family, tied] = write_tiny_model(folder, family, **changes)
        model = copy.deepcopy(self._made[family, tied])
        model.name_or_path = model.config._name_or_path = str(folder)
        return model, folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bases]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT remarks on tied weights and on vocabularies that it saves
        yield Bases(tmp_path_factory.mktemp("bases"))


def grown(model: PreTrainedModel, rows: int | None) -> PreTrainedModel:
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


def train(tuned: PeftModel, seed: int = 0) -> None:
    """Every parameter that PEFT would train gets a value that shows. What shares memory is moved once."""
    torch.manual_seed(seed)
    seen: set[int] = set()
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            trained = parameter.requires_grad or ".modules_to_save." in name
            if not trained or parameter.untyped_storage().data_ptr() in seen:
                continue
            seen.add(parameter.untyped_storage().data_ptr())
            if "lora_magnitude" in name or "ia3_l" in name:
                parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3 / parameter.shape[-1] ** 0.5)


def saved(bases: Bases, family: str, tied: bool, rows: int | None, config: Any, out: Path, **save: Any) -> Path:
    """Made and saved by PEFT; returns the base's folder."""
    model, folder = bases(family, tied)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = get_peft_model(grown(model, rows), config)
        train(tuned)
        tuned.save_pretrained(str(out), **save)
    return folder


def peft_logits(bases: Bases, family: str, tied: bool, rows: int | None, out: Path) -> torch.Tensor:
    """As PEFT computes them from the files, on a fresh base."""
    model, _ = bases(family, tied)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        loaded = PeftModel.from_pretrained(grown(model, rows), str(out))
        loaded.eval()
        logits: torch.Tensor = loaded(TOKENS).logits
        return logits


def lora(**fields: Any) -> LoraConfig:
    values: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
    return LoraConfig(**(values | fields))


def ia3(**fields: Any) -> IA3Config:
    values: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
    return IA3Config(task_type="CAUSAL_LM", **(values | fields))


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EMBED, HEAD, BOTH = ["q_proj", "embed_tokens"], ["q_proj", "lm_head"], ["q_proj", "embed_tokens", "lm_head"]
IDS = [5, 1, 319]

LINEARS: dict[str, tuple[str, Any]] = {
    "plain": ("llama", lora(target_modules=ALL)),
    "rslora": ("mistral", lora(target_modules=ALL, r=4, use_rslora=True)),
    "patterns": ("llama", lora(target_modules=ALL, rank_pattern={"q_proj": 5}, alpha_pattern={".*_proj": 3})),
    "all-linear": ("qwen3", lora(target_modules="all-linear")),
    "regex, excluded": ("qwen2", lora(target_modules=r".*_proj", exclude_modules=["k_proj"])),
    "dora": ("qwen2", lora(target_modules="all-linear", use_dora=True)),
    "dora, fan_in_fan_out": ("llama", lora(target_modules=ALL, use_dora=True, fan_in_fan_out=True)),
    "bias all": ("qwen2", lora(bias="all")),
    "bias lora_only": ("qwen2", lora(bias="lora_only", target_modules=["k_proj", "o_proj"])),
    "bias and dora": ("qwen2", lora(bias="all", use_dora=True, target_modules=ALL)),
    "lora_bias": ("qwen2", lora(lora_bias=True, use_rslora=True, target_modules=["q_proj", "down_proj"])),
    "bias all and lora_bias": ("qwen2", lora(lora_bias=True, bias="all", target_modules=["q_proj", "o_proj"])),
    "norms": ("qwen3", lora(modules_to_save=["norm"])),
    "some norms": ("qwen3", lora(modules_to_save=["input_layernorm", "self_attn.k_norm"])),
    "ia3": ("llama", ia3()),
    "ia3 all": ("qwen2", ia3(target_modules="all-linear", feedforward_modules=r".*(up|down)_proj")),
    "ia3, endings": ("qwen2", ia3(target_modules=ALL, feedforward_modules=["down_proj", "o_proj"])),
    "ia3 and norms": ("qwen3", ia3(modules_to_save=["q_norm", "model.norm"])),
    "eva": ("llama", lora(init_lora_weights="gaussian")),
}

OUTER: dict[str, Any] = {
    "lora on embed": lora(target_modules=EMBED),
    "lora on head": lora(target_modules=HEAD),
    "lora on both": lora(target_modules=BOTH, rank_pattern={"lm_head": 3}),
    "tied lora on both": lora(target_modules=BOTH, ensure_weight_tying=True),
    "tied lora on embed": lora(target_modules=EMBED, ensure_weight_tying=True),
    "tied lora on head": lora(target_modules=HEAD, ensure_weight_tying=True, alpha_pattern={"lm_head": 9}),
    "tied regex": lora(target_modules=r".*(q_proj|lm_head)", ensure_weight_tying=True),
    "a regex that ties nothing": lora(target_modules=r"model\..*(q_proj|\.embed_tokens)", ensure_weight_tying=True),
    "dora on both": lora(target_modules=BOTH, use_dora=True),
    "tied dora": lora(target_modules=EMBED, use_dora=True, ensure_weight_tying=True),
    "lora_bias on head": lora(target_modules=HEAD, lora_bias=True),
    "saved embed": lora(modules_to_save=["embed_tokens"]),
    "saved head": lora(modules_to_save=["lm_head"]),
    "saved both": lora(modules_to_save=["embed_tokens", "lm_head"]),
    "tied saved embed": lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "tied saved head": lora(modules_to_save=["lm_head"], ensure_weight_tying=True),
    "saved embed, lora on head": lora(target_modules=HEAD, modules_to_save=["embed_tokens"]),
    "saved head, lora on embed": lora(target_modules=EMBED, modules_to_save=["lm_head"]),
    "tokens": lora(trainable_token_indices=IDS),
    "tokens, tied": lora(trainable_token_indices=IDS, ensure_weight_tying=True),
    "tokens of the head": lora(trainable_token_indices={"lm_head": IDS}),
    "tokens of both": lora(trainable_token_indices={"model.embed_tokens": IDS, "lm_head": IDS}),
    "other tokens of both": lora(trainable_token_indices={"embed_tokens": IDS, "lm_head": [5, 9]}),
    "tokens, lora on head": lora(target_modules=HEAD, trainable_token_indices=IDS),
    "tokens of the head, lora on embed": lora(target_modules=EMBED, trainable_token_indices={"lm_head": IDS}),
    "tokens of the head, saved embed": lora(modules_to_save=["embed_tokens"], trainable_token_indices={"lm_head": IDS}),
    "ia3 on head": ia3(target_modules=HEAD, feedforward_modules=[]),
    "ia3 on head's input": ia3(target_modules=HEAD, feedforward_modules=["lm_head"]),
    "ia3, saved both": ia3(modules_to_save=["embed_tokens", "lm_head"]),
}

LARGER_VOCABULARY: dict[str, Any] = {
    "plain": lora(),
    "dora": lora(use_dora=True),
    "lora on both": lora(target_modules=BOTH),
    "saved both": lora(modules_to_save=["embed_tokens", "lm_head"]),
    "saved embed": lora(modules_to_save=["embed_tokens"]),
    "saved head": lora(modules_to_save=["lm_head"]),
    "tied saved embed": lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "tokens": lora(trainable_token_indices=[5, 325, 1]),
    "tokens of the head": lora(trainable_token_indices={"lm_head": [5, 325]}),
    "ia3": ia3(),
}
ON_TIED_ALONE: dict[str, Any] = {
    "lora on embed": lora(target_modules=EMBED),
    "lora on head": lora(target_modules=HEAD),
    "tied lora on embed": lora(target_modules=EMBED, ensure_weight_tying=True),
}


def check(bases: Bases, out: Path, family: str, tied: bool, config: Any, rows: int | None = None, **save: Any) -> None:
    folder = saved(bases, family, tied, rows, copy.deepcopy(config), out, **save)
    spec = read_spec(folder)
    report = validate_directory(out, spec, base_dir=folder, probe=False)
    assert report.plan is not None, report.error()
    assert report.plan.vocabulary == rows
    assert [row.message for row in report.checks if row.outcome == "warn"] == []
    want = peft_logits(bases, family, tied, rows, out)
    model, _ = bases(family, tied)
    apply_plan(grown(model, rows), out, report.plan)
    with torch.no_grad():
        have = model(TOKENS).logits
        plain, _ = bases(family, tied)
        base = plain(TOKENS).logits
    torch.testing.assert_close(have, want, atol=1e-3, rtol=1e-4)
    assert (want[..., : base.shape[-1]] - base).abs().max() > 1e-2, "the adapter does nothing, so nothing was shown"


@pytest.mark.parametrize("case", LINEARS)
def test_linears_and_norms(bases: Bases, tmp_path: Path, case: str) -> None:
    family, config = LINEARS[case]
    check(bases, tmp_path, family, True, config)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("case", OUTER)
def test_embedding_and_head(bases: Bases, tmp_path: Path, case: str, tied: bool) -> None:
    check(bases, tmp_path, "llama", tied, OUTER[case])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("case", OUTER)
def test_saved_with_copies_of_the_base(bases: Bases, tmp_path: Path, case: str, tied: bool) -> None:
    check(bases, tmp_path, "llama", tied, OUTER[case], save_embedding_layers=True)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("case", LARGER_VOCABULARY)
def test_a_larger_vocabulary(bases: Bases, tmp_path: Path, case: str, tied: bool) -> None:
    check(bases, tmp_path, "qwen2", tied, LARGER_VOCABULARY[case], LARGER)


@pytest.mark.parametrize("case", ON_TIED_ALONE)
def test_a_larger_vocabulary_of_one_matrix(bases: Bases, tmp_path: Path, case: str) -> None:
    check(bases, tmp_path, "qwen2", True, ON_TIED_ALONE[case], LARGER)
    folder = saved(bases, "qwen2", False, LARGER, copy.deepcopy(ON_TIED_ALONE[case]), tmp_path / "untied")
    report = validate_directory(tmp_path / "untied", read_spec(folder), base_dir=folder, probe=False)
    row = report.check("vocabulary")
    assert row is not None
    assert "is not in the file" in row.message
