"""A page arena with its slots' tables, and images of adapters of every kind to load into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lorry.adapters.image.packed import PackedImage, PageLayout, build_packed
from lorry.adapters.validate import validate_directory
from lorry.engine.gpu.adapters import DeviceAdapters
from lorry.engine.gpu.copies import InlineCopies
from lorry.engine.gpu.pages import PageMap
from lorry.ids import AdapterDigest, ChunkId, Generation, SlotId
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.extras import ChunkedEmbedding, ChunkedHead
from lorry.layers.extras_arena import ExtrasArena
from lorry.layers.slot_row import CHUNK_RANK, SlotRow, largest_chunk_elements
from lorry.layers.slot_tables import NO_GENERATION, SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.layers.wide_tables import WideTables
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
    "lora both": VOCABULARY_KINDS["dora both"],
    "embedding": VOCABULARY_KINDS["head and embedding"],
}
Made = tuple[DecoderSpec, PageLayout, dict[str, PackedImage]]


def digest_of(name: str) -> AdapterDigest:
    return AdapterDigest(name.encode().hex().ljust(64, "0"))


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
        return self.holds_embedding(slot, image) and self.holds_head(slot, image)

    def holds_embedding(self, slot: int, image: PackedImage) -> bool:
        tables = self.tables.embedding
        own = None if image.extras is None else image.extras.embedding
        if own is None:
            return self.without_embedding(slot)
        assert isinstance(own, ChunkedEmbedding)
        places = zip((tables.weight, tables.row_of, tables.rows), (own.weight, own.row_of, own.rows), strict=True)
        whole = all(self.holds_at(int(column[slot]), wanted) for column, wanted in places)
        lora = self.holds_wide(slot, tables.lora, own.a, own.b, own.gain, None)
        return whole and lora and int(tables.ids[slot]) == own.ids

    def holds_head(self, slot: int, image: PackedImage) -> bool:
        own = None if image.extras is None else image.extras.head
        parts = (own.a, own.b, own.gain, own.addend) if isinstance(own, ChunkedHead) else (None,) * 4
        return self.holds_wide(slot, self.tables.head, *parts)

    def holds_wide(self, slot: int, tables: WideTables, *own: Tensor | None) -> bool:
        """a and b by chunk, then gain and addend."""
        pieces: list[tuple[int, Tensor | None]] = []
        for table, chunks in zip((tables.a, tables.b), own, strict=False):
            blocks = [] if chunks is None else list(chunks)
            places = table[slot, 0].tolist()
            pieces += [(at, blocks[i] if i < len(blocks) else None) for i, at in enumerate(places)]
        pieces += [(int(tables.gain[slot]), own[2]), (int(tables.addend[slot]), own[3])]
        return all(self.holds_at(at, wanted) for at, wanted in pieces)

    def holds_at(self, at: int, wanted: Tensor | None) -> bool:
        if wanted is None or at < 0:
            return wanted is None and at == -1
        flat = self.extras.bytes.view(wanted.dtype)
        return torch.equal(flat[at : at + wanted.numel()].view(wanted.shape), wanted)

    def without_embedding(self, slot: int) -> bool:
        tables = self.tables.embedding
        columns = (tables.weight, tables.row_of, tables.rows, tables.ids)
        return self.without(slot, tables.lora) and all(bool((column[slot] == -1).all()) for column in columns)

    def without(self, slot: int, tables: WideTables) -> bool:
        return all(bool((one[slot] == -1).all()) for one in (tables.a, tables.b, tables.gain, tables.addend))

    def empty(self, slot: int) -> bool:
        tables = self.tables
        wide = self.without_embedding(slot) and self.without(slot, tables.head)
        return (
            int(tables.generation[slot]) == NO_GENERATION
            and wide
            and all(
                bool(
                    (one.a_offset[slot] == -1).all()
                    and (one.b_offset[slot] == -1).all()
                    and (one.scale[slot] == 0).all()
                )
                for one in tables.sites.values()
            )
        )
