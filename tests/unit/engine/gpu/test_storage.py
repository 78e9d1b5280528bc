"""Adapters in a page arena: what a slot's row points at is the adapter, whatever came and went before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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
from lorry.layers.slot_row import CHUNK_RANK, SlotRow, largest_chunk_elements
from lorry.layers.slot_tables import NO_GENERATION, SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.models.weights import read_spec
from lorry.scheduler.plan import SlotLoad
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import load_base, make

SLOTS, RANK, DTYPE = 3, 32, torch.float32
KINDS = {
    "patterns": LAYER_KINDS["patterns"],
    "rslora": LAYER_KINDS["rslora"],
    "dora": LAYER_KINDS["dora"],
    "ia3": VOCABULARY_KINDS["ia3 head"],
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
    def __init__(self, made: Made, pages: int) -> None:
        self.spec, self.layout, self.images = made
        self.pages = PageMap(pages)
        self.arena = torch.full((pages + 1, self.layout.page_bytes), 0xFF, dtype=torch.uint8)
        tables = SlotTables(self.layout.row, SLOTS, torch.device("cpu"))
        self.adapters = DeviceAdapters(
            self.spec, self.layout.row, self.arena, DTYPE, self.pages, tables, InlineCopies()
        )
        self.tables = tables

    def load(self, slot: int, name: str, chunks: list[int], generation: int = 0, step: int = 1) -> None:
        image = self.images[name]
        ids = tuple(ChunkId(chunk) for chunk in chunks)
        self.adapters.load(SlotLoad(SlotId(slot), Generation(generation), image.digest, ids), image, step)

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
        return True

    def empty(self, slot: int) -> bool:
        tables = self.tables
        return int(tables.generation[slot]) == NO_GENERATION and all(
            bool((one.a_offset[slot] == -1).all() and (one.b_offset[slot] == -1).all() and (one.scale[slot] == 0).all())
            for one in tables.sites.values()
        )


def test_a_load_is_found_where_the_tables_say(made: Made) -> None:
    device = Device(made, 60)
    count = device.images["dora"].chunk_count
    device.load(1, "dora", list(range(100, 100 + count)), generation=7)
    assert device.holds(1, "dora")
    assert int(device.tables.generation[1]) == 7
    assert device.adapters.slot_of(digest_of("dora")) == 1
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
            tensor.view(-1)[0] += 1
            with pytest.raises(SlotIntegrity, match="no longer those of adapter"):
                device.adapters.verify(SlotId(0), 2)
    finally:
        tensor.copy_(right)
    assert device.empty(0)


def test_a_chunk_in_use_is_not_given_back(made: Made) -> None:
    device = Device(made, 60)
    count = device.images["ia3"].chunk_count
    device.load(0, "ia3", list(range(count)))
    with pytest.raises(SlotIntegrity, match="belongs to slot 0"):
        device.adapters.release([ChunkId(50), ChunkId(0)])
    assert device.holds(0, "ia3")


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
        device.tables.publish(
            SlotId(slot), Generation(generation), offsets, image.scales, device.arena.numel(), image.unit
        )
    assert all(device.empty(one) for one in range(SLOTS))


def test_an_offset_outside_the_arena_is_not_published(made: Made) -> None:
    device = Device(made, 60)
    image = device.images["dora"]
    offsets = image.offsets(np.arange(1000, 1000 + image.chunk_count, dtype=np.int64))
    with pytest.raises(InternalError, match="outside the arena"):
        device.tables.publish(SlotId(0), Generation(0), offsets, image.scales, device.arena.numel(), image.unit)


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
