"""What is timed: each op on the sites and heads of a model, with its reference. Imports torch and Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from lorry_kernels.aot.build import ModelShape, SiteShape
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.expand import ExpandPlan, expand
from lorry_kernels.ops.launch import architecture
from lorry_kernels.ops.lora_tiles import ALIGNMENT, RANKS
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import PrefillPlan, paged_prefill
from lorry_kernels.ops.routing import Routing, route
from lorry_kernels.ops.shrink import ShrinkPlan, shrink
from lorry_kernels.reference.attention import paged_attention_reference
from lorry_kernels.reference.multi_lora import multi_lora_reference
from lorry_kernels.tuning.rows import Phase, rank_bucket
from lorry_kernels.tuning.sweep import Task
from lorry_kernels.tuning.table import lookup

_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
"""Of the largest value of the reference."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run. ``slots`` adapters in ``decode_rows`` rows, a quarter of them in ``prefill_rows``; contexts of
    ``keys`` tokens; ``checked`` rows are held against the reference, which is a loop."""

    decode_rows: int = 32
    prefill_rows: int = 2048
    slots: int = 32
    keys: int = 2048
    checked: int = 4
    page: int = 16
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class _Site:
    """A site's adapters, input and routing, made when first asked for."""

    site: SiteShape
    phase: Phase
    blocks: int
    size: Size
    device: torch.device

    @property
    def tokens(self) -> int:
        return self.size.decode_rows if self.phase == "decode" else self.size.prefill_rows

    @cached_property
    def slots(self) -> Tensor:
        """int32 ``[T]``: all different in decode, runs of a few in prefill."""
        count = self.size.slots if self.phase == "decode" else max(1, self.size.slots // 4)
        rows = torch.arange(self.tokens, dtype=torch.int32)
        return rows % count if self.phase == "decode" else rows * count // self.tokens

    @cached_property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """arena, a_offset and b_offset: chunks one after the other."""
        step = ALIGNMENT // self.size.dtype.itemsize
        sizes = [*[RANKS * self.site.k] * len(self.site.slices), *[RANKS * width for width in self.site.slices]]
        places: list[list[list[int]]] = []
        end = 0
        for _ in range(self.size.slots):
            rows = []
            for one in sizes:
                padded = -(-one // step) * step
                rows.append([end + block * padded for block in range(self.blocks)])
                end += self.blocks * padded
            places.append(rows)
        table = torch.tensor(places, dtype=torch.int64)
        generator = torch.Generator(self.device).manual_seed(1)
        arena = torch.randn(end, dtype=self.size.dtype, device=self.device, generator=generator).mul_(0.05)
        slices = len(self.site.slices)
        return arena, table[:, :slices].contiguous().to(self.device), table[:, slices:].contiguous().to(self.device)

    @cached_property
    def x(self) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(2)
        return torch.randn(self.tokens, self.site.k, dtype=self.size.dtype, device=self.device, generator=generator)

    @cached_property
    def scale(self) -> Tensor:
        return torch.full((self.size.slots, len(self.site.slices)), 0.5, device=self.device)

    @cached_property
    def routing(self) -> Routing:
        routing = Routing.allocate(self.phase, self.tokens, self.size.slots, self.device)
        generation = torch.zeros(self.size.slots, dtype=torch.int64, device=self.device)
        route(self.slots.to(self.device), torch.zeros_like(generation)[self.slots.long()], generation, routing)
        return routing

    @cached_property
    def checked(self) -> Tensor:
        """Rows that are compared, the first and the last among them."""
        return torch.linspace(0, self.tokens - 1, self.size.checked).long()

    @cached_property
    def expected(self) -> Tensor:
        arena, a_offset, b_offset = (table.cpu() for table in self.tables)
        zeros = torch.zeros(len(self.checked), sum(self.site.slices), dtype=self.size.dtype)
        x, slots = self.x.cpu()[self.checked], self.slots[self.checked].tolist()
        return multi_lora_reference(zeros, x, slots, arena, a_offset, b_offset, self.scale.cpu(), self.site.slices)


class _LoraTrial:
    def __init__(self, data: _Site, op: str) -> None:
        arch, slices = architecture(data.device), data.site.slices
        self._data, self._op = data, op
        self._first = ShrinkPlan.of(data.phase, arch, data.site.k, len(slices), data.blocks, data.size.dtype)
        split = self._first.tiles.split
        self._second = ExpandPlan.of(data.phase, arch, slices, data.blocks, split, data.size.dtype, data.device)
        self._planes = self._first.planes(data.tokens, data.device)
        self._y = torch.zeros(data.tokens, sum(slices), dtype=data.size.dtype, device=data.device)

    def run(self) -> None:
        if self._op == "shrink":
            self._shrink()
        else:
            self._expand()

    def error(self) -> float:
        self._y.zero_()
        self._shrink()
        self._expand()
        return _error(self._y.cpu()[self._data.checked], self._data.expected, self._data.size.dtype)

    def _shrink(self) -> None:
        arena, a_offset, _ = self._data.tables
        shrink(self._data.x, arena, a_offset, self._data.routing, self._planes, self._first)

    def _expand(self) -> None:
        arena, _, b_offset = self._data.tables
        expand(self._y, self._planes, arena, b_offset, self._data.scale, self._data.routing, self._second)


def lora_tasks(
    shape: ModelShape, size: Size, device: torch.device, pools: tuple[int, ...] = (1, 4, 16)
) -> Iterator[Task]:
    """Shrink and expand of every site of ``shape``, both phases, for pools of so many blocks of 16 ranks."""
    arch = architecture(device)
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for site in shape.sites:
        for phase in phases:
            for blocks in pools:
                data = _Site(site, phase, blocks, size, device)
                ranks, narrowest = len(site.slices) * blocks * RANKS, min(site.slices)
                yield Task(
                    "shrink",
                    phase,
                    rank_bucket(ranks),
                    site.k,
                    None,
                    lookup(arch, "shrink", site.k, 0, ranks, phase),
                    partial(_LoraTrial, data, "shrink"),
                )
                yield Task(
                    "expand",
                    phase,
                    rank_bucket(blocks * RANKS),
                    None,
                    narrowest,
                    lookup(arch, "expand", 0, narrowest, blocks * RANKS, phase),
                    partial(_LoraTrial, data, "expand"),
                )


@dataclass(frozen=True)
class _Heads:
    """Pages of a batch, shuffled, and its queries."""

    shape: ModelShape
    phase: Phase
    size: Size
    device: torch.device

    @property
    def sequences(self) -> int:
        return self.size.decode_rows if self.phase == "decode" else 1

    @property
    def tokens(self) -> int:
        return self.size.decode_rows if self.phase == "decode" else min(self.size.prefill_rows, self.size.keys)

    @cached_property
    def pages(self) -> tuple[Tensor, Tensor, Tensor]:
        """k_pages, v_pages and the block table ``[sequences, pages each]``."""
        each = self.size.keys // self.size.page
        generator = torch.Generator(self.device).manual_seed(3)
        heads, dim = self.shape.shard_kv_heads, self.shape.head_dim
        both = torch.randn(
            2, self.sequences * each, heads, self.size.page, dim, device=self.device, generator=generator
        ).to(self.size.dtype)
        order = torch.randperm(self.sequences * each, generator=torch.Generator().manual_seed(4))
        return both[0], both[1], order.view(self.sequences, each).to(self.device, torch.int32)

    @cached_property
    def q(self) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(5)
        size = (self.tokens, self.shape.shard_heads, self.shape.head_dim)
        return torch.randn(size, device=self.device, generator=generator).to(self.size.dtype)

    @cached_property
    def checked(self) -> list[int]:
        return sorted({int(row) for row in torch.linspace(0, self.tokens - 1, self.size.checked)})

    @cached_property
    def expected(self) -> Tensor:
        keys, values, table = (part.cpu() for part in self.pages)
        q, rows = self.q.cpu(), []
        for row in self.checked:
            sequence = row if self.phase == "decode" else 0
            start = self.size.keys - 1 if self.phase == "decode" else self.size.keys - self.tokens + row
            one = q[row : row + 1]
            rows.append(paged_attention_reference(one, keys, values, table[sequence].tolist(), start))
        return torch.cat(rows)


class _DecodeTrial:
    def __init__(self, data: _Heads) -> None:
        keys, _, table = data.pages
        heads, dim = data.q.shape[1:]
        self._data = data
        self._plan = DecodePlan.allocate(data.sequences, table.shape[1], keys.shape[2], device=data.device)
        self._plan.fill(torch.full((data.sequences,), data.size.keys, dtype=torch.int32, device=data.device))
        self._workspace = DecodeWorkspace.allocate(self._plan.capacity, heads, dim, device=data.device)
        self._out = torch.empty_like(data.q)

    def run(self) -> None:
        keys, values, table = self._data.pages
        paged_decode(self._data.q, keys, values, table, self._plan, self._workspace, out=self._out)

    def error(self) -> float:
        self.run()
        return _error(self._out.cpu()[self._data.checked], self._data.expected, self._data.size.dtype)


class _PrefillTrial:
    def __init__(self, data: _Heads) -> None:
        shape, device = data.shape, data.device
        self._data = data
        self._plan = PrefillPlan.allocate(
            data.tokens, 1, shape.shard_heads, shape.shard_kv_heads, shape.head_dim, device=device
        )
        starts = torch.tensor([0, data.tokens], dtype=torch.int32, device=device)
        self._plan.fill(starts, torch.tensor([data.size.keys], dtype=torch.int32, device=device))
        self._out = torch.empty_like(data.q)

    def run(self) -> None:
        keys, values, table = self._data.pages
        paged_prefill(self._data.q, keys, values, table, self._plan, out=self._out)

    def error(self) -> float:
        self.run()
        return _error(self._out.cpu()[self._data.checked], self._data.expected, self._data.size.dtype)


def attention_tasks(shape: ModelShape, size: Size, device: torch.device) -> Iterator[Task]:
    """Decode and prefill at the head size of ``shape``."""
    arch, dim = architecture(device), shape.head_dim
    decode, prefill = _Heads(shape, "decode", size, device), _Heads(shape, "prefill", size, device)
    stands = lookup(arch, "attention", dim, 0, 0, "decode")
    yield Task("attention", "decode", 0, dim, None, stands, lambda: _DecodeTrial(decode))
    stands = lookup(arch, "attention", dim, 0, 0, "prefill")
    yield Task("attention", "prefill", 0, dim, None, stands, lambda: _PrefillTrial(prefill))


def _error(found: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Over the tolerance."""
    limit = _TOLERANCE[dtype] * float(expected.abs().max())
    return float((found.to(torch.float64) - expected).abs().max()) / limit


__all__ = ["Size", "attention_tasks", "lora_tasks"]
