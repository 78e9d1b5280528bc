"""Puts the parts of a device with a page arena together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry.adapters.image.memory import CudaPageLocks
from lorry.adapters.image.packed import PackedImage, PageLayout
from lorry.adapters.image.placing import place
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.gpu.adapters import DeviceAdapters
from lorry.engine.gpu.block_tables import BlockTableMirror
from lorry.engine.gpu.buckets import decode_buckets
from lorry.engine.gpu.copies import Copies, InlineCopies, StreamCopies
from lorry.engine.gpu.forms import ALWAYS, Form
from lorry.engine.gpu.graphs import CudaGraphs, Graphs, StandInGraphs
from lorry.engine.gpu.inputs import DeviceShape
from lorry.engine.gpu.pages import PageMap
from lorry.engine.gpu.runner import Device, PagedRunner
from lorry.ids import AdapterKey
from lorry.layers.extras_arena import ExtrasArena
from lorry.layers.page_arena import PageArena
from lorry.layers.slot_row import CHUNK_RANK, SlotRow
from lorry.layers.slot_tables import SlotTables
from lorry.layers.spec import DecoderSpec
from lorry.memory import MemoryLedger
from lorry.models.paged import PagedDecoder

_VECTOR = 4


@dataclass(frozen=True, slots=True)
class PagedParts:
    """What of a device is looked at from outside its runner."""

    runner: PagedRunner
    adapters: DeviceAdapters
    arena: PageArena
    pages: PageMap


def page_layout(spec: DecoderSpec, memory: MemoryConfig, dtype: torch.dtype, device: torch.device) -> PageLayout:
    """What images are packed for."""
    size = PageArena.bytes_of_page(spec, memory.page_tokens, dtype)
    locks = CudaPageLocks() if device.type == "cuda" else None
    return PageLayout(size, dtype, SlotRow(spec, memory.max_rank), locks)


def paged_ledger(spec: DecoderSpec, memory: MemoryConfig, layout: PageLayout, context_tokens: int) -> MemoryLedger:
    """A page of the arena is the unit of both. Raises InvalidRequest for a budget that cannot hold the largest adapter
    beside one longest sequence."""
    largest = largest_pages(spec, layout, memory.max_rank)
    return MemoryLedger(memory, layout.page_bytes, layout.page_bytes, context_tokens, largest_chunks=largest)


def largest_pages(spec: DecoderSpec, layout: PageLayout, max_rank: int) -> int:
    """Of an adapter with ``max_rank`` and every vector at every module, and every norm."""
    sizes = [size * _VECTOR for size in spec.norms().values()]
    blocks = -(-max_rank // CHUNK_RANK)
    for site in spec.lora_sites():
        for n in site.out_features:
            chunk = CHUNK_RANK * layout.dtype.itemsize
            sizes += [site.in_features * chunk, n * chunk] * blocks
            sizes += [n * _VECTOR, n * _VECTOR, site.in_features * _VECTOR]
    return place(sizes, layout.page_bytes)[1]


def extras_bytes(memory: MemoryConfig) -> int:
    """Of the arena of embeddings and heads: as many as the ledger grants at most. They come on top of the budget, which
    is the pages' arena."""
    return int(memory.budget_bytes * memory.extras_fraction)


def build_paged(
    spec: DecoderSpec,
    tensors: Mapping[str, Tensor],
    memory: MemoryConfig,
    layout: PageLayout,
    limits: SchedulerConfig,
    device: torch.device,
    image: Callable[[AdapterKey], PackedImage | None],
    discard: Callable[[AdapterKey], None],
) -> PagedParts:
    """``tensors`` are the base's, in the layout's type and on the device. The arena has as many pages as the budget has
    bytes for."""
    count = memory.budget_bytes // layout.page_bytes
    pages = PageMap(count)
    arena = PageArena(spec, count, memory.page_tokens, layout.dtype, device)
    tables = SlotTables(layout.row, memory.max_slots, device)
    copies: Copies = StreamCopies(device) if device.type == "cuda" else InlineCopies()
    graphs: Graphs = CudaGraphs(device) if device.type == "cuda" else StandInGraphs()
    extras = ExtrasArena(extras_bytes(memory), layout.dtype, device)
    adapters = DeviceAdapters(spec, layout.row, arena.bytes, layout.dtype, pages, tables, copies, extras)
    context = limits.context_tokens
    max_pages = -(-context // memory.page_tokens)
    # A step may hold the last rows of sequences that ended in it and the first of those that begin.
    mirror = BlockTableMirror(2 * limits.max_sequences, max_pages, pages.page, device)
    decoder = PagedDecoder(spec, tensors, arena, extras, tables, layout.row.blocks, context)
    shape = DeviceShape.of(spec, memory.page_tokens, max_pages, memory.max_slots, device)
    runner = PagedRunner(
        Device(shape, decoder, pages, mirror, adapters),
        image,
        discard,
        graphs=graphs,
        buckets=decode_buckets(limits.max_sequences),
        max_tokens=limits.token_budget,
        forms=(*ALWAYS, Form.OWN) if device.type == "cuda" else ALWAYS,
    )
    return PagedParts(runner, adapters, arena, pages)


__all__ = ["PagedParts", "build_paged", "extras_bytes", "largest_pages", "page_layout", "paged_ledger"]
