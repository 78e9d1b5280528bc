"""Adapters in a page arena: what a slot's row points at is the adapter, whatever came and went before."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import ChunkId, PageId, SlotId
from lorry.layers.extras_arena import arena_bytes
from tests.support.adapters import key_of
from tests.unit.engine.gpu.storage import KINDS, SLOTS, Device, Made, digest_of


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
