"""What an answer states is what ran: bases and adapters whose bytes are not those of their digest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lorry.adapters.image.build import build_image
from lorry.adapters.validate import validate_directory
from lorry.engine.arena import AdapterArena
from lorry.errors import AdapterLoadFailed, LorryError
from lorry.ids import ChunkId, Generation, SlotId
from lorry.layers.base_files import base_digest
from lorry.models.weights import load_tensors, read_spec
from lorry.scheduler.plan import SlotLoad
from tests.support.adapters import key_of, ref_of, save_adapter
from tests.support.tiny_base import write_tiny_base

NORM = "model.layers.0.self_attn.q_proj.weight"


def _index(folder: Path, shard: str) -> None:
    spec = read_spec(folder)
    names = load_tensors(folder, spec, torch.float32)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))


@pytest.mark.parametrize("shard", ["model-tuned.safetensors", "tuned.safetensors"])
def test_bases_of_one_digest_have_one_set_of_weights(tmp_path: Path, shard: str) -> None:
    """The index decides which shards are read, so it, or what it names, must be part of the digest."""
    folder = tmp_path / "base"
    write_tiny_base(folder, seed=1)
    write_tiny_base(tmp_path / "tuned", seed=2)
    if shard.startswith("model"):
        shutil.copy(tmp_path / "tuned" / "model.safetensors", folder / shard)
    spec = read_spec(folder)
    before, plain = base_digest(folder), load_tensors(folder, spec, torch.float32)[NORM]
    shutil.copy(tmp_path / "tuned" / "model.safetensors", folder / shard)
    _index(folder, shard)
    try:
        after = load_tensors(folder, spec, torch.float32)[NORM]
        same = base_digest(folder) == before
    except LorryError:
        return  # refused: as good
    assert not torch.equal(plain, after)
    assert not same, "two sets of weights go by one base digest"


def test_a_damaged_host_image_is_not_loaded(tmp_path: Path) -> None:
    """AdapterArena.load: "Raises AdapterLoadFailed, nothing published, where ... the host copy is damaged"."""
    save_adapter(write_tiny_base(tmp_path / "base"), tmp_path / "one", seed=1)
    spec, digest = read_spec(tmp_path / "base"), ref_of(tmp_path / "one").digest
    plan = validate_directory(tmp_path / "one", spec).plan
    assert plan is not None
    image = build_image(tmp_path / "one", plan, spec, torch.float32, digest)
    next(iter(image.sites.values())).a[0, 0, 0] += 1.0
    arena = AdapterArena(spec, 2, 8)
    with pytest.raises(AdapterLoadFailed):
        arena.load(SlotLoad(SlotId(0), Generation(1), key_of(digest), (ChunkId(0),)), image, 0)
    assert arena.entry(SlotId(0)) is None
