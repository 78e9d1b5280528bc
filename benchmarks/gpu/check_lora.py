"""Routing, shrink and expand on the device against float64, and what they promise bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tests.kernels.lora_site import Site, site
from torch import Tensor

from gpu.bounds import LORA, of_bound, same_bits
from gpu.log import Log
from gpu.machine import Machine, captured
from gpu.sizes import LoraCase, Sizes
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.tuning.rows import Phase

_REFERENCE_ROWS = 40
"""The oracle is a loop on the CPU."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    for tokens, slots in sizes.routing:
        with log.trying(f"routing of {tokens} rows over {slots} slots"):
            _check_routing(machine, log, tokens, slots)
    for case in sizes.lora:
        made = None
        for dtype in machine.dtypes if case.every_dtype else machine.dtypes[:1]:
            for phase, tokens in case.tokens:
                name = f"{phase} K={case.k} N={'+'.join(map(str, case.widths))} {_short(dtype)} {case.extras}"
                with log.trying(name):
                    if made is None or made.site.dtype != dtype:
                        made = _Placed(machine, _site(case, sizes.ranks, dtype))
                    _check_site(made, log, name, phase, tokens)


def _check_routing(machine: Machine, log: Log, tokens: int, slots: int) -> None:
    """Against the obvious sort; every seventh row is a fault."""
    pick = random.Random(tokens)
    slot = [pick.randrange(-1, slots) for _ in range(tokens)]
    generation = torch.arange(slots, dtype=torch.int64) * 7 + 3
    expected = [int(generation[s]) + (at % 7 == 6) if s >= 0 else 5 for at, s in enumerate(slot)]
    phases: tuple[Phase, ...] = ("decode", "prefill")
    for phase in phases:
        routing = Routing.allocate(phase, tokens, slots, machine.device)
        for buffer in (routing.order, routing.tile, routing.slot, routing.fault, routing.head):
            buffer.fill_(-(2**30))
        wanted = torch.tensor(expected, dtype=torch.int64, device=machine.device)
        route(checked_slots(slot, slots).to(machine.device), wanted, generation.to(machine.device), routing)
        good = [s >= 0 and at % 7 != 6 for at, s in enumerate(slot)]
        order = sorted(range(tokens), key=lambda at: (slot[at] if good[at] else slots, at))
        tiles: list[list[int]] = []
        for place, at in enumerate(order):
            if not good[at]:
                break
            if tiles and tiles[-1][0] == slot[at] and tiles[-1][2] < routing.tile_rows:
                tiles[-1][2] += 1
            else:
                tiles.append([slot[at], place, 1])
        found = routing.tile[: int(routing.tiles)].tolist()
        fault = [int(s >= 0 and not ok) for s, ok in zip(slot, good, strict=True)]
        kept = [s if ok else -1 for s, ok in zip(slot, good, strict=True)]
        same = found == tiles and routing.order.tolist() == order
        same = same and routing.fault.tolist() == fault and routing.slot.tolist() == kept
        log.equal(f"routing {phase} of {tokens} rows over {slots} slots", same, "is not the sort by (slot, token)")


def _site(case: LoraCase, ranks: Sequence[int], dtype: torch.dtype) -> Site:
    """A slot for each rank; every fifth (slot, slice) has nothing there."""

    def rank_of(slot: int, s: int) -> int:
        return 0 if (slot + 3 * s) % 5 == 4 else ranks[(slot + s) % len(ranks)]

    blocks = -(-max(ranks) // 16)
    return site(
        case.k, case.widths, len(ranks), blocks, rank_of, dtype, shared=case.shared, extras=case.extras, seed=case.k
    )


class _Placed:
    """A site whose tables and arena lie on the machine's device; ``site`` is the CPU's, for the oracle."""

    def __init__(self, machine: Machine, made: Site) -> None:
        device = machine.device
        self.machine, self.site, self.device = machine, made, device
        self.arena = made.arena.to(device)
        tables, vectors = made.tables, made.vectors
        self.tables = LoraTables(*(one.to(device) for one in (tables.a_offset, tables.b_offset, tables.scale)))
        self.vectors = None
        if vectors is not None:
            bias = None if vectors.bias is None else vectors.bias.to(device)
            offsets = vectors.gain_offset.to(device), vectors.addend_offset.to(device)
            self.vectors = SiteVectors(vectors.vectors.to(device), *offsets, bias)
        self.generation = made.generation.to(device)

    def lora(self, phase: Phase) -> MultiLora:
        one = self.site
        shared = 1 if one.a_slices == 1 else None
        return MultiLora.of(phase, one.k, one.widths, one.blocks, one.dtype, self.device, a_slices=shared)

    def run(self, phase: Phase, slots: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        """A new y."""
        routing = Routing.allocate(phase, len(slots), self.site.slots, self.device)
        slot = checked_slots(slots, self.site.slots).to(self.device)
        route(slot, self.expected(slots), self.generation, routing)
        lora, out = self.lora(phase), y.clone()
        planes = torch.full_like(lora.planes(len(slots), self.device), float("nan"))
        lora(out, x, self.arena, self.tables, routing, planes, self.vectors)
        return out

    def expected(self, slots: Sequence[int]) -> Tensor:
        wanted = [int(self.site.generation[slot]) for slot in slots]
        return torch.tensor(wanted, dtype=torch.int64, device=self.device)


def _check_site(made: _Placed, log: Log, name: str, phase: Phase, tokens: int) -> None:
    one = made.site
    pick = random.Random(tokens)
    slots = [pick.randrange(-1, one.slots) for _ in range(tokens)]
    x, y = one.batch(tokens)
    moved_x, moved_y = x.to(made.device), y.to(made.device)
    out = made.run(phase, slots, moved_x, moved_y)
    checked = sorted(pick.sample(range(tokens), min(tokens, _REFERENCE_ROWS)))
    want = one.reference([slots[at] for at in checked], x[checked], y[checked])
    log.check(name, of_bound(out[checked], want, LORA))
    base = [at for at, slot in enumerate(slots) if slot < 0]
    log.equal(f"{name}: base rows keep their bits", same_bits(out[base], moved_y[base]))
    log.equal(f"{name}: two runs", same_bits(made.run(phase, slots, moved_x, moved_y), out))
    alone = checked[:: max(len(checked) // 4, 1)]
    parts = [made.run(phase, [slots[at]], moved_x[at : at + 1], moved_y[at : at + 1]) for at in alone]
    log.equal(f"{name}: alone = in the batch", same_bits(torch.cat(parts), out[alone]))
    order = pick.sample(range(tokens), tokens)
    turned = made.run(phase, [slots[at] for at in order], moved_x[order], moved_y[order])
    log.equal(f"{name}: in any order", same_bits(turned, out[order]))
    _check_graph(made, log, name, phase, slots, x, y)


def _check_graph(made: _Placed, log: Log, name: str, phase: Phase, slots: Sequence[int], x: Tensor, y: Tensor) -> None:
    """One graph, three fills of its buffers: other slots, other tables (ranks, offsets, scales), base alone."""
    device, one = made.device, made.site
    routing = Routing.allocate(phase, len(slots), one.slots, device)
    slot = torch.full((len(slots),), -1, dtype=torch.int32, device=device)
    expected = torch.zeros(len(slots), dtype=torch.int64, device=device)
    lora, out = made.lora(phase), torch.empty_like(y, device=device)
    planes = torch.full_like(lora.planes(len(slots), device), float("nan"))
    moved_x, moved_y = x.to(device), y.to(device)

    def body() -> tuple[Tensor, ...]:
        out.copy_(moved_y)
        route(slot, expected, made.generation, routing)
        lora(out, moved_x, made.arena, made.tables, routing, planes, made.vectors)
        return (out,)

    graph = captured(made.machine, body)
    before = [one.clone() for one in (made.tables.a_offset, made.tables.b_offset, made.tables.scale)]
    try:
        for kind in ("slots", "tables", "base"):
            now = [-1] * len(slots) if kind == "base" else [*slots[1:], slots[0]]
            if kind == "tables":
                for table, old in zip(
                    (made.tables.a_offset, made.tables.b_offset, made.tables.scale), before, strict=True
                ):
                    table.copy_(old.flip(0))
            slot.copy_(checked_slots(now, one.slots))
            expected.copy_(made.expected(now))
            found = graph.run()[0].clone()
            want = made.run(phase, now, moved_x, moved_y)
            log.equal(f"{name}: graph = eager, {kind} changed", same_bits(found, want))
    finally:
        for table, old in zip((made.tables.a_offset, made.tables.b_offset, made.tables.scale), before, strict=True):
            table.copy_(old)


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]


__all__ = ["run"]
