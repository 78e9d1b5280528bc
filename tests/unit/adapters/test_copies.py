"""Saved copies of base weights are the base's or its rounding, or refuse the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorry.adapters.plan import EmbeddingPlan, HeadPlan
from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.validate import validate_directory
from lorry.layers.spec import DecoderSpec

from .craft import BASE_CONFIG, CONFIG, SPEC, safetensors, tensors, write_adapter

HIDDEN, ROWS = SPEC.hidden, SPEC.vocabulary
COPY = "base_model.model.model.embed_tokens.base_layer.weight"
HEAD_COPY = "base_model.model.lm_head.weight"
TIED = DecoderSpec.from_config({**BASE_CONFIG, "tie_word_embeddings": True})
Arrays = dict[str, np.ndarray]


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, HIDDEN)).astype("<f4")


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties to even, the long way; uint16, as craft stores BF16."""
    flat = []
    for value in values.reshape(-1).view(np.uint32):
        low, high = int(value) & 0xFFFF, int(value) >> 16
        flat.append(high + (low > 0x8000 or (low == 0x8000 and high & 1)))
    return np.array(flat, dtype="<u2").reshape(values.shape)


def base(folder: Path, arrays: Arrays, shards: bool = False) -> Path:
    folder.mkdir()
    if not shards:
        (folder / "model.safetensors").write_bytes(safetensors(arrays))
        return folder
    where = {}
    for number, (name, array) in enumerate(arrays.items()):
        where[name] = f"model-0000{number}-of-00009.safetensors"
        (folder / where[name]).write_bytes(safetensors({name: array}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def judge(folder: Path, copies: Arrays, base_dir: Path | None, spec: DecoderSpec = SPEC) -> ValidationReport:
    write_adapter(folder, CONFIG, {**tensors(), **copies})
    return validate_directory(folder, spec, base_dir=base_dir, probe=False)


def row(report: ValidationReport) -> Check:
    found = report.check("tensors.copies")
    assert found is not None
    assert report.ok == (found.outcome == "pass")
    return found


EXACT = numbers(0)


@pytest.mark.parametrize(
    ("saved", "stored", "applied"),
    [
        (EXACT, EXACT, False),
        (bf16(EXACT), EXACT, True),
        (EXACT, bf16(EXACT), True),
        (EXACT.astype("<f2"), EXACT, True),
        (EXACT, EXACT.astype("<f2"), True),
        (bf16(EXACT), bf16(EXACT), False),
        (EXACT.astype("<f2").astype("<f4"), EXACT.astype("<f2"), False),
        (numbers(1), EXACT, None),
        (bf16(EXACT * np.float32(1.01)), EXACT, None),
        (np.where(np.arange(EXACT.size).reshape(EXACT.shape) == 77, EXACT + 1e-6, EXACT).astype("<f4"), EXACT, None),
    ],
    ids=[
        "f32",
        "bf16 of f32",
        "f32 of bf16",
        "f16 of f32",
        "f32 of f16",
        "bf16",
        "f16 as f32",
        "other",
        "1% off",
        "one",
    ],
)
def test_a_copy_is_the_base_s_or_its_rounding_or_refused(
    tmp_path: Path, saved: np.ndarray, stored: np.ndarray, applied: bool | None
) -> None:
    folder = base(tmp_path / "base", {"model.embed_tokens.weight": stored})
    report = judge(tmp_path / "adapter", {COPY: saved}, folder)
    found = row(report)
    if applied is None:
        assert found.outcome == "fail"
        assert COPY in found.message
        assert "; " in found.message
        return
    assert report.plan is not None, report.error()
    assert report.plan.head is None
    assert report.plan.embedding == (EmbeddingPlan(weight_tensor=COPY) if applied else None)
    assert report.plan.copies == (() if applied else (COPY,))
    assert ("rounded" in found.message) == applied


def test_a_rounded_copy_of_a_tied_matrix_is_embedding_and_head(tmp_path: Path) -> None:
    """PEFT reads it into the memory that both share."""
    folder = base(tmp_path / "base", {"model.embed_tokens.weight": EXACT})
    plan = judge(tmp_path / "both", {COPY: bf16(EXACT), HEAD_COPY: bf16(EXACT)}, folder, TIED).plan
    assert plan is not None
    assert (plan.embedding, plan.head) == (EmbeddingPlan(weight_tensor=COPY), HeadPlan(weight_tensor=COPY))
    assert plan.copies == (HEAD_COPY,)
    report = judge(tmp_path / "one", {COPY: bf16(EXACT), HEAD_COPY: EXACT}, folder, TIED)
    assert HEAD_COPY in row(report).message


def test_copies_are_not_applied_and_count_as_accounted_for(tmp_path: Path) -> None:
    folder = base(tmp_path / "base", {"model.embed_tokens.weight": EXACT, "lm_head.weight": numbers(1)}, shards=True)
    report = judge(tmp_path / "adapter", {COPY: EXACT, HEAD_COPY: numbers(1)}, folder)
    assert report.plan is not None, report.error()
    assert set(report.plan.copies) == {COPY, HEAD_COPY}
    assert report.plan.embedding is None
    assert report.plan.head is None
    coverage = report.check("coverage")
    assert coverage is not None
    assert coverage.message == "10 of 10 tensors applied, 2 of them as copies of what is there already"
    swapped = judge(tmp_path / "swapped", {COPY: numbers(1), HEAD_COPY: EXACT}, folder)
    assert row(swapped).value == 2


@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight"])
def test_on_a_tied_base_the_one_matrix_is_both(tmp_path: Path, kept: str) -> None:
    folder = base(tmp_path / "base", {kept: EXACT})
    assert row(judge(tmp_path / "good", {COPY: EXACT, HEAD_COPY: EXACT}, folder, TIED)).outcome == "pass"
    assert row(judge(tmp_path / "bad", {COPY: EXACT, HEAD_COPY: numbers(1)}, folder, TIED)).value == 1


def test_without_the_base_a_copy_cannot_be_judged(tmp_path: Path) -> None:
    assert "not on this machine" in row(judge(tmp_path / "a", {COPY: EXACT}, None)).message
    assert "cannot be read" in row(judge(tmp_path / "b", {COPY: EXACT}, tmp_path)).message
    empty: dict[str, Any] = {"model.norm.weight": np.ones(HIDDEN, "<f4")}
    folder = base(tmp_path / "base", empty)
    assert row(judge(tmp_path / "c", {COPY: EXACT}, folder)).outcome == "fail"
