"""Chunks are given back whole, their neighbours keep every byte, and what no slot has is zero or finite."""

import json
from pathlib import Path

import pytest
import torch

from lorry.adapters.image.build import DeviceImage
from lorry.engine.arena import AdapterArena, SlotEntry
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import AdapterDigest, ChunkId, Generation, SlotId
from lorry.layers.extras import HeadExtras
from lorry.layers.sites import SITE_SLICES, Site
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from lorry.residency import Ready
from lorry.scheduler.plan import SlotLoad
from tests.support.adapters import FolderHost, key_of, save_adapter
from tests.support.kinds import LAYER_KINDS
from tests.support.resident import linux_only, resident_bytes
from tests.support.tiny_base import tiny_config, write_tiny_base
from tests.support.zoo import load_base, make

RANK = 8


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[DecoderSpec, list[DeviceImage]]:
    """Two of rank 8 and one of rank 12, which takes two chunks."""
    folder = tmp_path_factory.mktemp("arena")
    base = write_tiny_base(folder / "base")
    spec = read_spec(folder / "base")
    host = FolderHost(spec)
    found = []
    for seed, rank in enumerate((8, 8, 12)):
        save_adapter(base, folder / f"a{seed}", seed=seed, r=rank)
        ref = host.add(folder / f"a{seed}")
        host.ensure(ref)
        image = host.image(ref.key)
        assert image is not None
        found.append(image)
    return spec, found


def load(arena: AdapterArena, slot: int, image: DeviceImage, *chunks: int) -> None:
    ids = tuple(ChunkId(chunk) for chunk in chunks)
    arena.load(SlotLoad(SlotId(slot), Generation(1), key_of(image.digest), ids), image, step=0)


def operands(arena: AdapterArena) -> list[torch.Tensor]:
    """Each ``[layers, ..., rows, width]``, whole."""
    return [*arena._a.values(), *(b for parts in arena._b.values() for b in parts)]


def chunk_rows(arena: AdapterArena, chunk: int) -> list[torch.Tensor]:
    rows = slice(chunk * RANK, (chunk + 1) * RANK)
    return [operand.narrow(-2, rows.start, RANK) for operand in operands(arena)]


def test_chunks_are_zero_once_given_back_and_their_neighbours_are_untouched(
    images: tuple[DecoderSpec, list[DeviceImage]],
) -> None:
    spec, (one, other, wide) = images
    arena = AdapterArena(spec, 5, RANK)
    load(arena, 0, one, 1)
    load(arena, 1, other, 2)
    load(arena, 2, wide, 3, 4)
    arena.unload(SlotId(1))
    assert any(rows.any() for rows in chunk_rows(arena, 2))
    arena.release([ChunkId(2), ChunkId(0)])
    assert not any(rows.any() for chunk in (0, 2) for rows in chunk_rows(arena, chunk))
    arena.check_integrity()
    arena.unload(SlotId(2))
    arena.release([ChunkId(4), ChunkId(3)])
    assert not any(rows.any() for chunk in (0, 2, 3, 4) for rows in chunk_rows(arena, chunk))
    arena.check_integrity()
    load(arena, 1, wide, 4, 2)  # apart and out of order, on memory that was given back
    arena.check_integrity()


def test_a_chunk_that_a_slot_has_is_not_given_back(images: tuple[DecoderSpec, list[DeviceImage]]) -> None:
    spec, (one, other, _) = images
    arena = AdapterArena(spec, 3, RANK)
    load(arena, 0, one, 1)
    load(arena, 1, other, 2)
    arena.unload(SlotId(1))
    with pytest.raises(SlotIntegrity, match="adapter chunk 1 was to be given back, but slot 0 has it"):
        arena.release([ChunkId(2), ChunkId(1)])
    assert any(rows.any() for rows in chunk_rows(arena, 2)), "nothing was given back"
    arena.check_integrity()


def test_an_audit_reads_one_slot_after_the_other(images: tuple[DecoderSpec, list[DeviceImage]]) -> None:
    spec, (one, other, wide) = images
    arena = AdapterArena(spec, 6, RANK)
    arena.audit()
    load(arena, 0, one, 1)
    load(arena, 2, other, 2)
    load(arena, 5, wide, 3, 4)
    for _ in range(4):
        arena.audit()  # 0, 2, 5, 0
    next(iter(chunk_rows(arena, 4))).add_(1.0)
    arena.audit()  # 2
    with pytest.raises(SlotIntegrity, match="slot 5"):
        arena.audit()
    with pytest.raises(SlotIntegrity, match="slot 5"):
        arena.check_integrity()


@linux_only
def test_memory_is_physical_for_loaded_chunks_only(images: tuple[DecoderSpec, list[DeviceImage]]) -> None:
    """Of this base a chunk is less than an OS page at some sites, so a neighbour's chunk may keep one alive; once all
    are given back nothing is left."""
    spec, (one, other, wide) = images
    arena = AdapterArena(spec, 64, RANK)
    assert sum(resident_bytes(operand) for operand in operands(arena)) == 0
    load(arena, 0, one, 0)
    single = sum(resident_bytes(operand) for operand in operands(arena))
    assert single < 64 * AdapterArena.chunk_bytes(spec, RANK) / 4
    load(arena, 1, other, 40)
    load(arena, 2, wide, 41, 42)
    for slot, chunks in ((1, (40,)), (2, (41, 42))):
        arena.unload(SlotId(slot))
        arena.release([ChunkId(chunk) for chunk in chunks])
    assert sum(resident_bytes(operand) for operand in operands(arena)) == single
    arena.check_integrity()
    arena.unload(SlotId(0))
    arena.release([ChunkId(0)])
    assert sum(resident_bytes(operand) for operand in operands(arena)) == 0


@linux_only
def test_what_stays_of_a_chunk_of_smollm2_is_bounded() -> None:
    """The docstring's figures. Every chunk is written and the one in the middle, then two, are given back."""
    shape = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    }
    spec = DecoderSpec.from_config(json.loads(tiny_config(**shape).to_json_string(use_diff=False)))
    arena = AdapterArena(spec, 8, RANK)
    chunk_bytes = AdapterArena.chunk_bytes(spec, RANK)
    for given, keeps in (((3,), 0.07), ((4, 5), 0.0), ((6,), 0.07)):
        for operand in operands(arena):
            operand.fill_(1.0)
        in_use = SlotId(0)
        rows = tuple(r for c in range(8) if c not in given for r in range(c * RANK, (c + 1) * RANK))
        arena._slots[in_use] = SlotEntry(Generation(1), key_of(AdapterDigest("rest")), rows, ())
        arena.release([ChunkId(chunk) for chunk in given])
        left = sum(resident_bytes(operand) for operand in operands(arena)) - (8 - len(given)) * chunk_bytes
        assert left <= keeps * chunk_bytes * len(given)


def test_products_over_rows_that_nobody_wrote_are_zero(images: tuple[DecoderSpec, list[DeviceImage]]) -> None:
    spec, _ = images
    arena = AdapterArena(spec, 4, RANK)
    for site in Site:
        weights = arena.sites[0, site]
        x = torch.randn(3, weights.a.shape[-1])
        for part, _ in enumerate(SITE_SLICES[site]):
            assert not (x @ weights.a[part].T @ weights.b[part]).any()


def test_chunk_bytes_are_what_a_chunk_is(tmp_path: Path) -> None:
    write_tiny_base(tmp_path)
    spec = read_spec(tmp_path)
    arena = AdapterArena(spec, 3, RANK)
    assert sum(operand.numel() * 4 for operand in operands(arena)) == 3 * AdapterArena.chunk_bytes(spec, RANK)


@pytest.fixture(scope="module")
def with_extras(tmp_path_factory: pytest.TempPathFactory) -> tuple[DecoderSpec, DeviceImage]:
    """DoRA, and a whole head of 5 MB."""
    folder = tmp_path_factory.mktemp("extras")
    write_tiny_base(folder / "base", vocab_size=20_000, tie_word_embeddings=False)
    host = FolderHost(read_spec(folder / "base"), folder / "base")
    kind = LAYER_KINDS["r8"].with_(use_dora=True, modules_to_save=["lm_head"])
    make(load_base(folder / "base"), folder / "adapter", kind)
    ref = host.add(folder / "adapter")
    assert isinstance(host.ensure(ref), Ready)
    image = host.image(ref.key)
    assert image is not None
    return read_spec(folder / "base"), image


def test_extras_are_read_again_and_the_large_ones_by_the_audit(with_extras: tuple[DecoderSpec, DeviceImage]) -> None:
    spec, image = with_extras
    assert image.extras is not None
    assert image.extras.head is not None
    arena = AdapterArena(spec, 2, RANK)
    load(arena, 0, image, 1)
    arena.verify(SlotId(0), 1)
    arena.check_integrity()
    assert isinstance(image.extras.head, HeadExtras)
    gain, head = image.extras.vectors[1, Site.O].gain, image.extras.head.weight
    assert gain is not None
    assert head is not None

    head[7, 3].neg_()
    arena.verify(SlotId(0), 2)
    with pytest.raises(SlotIntegrity, match="slot 0"):
        arena.audit()
    with pytest.raises(AdapterLoadFailed, match="damaged"):
        load(arena, 1, image, 0)
    head[7, 3].neg_()

    gain[2].neg_()
    with pytest.raises(SlotIntegrity, match="no longer"):
        arena.verify(SlotId(0), 3)
    assert arena.entry(SlotId(0)) is None
    assert not image.intact()
    gain[2].neg_()
    assert image.intact()


def test_an_adapter_without_rank_rows_takes_no_chunk(tmp_path: Path) -> None:
    write_tiny_base(tmp_path / "base")
    spec = read_spec(tmp_path / "base")
    host = FolderHost(spec, tmp_path / "base")
    make(load_base(tmp_path / "base"), tmp_path / "ia3", LAYER_KINDS["ia3 everywhere"])
    ref = host.add(tmp_path / "ia3")
    ready = host.ensure(ref)
    assert isinstance(ready, Ready)
    assert ready.rank == 0
    assert ready.extra_bytes > 0
    image = host.image(ref.key)
    assert image is not None
    arena = AdapterArena(spec, 2, RANK)
    load(arena, 0, image)
    entry = arena.entry(SlotId(0))
    assert entry is not None
    assert entry.rows == ()
    arena.verify(SlotId(0), 1)
    arena.check_integrity()
    arena.release([ChunkId(0), ChunkId(1)])
