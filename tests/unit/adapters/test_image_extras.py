"""What an image keeps of whole matrices: one copy for embedding and head, and none of what the base computes with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lorry.adapters.image.build import DeviceImage, build_image
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.extras import HeadExtras
from lorry.layers.spec import EMBEDDING, DecoderSpec
from lorry.models.weights import read_spec
from tests.support.tiny_base import write_tiny_base

NAME = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_tiny_base(folder)
    return folder


def image(folder: Path, out: Path, matrix: torch.Tensor, dtype: torch.dtype = torch.float32) -> DeviceImage:
    """Of an adapter with this one matrix for both embedding and head, on an engine of ``dtype``."""
    spec = read_spec(folder)
    save_file({"both": matrix.contiguous()}, out / NAME)
    plan = AdapterPlan((NAME,), {}, embedding=EmbeddingPlan("both"), head=HeadPlan("both"))
    base = BaseTensors(folder, spec, dtype)
    return build_image(out, plan, spec, torch.float32, AdapterDigest("d" * 64), base)


def spec_and_embedding(folder: Path) -> tuple[DecoderSpec, torch.Tensor]:
    spec = read_spec(folder)
    return spec, BaseTensors(folder, spec, torch.float32)(EMBEDDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_in_both_places_is_kept_once_in_the_compute_type(
    folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    spec, embedding = spec_and_embedding(folder)
    extras = image(folder, tmp_path, embedding * 1.5, dtype).extras
    assert extras is not None
    assert extras.embedding is not None
    assert isinstance(extras.head, HeadExtras)
    assert extras.embedding.weight is extras.head.weight
    assert extras.nbytes == spec.vocabulary * spec.hidden * dtype.itemsize


def test_a_copy_in_the_type_of_the_engine_is_not_kept(folder: Path, tmp_path: Path) -> None:
    _, embedding = spec_and_embedding(folder)
    rounded = embedding.bfloat16()
    assert not torch.equal(rounded.float(), embedding)
    assert image(folder, tmp_path, rounded, torch.bfloat16).extra_bytes == 0
    assert image(folder, tmp_path, rounded, torch.float32).extra_bytes > 0
    assert image(folder, tmp_path, embedding, torch.float32).extra_bytes == 0


def test_a_value_that_is_not_finite_is_refused(folder: Path, tmp_path: Path) -> None:
    _, embedding = spec_and_embedding(folder)
    embedding[3, 4] = float("nan")
    with pytest.raises(AdapterLoadFailed, match="outside the range"):
        image(folder, tmp_path, embedding)
