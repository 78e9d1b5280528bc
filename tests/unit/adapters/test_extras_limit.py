"""An adapter that no slot of the engine could ever hold is refused at registration, by the bytes that it would take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lorry.adapters.image.build import build_image
from lorry.adapters.validate import Limits, validate_directory
from lorry.ids import AdapterDigest
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import read_spec
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import load_base, make

KINDS = {
    "a LoRA on everything with DoRA": VOCABULARY_KINDS["dora both"],
    "whole matrices and norms": VOCABULARY_KINDS["head, embedding and norms"],
    "tokens": VOCABULARY_KINDS["tokens of both"],
    "IA3": VOCABULARY_KINDS["ia3 head"],
}


@pytest.fixture(scope="module", params=["llama", "mistral"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limit") / "base"
    write_tiny_model(folder, request.param)
    return folder


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_what_the_engine_would_take_is_the_limit(
    base: Path, name: str, dtype: torch.dtype, width: int, tmp_path: Path
) -> None:
    spec, folder = read_spec(base), tmp_path / "adapter"
    make(load_base(base), folder, KINDS[name])
    report = validate_directory(folder, spec, base_dir=base)
    assert report.plan is not None, report.failed
    image = build_image(
        folder, report.plan, spec, torch.float32, AdapterDigest("0" * 64), BaseTensors(base, spec, dtype)
    )
    takes = image.extra_bytes
    assert takes > 0

    just = validate_directory(folder, spec, Limits(max_extra_bytes=takes, weight_bytes=width), base_dir=base)
    assert just.ok
    assert [(row.value, row.limit) for row in just.checks if row.id == "extras"] == [(takes, takes)]

    over = validate_directory(folder, spec, Limits(max_extra_bytes=takes - 1, weight_bytes=width), base_dir=base)
    assert [(row.id, row.value, row.limit) for row in over.failed] == [("extras", takes, takes - 1)]
    assert "--extras-fraction" in over.failed[0].message


def test_plain_lora_takes_none(base: Path, tmp_path: Path) -> None:
    make(load_base(base), tmp_path / "adapter", LAYER_KINDS["some targets"])
    report = validate_directory(tmp_path / "adapter", read_spec(base), Limits(max_extra_bytes=0), base_dir=base)
    assert report.ok
    assert not [row for row in report.checks if row.id == "extras"]
