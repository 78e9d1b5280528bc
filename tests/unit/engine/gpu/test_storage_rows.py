"""What may be published in a slot's row: offsets inside the arena, pieces inside their page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from lorry.adapters.image.packed import PackedImage
from lorry.engine.gpu.pages import PageMap
from lorry.errors import InternalError
from lorry.ids import ChunkId, Generation, PageId, SlotId
from lorry.layers.sites import Site
from lorry.layers.slot_row import ALIGN, CHUNK_RANK
from tests.unit.engine.gpu.storage import DTYPE, SLOTS, Device, Made


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
        if piece in ("a", "b"):
            other = columns.b if piece == "a" else columns.a
            offsets[other], unit[other] = 5 * page_bytes // DTYPE.itemsize, DTYPE.itemsize
        image_of_one = replace(image, unit=unit)
        if fits:
            publish(device, image_of_one, offsets)
            device.tables.clear(SlotId(0))
            continue
        with pytest.raises(InternalError, match=rf"column {column}, slot 0, .* has {size}, past its page"):
            publish(device, image_of_one, offsets)
    assert device.empty(0)


@pytest.mark.parametrize("blocks", [((0,), ()), ((), (0,)), ((0, 1), (0,)), ((1,), (1,)), ((0,), (1,))])
def test_a_chunk_without_its_other_half_is_not_published(
    made: Made, blocks: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    device = Device(made, 60)
    image, columns = device.images["patterns"], device.layout.row.sites[0, Site.QKV]
    unit = np.full(device.layout.row.offsets, DTYPE.itemsize, np.int64)
    last = columns.slices - 1
    for asked, fits in (((((0, 1)), (0, 1)), True), (blocks, False)):
        offsets, page = np.full(device.layout.row.offsets, -1, np.int64), 0
        for first, held in zip((columns.a, columns.b), asked, strict=True):
            for block in held:
                offsets[first + last * columns.blocks + block] = page * device.layout.page_bytes // DTYPE.itemsize
                page += 1
        if fits:
            publish(device, replace(image, unit=unit), offsets)
            device.tables.clear(SlotId(0))
            continue
        with pytest.raises(InternalError, match=r"chunks of A in blocks .* nothing was published"):
            publish(device, replace(image, unit=unit), offsets)
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
