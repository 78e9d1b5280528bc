"""What LoRA adds to a layer: graphs of many layers, whose weights differ so that L2 is cold, with it and without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu.ceilings import Ceilings, measure
from gpu.log import Figure, Log
from gpu.machine import Machine, captured, fill_with_noise, interleaved
from gpu.sizes import Row, Sizes
from lorry_kernels.aot.build import ModelShape, SiteShape
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing, route
from lorry_kernels.tuning.rows import Phase

_SHARE = 0.7
"""Of the free memory at most."""
_PREFILL_LAYERS = 16


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    ceilings = measure(machine, sizes)
    log.note(f"{machine.name}: {ceilings.to_json()}")
    layers = _layers(machine, sizes)
    if layers < sizes.layers:
        log.note(f"{layers} layers have room here in place of {sizes.layers}")
    with torch.inference_mode():
        weights = _weights(machine, sizes.shape, layers)
        for row in sizes.lora_rows:
            name = f"r{row.rank}, {row.adapters} adapters in {row.tokens} rows"
            if not row.adapters:
                name = f"{row.tokens} base rows in a step with LoRA"
            name += f", pool of r{row.max_rank}" if row.pool else ""
            with log.trying(name):
                _decode_figure(machine, log, name, weights, row, sizes, ceilings)
            gc.collect()  # the last row's graphs and arena go before the next one's come
        del weights[_PREFILL_LAYERS:]
        for adapters in sizes.prefill_adapters:
            name = f"prefill of {sizes.prefill_tokens}, {adapters} adapters r16"
            with log.trying(name):
                _prefill_figure(machine, log, name, weights, adapters, sizes, ceilings)
            gc.collect()


def _layers(machine: Machine, sizes: Sizes) -> int:
    """As many as the largest row leaves room for."""
    base = sum(site.k * sum(site.slices) for site in sizes.shape.sites)
    largest = max(row.adapters * row.rank for row in sizes.lora_rows) * _rank_elements(sizes.shape)
    return max(1, min(sizes.layers, int(machine.memory_bytes * _SHARE / (2 * (base + largest)))))


def _rank_elements(shape: ModelShape) -> int:
    """Of one rank at all modules of a layer."""
    return sum(len(site.slices) * site.k + sum(site.slices) for site in shape.sites)


def _weights(machine: Machine, shape: ModelShape, layers: int) -> list[list[Tensor]]:
    """``[N, K]`` by layer and site."""

    def made(site: SiteShape) -> Tensor:
        size = (sum(site.slices), site.k)
        return torch.empty(size, dtype=machine.dtypes[0], device=machine.device).normal_(0, site.k**-0.5)

    return [[made(site) for site in shape.sites] for _ in range(layers)]


@dataclass(frozen=True, slots=True)
class _Site:
    lora: MultiLora
    planes: Tensor
    x: Tensor


class _Stack:
    """Both graphs' bodies, over the same inputs and weights."""

    def __init__(
        self, machine: Machine, shape: ModelShape, weights: list[list[Tensor]], phase: Phase, tokens: int, row: Row
    ) -> None:
        self.machine, self.shape, self.row, self.weights = machine, shape, row, weights
        device, dtype = machine.device, machine.dtypes[0]
        self.slots, blocks = max(row.adapters, 1), row.max_rank // 16
        self.sites = []
        for site in shape.sites:
            lora = MultiLora.of(phase, site.k, site.slices, blocks, dtype, device)
            x = torch.empty(tokens, site.k, dtype=dtype, device=device).normal_()
            self.sites.append(_Site(lora, lora.planes(tokens, device), x))
        self.tables, elements = self._tables(blocks)
        self.arena = torch.empty(elements, dtype=dtype, device=device)
        fill_with_noise(self.arena, 0.02)
        self.vectors = torch.zeros(32, device=device)
        self.none = torch.full((self.slots, max(len(site.slices) for site in shape.sites)), -1, device=device)
        self.routing = Routing.allocate(phase, tokens, self.slots, device)
        kinds = torch.arange(tokens, dtype=torch.int32, device=device)
        self.slot = (kinds * row.adapters // tokens).to(torch.int32) if row.adapters else torch.full_like(kinds, -1)
        self.expected = torch.zeros(tokens, dtype=torch.int64, device=device)
        self.generation = torch.zeros(self.slots, dtype=torch.int64, device=device)

    def _tables(self, blocks: int) -> tuple[list[list[LoraTables]], int]:
        """Chunks one after the other, adapter by adapter within a layer's site."""
        device, used, end = self.machine.device, self.row.rank // 16, 0
        found = []
        for _ in self.weights:
            layer = []
            for site in self.shape.sites:
                sizes = [*[16 * site.k] * len(site.slices), *[16 * n for n in site.slices]]
                padded = [-(-size // 64) * 64 for size in sizes]
                each = sum(padded) * used
                table = torch.full((self.slots, len(sizes), blocks), -1, dtype=torch.int64)
                slot = torch.arange(self.slots, dtype=torch.int64) * each + end
                before = 0
                for column, size in enumerate(padded):
                    for block in range(used):
                        table[:, column, block] = slot + before
                        before += size
                end += each * self.slots
                moved, count = table.to(device), len(site.slices)
                scale = torch.full((self.slots, count), 0.5, device=device)
                layer.append(LoraTables(moved[:, :count], moved[:, count:], scale))
            found.append(layer)
        return found, end

    def base(self) -> tuple[Tensor, ...]:
        y = self.arena
        for layer in self.weights:
            for site, weight in zip(self.sites, layer, strict=True):
                y = F.linear(site.x, weight)
        return (y,)

    def with_lora(self, in_turn: bool = False) -> tuple[Tensor, ...]:
        """As the engine calls it: routed once, with the tables of vectors, all empty. ``in_turn``: without dependent
        launches."""
        route(self.slot, self.expected, self.generation, self.routing)
        y = self.arena
        for layer, tables in zip(self.weights, self.tables, strict=True):
            for site, weight, table in zip(self.sites, layer, tables, strict=True):
                y = F.linear(site.x, weight)
                none = self.none[:, : table.scale.shape[1]]
                vectors = SiteVectors(self.vectors, none, none)
                lora = site.lora.in_turn() if in_turn else site.lora
                lora(y, site.x, self.arena, table, self.routing, site.planes, vectors)
        return (y,)

    def microseconds(self, rounds: int) -> tuple[float, float, float]:
        """Medians of one layer: (base, what LoRA adds, what it adds without dependent launches)."""
        bodies: dict[str, Callable[[], tuple[Tensor, ...]]] = {
            "base": self.base,
            "lora": self.with_lora,
            "in turn": partial(self.with_lora, in_turn=True),
        }
        graphs = {name: captured(self.machine, body) for name, body in bodies.items()}
        found = interleaved(self.machine, {name: graph.run for name, graph in graphs.items()}, rounds)
        layers = len(self.weights)
        base, lora, in_turn = (found[name].median / layers for name in bodies)
        return base, lora - base, in_turn - base

    @property
    def lora_bytes(self) -> int:
        """Of one layer's factors that the batch reads."""
        return self.row.adapters * self.row.rank * _rank_elements(self.shape) * self.arena.element_size()

    @property
    def base_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights[0])


def _decode_figure(
    machine: Machine, log: Log, name: str, weights: list[list[Tensor]], row: Row, sizes: Sizes, ceilings: Ceilings
) -> None:
    stack = _Stack(machine, sizes.shape, weights, "decode", row.tokens, row)
    base, added, in_turn = stack.microseconds(sizes.rounds)
    floor = ceilings.microseconds(stack.lora_bytes)
    base_floor = ceilings.microseconds(stack.base_bytes)
    wanted, met = "", None
    if row.most_us:
        wanted, met = f"<= {row.most_us:.0f} us", added <= row.most_us
    elif row.most_of_floor:
        wanted, met = f"<= {row.most_of_floor:g}x", added <= row.most_of_floor * floor
    more = {"floor_us": floor, "base_us": base, "base_of_floor": base / base_floor, "step_ratio": base / (base + added)}
    more["in_turn_us"] = in_turn
    beside = f"floor {floor:.2f} us" if floor else f"base {base:.1f} us"
    log.figure(Figure(f"added a layer: {name}", added, "us", beside, added / (floor or base), wanted, met, more))


def _prefill_figure(
    machine: Machine, log: Log, name: str, weights: list[list[Tensor]], adapters: int, sizes: Sizes, ceilings: Ceilings
) -> None:
    """The floor is reading x, and reading and writing y."""
    row = Row(16, adapters, rows=sizes.prefill_tokens)
    stack = _Stack(machine, sizes.shape, weights, "prefill", sizes.prefill_tokens, row)
    base, added, in_turn = stack.microseconds(max(sizes.rounds // 2, 1))
    shape, itemsize = stack.shape, stack.arena.element_size()
    moved = sum(site.k + 2 * sum(site.slices) for site in shape.sites) * sizes.prefill_tokens * itemsize
    floor = ceilings.microseconds(moved)
    flops = 2 * sum(site.k * sum(site.slices) for site in shape.sites) * sizes.prefill_tokens
    most = sizes.targets.get("prefill lora", 0.0)
    wanted = f"<= {most:g}x" if most else ""
    more = {"floor_us": floor, "base_us": base, "base_of_matmul": flops / base * 1e6 / ceilings.flop_s}
    more["in_turn_us"] = in_turn
    met = added <= most * floor if most else None
    log.figure(Figure(f"added a layer: {name}", added, "us", f"floor {floor:.0f} us", added / floor, wanted, met, more))


__all__ = ["run"]
