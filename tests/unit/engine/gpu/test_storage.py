"""Adapters in a page arena: what a slot's row points at is the adapter, whatever came and went before."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lorry.adapters.image.packed import PackedImage, PageLayout, build_packed
from lorry.adapters.validate import validate_directory
from lorry.engine.gpu.adapters import DeviceAdapters
from lorry.engine.gpu.copies import InlineCopies
from lorry.engine.gpu.pages import PageMap
from lorry.errors import AdapterLoadFailed, InternalError, SlotIntegrity
from lorry.ids import AdapterDigest, ChunkId, Generation, PageId, SlotId
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.extras import ChunkedEmbedding
from lorry.layers.extras_arena import ExtrasArena, arena_bytes
from lorry.layers.sites import Site
from lorry.layers.slot_row import ALIGN, CHUNK_RANK, SlotRow, largest_chunk_elements
from lorry.layers.slot_tables import NO_GENERATION, SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from lorry.scheduler.plan import SlotLoad
from tests.support.adapters import key_of
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import load_base, make

SLOTS, RANK, DTYPE = 3, 32, torch.float32
KINDS = {
    "patterns": LAYER_KINDS["patterns"],
    "rslora": LAYER_KINDS["rslora"],
    "dora": LAYER_KINDS["dora"],
    "ia3": VOCABULARY_KINDS["ia3 head"],
    "tokens": VOCABULARY_KINDS["tokens"],
    "lora embedding": VOCABULARY_KINDS["lora embedding"],
    "embedding": VOCABULARY_KINDS["head and embedding"],
}
Made = tuple[DecoderSpec, PageLayout, dict[str, PackedImage]]


def digest_of(name: str) -> AdapterDigest:
    return AdapterDigest(name.encode().hex().ljust(64, "0"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_images(tmp_path_factory.mktemp("storage"))


def make_images(root: Path) -> Made:
    write_tiny_model(root / "base", "llama")
    spec = read_spec(root / "base")
    layout = PageLayout(largest_chunk_elements(spec) * DTYPE.itemsize, DTYPE, SlotRow(spec, RANK))
    images = {}
    for name, kind in KINDS.items():
        make(load_base(root / "base"), root / name, kind)
        report = validate_directory(root / name, spec, base_dir=root / "base", probe=False)
        assert report.plan is not None, report.failed
        base = BaseTensors(root / "base", spec, DTYPE)
        images[name] = build_packed(root / name, report.plan, spec, layout, digest_of(name), base)
    return spec, layout, images


class Device:
    def __init__(self, made: Made, pages: int, extras: int = 1 << 20) -> None:
        self.spec, self.layout, self.images = made
        self.pages = PageMap(pages)
        self.arena = torch.full((pages + 1, self.layout.page_bytes), 0xFF, dtype=torch.uint8)
        tables = SlotTables(self.layout.row, SLOTS, torch.device("cpu"))
        self.extras = ExtrasArena(extras, DTYPE, torch.device("cpu"))
        self.adapters = DeviceAdapters(
            self.spec, self.layout.row, self.arena, DTYPE, self.pages, tables, InlineCopies(), self.extras
        )
        self.tables = tables

    def load(self, slot: int, name: str, chunks: list[int], generation: int = 0, step: int = 1) -> None:
        image = self.images[name]
        ids = tuple(ChunkId(chunk) for chunk in chunks)
        self.adapters.load(SlotLoad(SlotId(slot), Generation(generation), key_of(image.digest), ids), image, step)

    def holds(self, slot: int, name: str) -> bool:
        """Follows every offset of the slot's tables and compares with the image's own pages."""
        image, row = self.images[name], self.layout.row
        flat = self.arena.view(-1).view(torch.float32)
        own = image.pages.view(-1).view(torch.float32)
        where = image.offsets(np.arange(image.chunk_count, dtype=np.int64))
        for site in self.spec.lora_sites():
            at, tables = row.sites[site.layer, site.site], self.tables.sites[site.layer, site.site]
            for index, n in enumerate(site.out_features):
                wanted_scale = float(image.scales[at.scale + index])
                if float(tables.scale[slot, index]) != wanted_scale:
                    return False
                pieces = [
                    (
                        tables.a_offset[slot, index, block],
                        at.a + index * at.blocks + block,
                        CHUNK_RANK * site.in_features,
                    )
                    for block in range(at.blocks)
                ]
                pieces += [
                    (tables.b_offset[slot, index, block], at.b + index * at.blocks + block, CHUNK_RANK * n)
                    for block in range(at.blocks)
                ]
                pieces.append((tables.gain_offset[slot, index], at.gain + index, n))
                pieces.append((tables.addend_offset[slot, index], at.addend + index, n))
                pieces.append((tables.in_gain_offset[slot, index], at.in_gain + index, site.in_features))
                for found, column, size in pieces:
                    begin, want = int(found), int(where[column])
                    if (begin < 0) != (want < 0):
                        return False
                    if begin >= 0 and not torch.equal(flat[begin : begin + size], own[want : want + size]):
                        return False
        return self.holds_embedding(slot, image)

    def holds_embedding(self, slot: int, image: PackedImage) -> bool:
        tables = self.tables.embedding
        own = None if image.extras is None else image.extras.embedding
        if own is None:
            return self.without_embedding(slot)
        assert isinstance(own, ChunkedEmbedding)
        pieces = [(tables.weight, own.weight), (tables.row_of, own.row_of), (tables.rows, own.rows)]
        pieces.append((tables.gain[:, 0], own.gain))
        for table, chunks in ((tables.a, own.a), (tables.b, own.b)):
            blocks = [] if chunks is None else list(chunks)
            pieces += [(table[:, 0, i], blocks[i] if i < len(blocks) else None) for i in range(table.shape[2])]
        for column, wanted in pieces:
            at = int(column[slot])
            if (at < 0) != (wanted is None):
                return False
            if wanted is not None:
                flat = self.extras.bytes.view(wanted.dtype)
                if not torch.equal(flat[at : at + wanted.numel()].view(wanted.shape), wanted):
                    return False
        return int(tables.ids[slot]) == own.ids

    def without_embedding(self, slot: int) -> bool:
        tables = self.tables.embedding
        columns = (tables.weight, tables.row_of, tables.rows, tables.ids, tables.gain, tables.a, tables.b)
        return all(bool((column[slot] == -1).all()) for column in columns)

    def empty(self, slot: int) -> bool:
        tables = self.tables
        cleared = int(tables.generation[slot]) == NO_GENERATION and self.without_embedding(slot)
        return cleared and all(
            bool((one.a_offset[slot] == -1).all() and (one.b_offset[slot] == -1).all() and (one.scale[slot] == 0).all())
            for one in tables.sites.values()
        )


def test_a_load_is_found_where_the_tables_say(made: Made) -> None:
    device = Device(made, 60)
    count = device.images["dora"].chunk_count
    device.load(1, "dora", list(range(100, 100 + count)), generation=7)
    assert device.holds(1, "dora")
    assert int(device.tables.generation[1]) == 7
    assert device.adapters.slot_of(key_of(digest_of("dora"))) == 1
    assert device.empty(0)
    assert device.empty(2)
    device.adapters.check_integrity()


def test_a_plan_with_other_chunks_than_the_image_needs_is_refused(made: Made) -> None:
    device = Device(made, 60)
    with pytest.raises(AdapterLoadFailed, match="pages, for 1 pages"):
        device.load(0, "patterns", [0])
    assert device.empty(0)
    assert device.adapters.entry(SlotId(0)) is None
    assert device.pages.free == 60


@pytest.mark.parametrize("where", ["host", "device"])
def test_damaged_bytes_are_never_published_or_kept(made: Made, where: str) -> None:
    device = Device(made, 60)
    image = device.images["patterns"]
    chunks = list(range(image.chunk_count))
    if where == "host":
        image.pages[0, 9] ^= 1
        try:
            with pytest.raises(AdapterLoadFailed, match="is damaged"):
                device.load(0, "patterns", chunks)
        finally:
            image.pages[0, 9] ^= 1
        assert device.empty(0)
        return
    device.load(0, "patterns", chunks)
    device.arena[device.pages.chunk(ChunkId(0)), 9] ^= 1
    device.adapters.verify(SlotId(0), 1)  # read when it was loaded, in this very step
    with pytest.raises(SlotIntegrity, match="no longer those of adapter"):
        device.adapters.audit()
    with pytest.raises(SlotIntegrity, match="no longer those of adapter"):
        device.adapters.verify(SlotId(0), 2)
    assert device.empty(0)
    with pytest.raises(SlotIntegrity, match="is empty"):
        device.adapters.verify(SlotId(0), 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_damaged_embeddings_and_heads_are_never_published_or_kept(made: Made, when: str) -> None:
    """They lie in no page: what they must add up to was taken when the image was built."""
    device = Device(made, 60)
    image = device.images["ia3"]
    assert image.extras is not None
    tensor = next(image.extras.tensors())
    chunks, right = list(range(image.chunk_count)), tensor.clone()
    try:
        if when == "before":
            tensor.view(-1)[0] += 1
            with pytest.raises(AdapterLoadFailed, match="is damaged"):
                device.load(0, "ia3", chunks)
        else:
            device.load(0, "ia3", chunks)
            held = device.adapters.entry(SlotId(0))
            assert held is not None
            assert held.extras is not None
            next(held.extras.tensors()).view(-1)[0] += 1
            with pytest.raises(SlotIntegrity, match="no longer those of adapter"):
                device.adapters.verify(SlotId(0), 2)
    finally:
        tensor.copy_(right)
    assert device.empty(0)
    assert device.extras.used == 0, "its room is free again"


def test_what_lies_in_pieces_moves_together(made: Made) -> None:
    """As much room as they take together, in whatever order they came and went."""
    images = made[2]
    size = {name: arena_bytes(image.extras) for name, image in images.items()}
    large, other, small = "embedding", "lora embedding", "tokens"
    assert size[large] > size[other] > size[small] > 0, size
    device = Device(made, 200, extras=size[small] + size[large])
    steps = itertools.count(1)

    def load(slot: int, name: str) -> None:
        step = next(steps)
        device.load(slot, name, [100 * step + i for i in range(images[name].chunk_count)], step, step)

    load(0, other)
    load(1, small)
    before = int(device.tables.embedding.rows[1])
    device.adapters.unload(SlotId(0))  # as much is free as the large one takes, before and behind the small one
    load(2, large)
    assert int(device.tables.embedding.rows[1]) < before
    assert device.holds(1, small)
    assert device.holds(2, large)
    device.adapters.check_integrity()
    device.adapters.unload(SlotId(1))
    with pytest.raises(AdapterLoadFailed, match="raise extras_fraction"):
        load(1, large)
    assert device.empty(1)
    device.adapters.check_integrity()


def test_a_chunk_in_use_is_not_given_back(made: Made) -> None:
    device = Device(made, 60)
    count = device.images["ia3"].chunk_count
    device.load(0, "ia3", list(range(count)))
    with pytest.raises(SlotIntegrity, match="belongs to slot 0"):
        device.adapters.release([ChunkId(50), ChunkId(0)])
    assert device.holds(0, "ia3")


def publish(
    device: Device, image: PackedImage, offsets: npt.NDArray[np.int64], slot: int = 0, generation: int = 0
) -> None:
    pages, page_bytes = device.arena.shape[0] - 1, device.arena.shape[1]
    device.tables.publish(SlotId(slot), Generation(generation), offsets, image.scales, image.unit, pages, page_bytes)


@pytest.mark.parametrize(
    ("slot", "generation", "change", "named"),
    [
        (3, 0, 0, "slot: 3"),
        (-1, 0, 0, "slot: -1"),
        (0, -1, 0, "generation: -1"),
        (0, 0, 1, "offsets: "),
        (0, 0, -2, "off"),
    ],
)
def test_a_bad_row_is_not_published(made: Made, slot: int, generation: int, change: int, named: str) -> None:
    device = Device(made, 60)
    image = device.images["dora"]
    offsets = image.offsets(np.arange(image.chunk_count, dtype=np.int64))
    offsets[np.argmax(offsets >= 0)] += change if change >= 0 else -offsets.max() - 5
    with pytest.raises(InternalError, match=named):
        publish(device, image, offsets, slot, generation)
    assert all(device.empty(one) for one in range(SLOTS))


def test_an_offset_outside_the_arena_is_not_published(made: Made) -> None:
    device = Device(made, 60)
    image = device.images["dora"]
    offsets = image.offsets(np.arange(1000, 1000 + image.chunk_count, dtype=np.int64))
    with pytest.raises(InternalError, match="outside the arena"):
        publish(device, image, offsets)


def test_nobodys_page_is_outside_the_arena(made: Made) -> None:
    """It lies behind the last, and takes what padding writes."""
    device = Device(made, 60)
    image = device.images["dora"]
    for first, named in ((60 - image.chunk_count, ""), (61 - image.chunk_count, "outside the arena")):
        offsets = image.offsets(np.arange(first, first + image.chunk_count, dtype=np.int64))
        if named:
            with pytest.raises(InternalError, match=named):
                publish(device, image, offsets)
        else:
            publish(device, image, offsets)
            device.tables.clear(SlotId(0))
    assert device.empty(0)


@pytest.mark.parametrize("piece", ["a", "b", "gain", "addend", "norm"])
def test_a_piece_that_ends_behind_its_page_is_not_published(made: Made, piece: str) -> None:
    """Where it begins, all is well. The last place that it has room at is its page's."""
    device = Device(made, 60)
    image, row = device.images["patterns"], device.layout.row
    columns = row.sites[0, Site.O]
    column = next(iter(row.norms.values())) if piece == "norm" else int(getattr(columns, piece))
    hidden, inside = device.spec.hidden, device.spec.heads * device.spec.head_dim
    size = {"a": CHUNK_RANK * inside, "b": CHUNK_RANK * hidden}.get(piece, hidden) * DTYPE.itemsize
    page_bytes = device.layout.page_bytes
    last = (page_bytes - size) // ALIGN * ALIGN
    unit = image.unit.copy()
    unit[column] = DTYPE.itemsize
    for place, fits in ((last, True), (last + ALIGN, False)):
        offsets = np.full(row.offsets, -1, np.int64)
        offsets[column] = (3 * page_bytes + place) // DTYPE.itemsize
        image_of_one = replace(image, unit=unit)
        if fits:
            publish(device, image_of_one, offsets)
            device.tables.clear(SlotId(0))
            continue
        with pytest.raises(InternalError, match=rf"column {column}, slot 0, .* has {size}, past its page"):
            publish(device, image_of_one, offsets)
    assert device.empty(0)


def test_more_than_the_arena_has_is_an_error_with_the_numbers() -> None:
    pages = PageMap(2)
    assert {pages.page(PageId(900)), pages.chunk(ChunkId(900))} == {0, 1}
    assert pages.page(PageId(900)) == pages.page(PageId(900))
    with pytest.raises(InternalError, match="2 pages: 1 pages and 1 chunks"):
        pages.page(PageId(1))
    pages.release_chunks([ChunkId(900), ChunkId(3)])
    pages.page(PageId(1))
    pages.check_integrity()


class Loads(RuleBasedStateMachine):
    """Slots fill and empty, chunks and pages come and go; every slot's tables lead to its own adapter."""

    made: Made

    @initialize()
    def begin(self) -> None:
        self.device = Device(self.made, 64)
        self.inside: dict[int, str] = {}
        self.chunks: dict[int, list[int]] = {}
        self.kv: set[int] = set()
        self.step = 1
        self.generation = 0

    @rule(slot=st.integers(0, SLOTS - 1), name=st.sampled_from(list(KINDS)), seed=st.integers(0, 1000))
    def load(self, slot: int, name: str, seed: int) -> None:
        need = self.device.images[name].chunk_count
        freed = self.chunks.get(slot, [])
        if need > self.device.pages.free + len(freed):
            return
        self.unload(slot)
        taken = {chunk for own in self.chunks.values() for chunk in own}
        ids = [int(one) for one in np.random.default_rng(seed).permutation(500) if int(one) not in taken][:need]
        self.step += 1
        self.generation += 1
        self.device.load(slot, name, ids, self.generation, self.step)
        self.inside[slot], self.chunks[slot] = name, ids

    @rule(slot=st.integers(0, SLOTS - 1))
    def unload(self, slot: int) -> None:
        self.device.adapters.unload(SlotId(slot))
        self.inside.pop(slot, None)
        self.device.adapters.release([ChunkId(chunk) for chunk in self.chunks.pop(slot, [])])

    @precondition(lambda self: self.device.pages.free > 0)
    @rule(page=st.integers(0, 300))
    def take_page(self, page: int) -> None:
        self.device.arena[self.device.pages.page(PageId(page))] = 0xFF
        self.kv.add(page)

    @rule()
    def give_pages_back(self) -> None:
        self.device.pages.release_pages([PageId(page) for page in self.kv])
        self.kv.clear()

    @invariant()
    def every_slot_is_its_own(self) -> None:
        for slot in range(SLOTS):
            name = self.inside.get(slot)
            assert self.device.empty(slot) if name is None else self.device.holds(slot, name)
        self.device.adapters.check_integrity()
        used = sum(map(len, self.chunks.values())) + len(self.kv)
        assert self.device.pages.free == 64 - used


def test_loads_and_unloads_in_any_order(made: Made) -> None:
    Loads.made = made
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Loads, settings=settings(max_examples=15, stateful_step_count=20, deadline=None))


class LateCopies:
    """Copies are done no sooner than the compute stream waits for them, as on a device."""

    def __init__(self) -> None:
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    def begin(self) -> None:
        assert self.waiting is None
        self.waiting = []

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert self.waiting is not None, "it may overwrite what the compute stream still reads"
        self.waiting.append((target, source))

    def finish(self) -> None:
        assert self.waiting is not None
        for target, source in self.waiting:
            target.copy_(source)
        self.waiting = None


def test_a_slot_is_published_when_its_copies_are_done(made: Made) -> None:
    device = Device(made, 60)
    device.adapters._copies = LateCopies()
    for slot, name in enumerate(("dora", "patterns", "ia3")):
        device.load(slot, name, [100 * slot + i for i in range(device.images[name].chunk_count)])
    assert all(device.holds(slot, name) for slot, name in enumerate(("dora", "patterns", "ia3")))
