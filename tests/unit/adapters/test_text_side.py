"""A version's own tokenizer, template and end ids become the plan's text, or refuse it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from peft import LoraConfig, get_peft_model

from lorry.adapters.report import Accepted, ValidationReport
from lorry.adapters.validate import validate_directory
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from lorry.text import tokenizer_digest
from tests.support.adapters import save_adapter
from tests.support.tiny_base import write_tiny_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, DecoderSpec]:
    """(base, a plain adapter on it, the base's spec)."""
    folder = tmp_path_factory.mktemp("text")
    model = write_tiny_model(folder / "base", "llama", num_hidden_layers=1, vocab_size=340)
    save_adapter(model, folder / "adapter", target_modules=["q_proj"])
    return folder / "base", folder / "adapter", read_spec(folder / "base")


@pytest.fixture
def version(world: tuple[Path, Path, DecoderSpec], tmp_path: Path) -> Path:
    return Path(shutil.copytree(world[1], tmp_path / "version"))


def judge(world: tuple[Path, Path, DecoderSpec], version: Path) -> ValidationReport:
    return validate_directory(version, world[2], base_dir=world[0], probe=False)


def grow(base: Path, version: Path, words: int) -> int:
    """A tokenizer with so many more tokens; returns its ids."""
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    backend.add_special_tokens([f"<extra_{number}>" for number in range(words)])
    backend.save(str(version / "tokenizer.json"))
    return max(backend.get_vocab().values()) + 1


def test_files_that_say_what_the_base_s_say_are_nothing_of_its_own(
    world: tuple[Path, Path, DecoderSpec], version: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(world[0] / name, version)
    for name in ("special_tokens_map.json", "vocab.json", "merges.txt"):
        (version / name).write_text("{}")
    eos = json.loads((world[0] / "config.json").read_text())["eos_token_id"]
    (version / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    report = judge(world, version)
    assert report.plan is not None, report.error()
    assert report.plan.text is None
    row = report.check("text")
    assert row is not None
    assert "as the base's" in row.message


def test_a_larger_tokenizer_within_the_base_s_rows(world: tuple[Path, Path, DecoderSpec], version: Path) -> None:
    ids = grow(world[0], version, 2)
    assert ids <= world[2].vocabulary
    (version / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids - 1, 3]}))
    report = judge(world, version)
    assert report.plan is not None, report.error()
    text = report.plan.text
    assert text is not None
    assert (text.vocabulary, text.end_ids) == (ids, (3, ids - 1))
    assert text.sha256 == tokenizer_digest(world[0], version)
    assert report.accepted == Accepted(report.plan.rank, None, text)
    assert ValidationReport.from_dict(report.to_dict()).accepted == report.accepted


def test_a_tokenizer_beyond_the_rows_is_refused_unless_the_version_brings_them(
    world: tuple[Path, Path, DecoderSpec], version: Path
) -> None:
    rows = world[2].vocabulary
    ids = grow(world[0], version, 80)
    assert ids > rows
    row = judge(world, version).check("text.tokenizer.json")
    assert row is not None
    assert (row.outcome, row.value, row.limit) == ("fail", ids, rows)
    assert "resize it before training" in row.message
    larger = version.parent / "larger"
    model = write_tiny_model(version.parent / "again", "llama", num_hidden_layers=1, vocab_size=340)
    model.resize_token_embeddings(ids, mean_resizing=False)
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(str(larger), save_embedding_layers=True)
    shutil.copy(version / "tokenizer.json", larger)
    report = judge(world, larger)
    assert report.plan is not None, report.error()
    assert report.plan.vocabulary == ids
    assert report.plan.text is not None
    assert report.plan.text.vocabulary == ids


def test_end_ids_without_a_row_are_refused(world: tuple[Path, Path, DecoderSpec], version: Path) -> None:
    (version / "generation_config.json").write_text(json.dumps({"eos_token_id": world[2].vocabulary}))
    row = judge(world, version).check("text.generation_config.json")
    assert row is not None
    assert row.outcome == "fail"
    assert "correct eos_token_id" in row.message


def test_a_file_that_cannot_be_used_is_named(world: tuple[Path, Path, DecoderSpec], version: Path) -> None:
    (version / "tokenizer.json").write_text("{}")
    row = judge(world, version).check("text.tokenizer.json")
    assert row is not None
    assert row.outcome == "fail"
    without_base = validate_directory(version, world[2], probe=False).check("text")
    assert without_base is not None
    assert "not on this machine" in without_base.message
