"""Routing, shrink and expand on the device against float64, and what they promise bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tests.kernels.lora_site import Site, site
from torch import Tensor

from gpu.bounds import LORA, of_bound, same_bits
from gpu.log import Log
from gpu.lora_cases import LoraBatch, LoraCase
from gpu.lora_placed import Placed, beside, moved
from gpu.machine import Machine, captured
from gpu.sizes import Sizes
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.tuning.rows import Phase

_ALONE = 5
"""Rows of a batch that are run once more without the others."""
_LOGITS = 100.0
"""Are added to a head's y: where it is rounded to 16 bits, more than the bound of what adapters add to it is lost. In
float32 less is, even of a row to which next to nothing is added."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    for tokens, slots in sizes.routing:
        with log.trying(f"routing of {tokens} rows over {slots} slots"):
            _check_routing(machine, log, tokens, slots)
    for case in sizes.lora:
        made = None
        for dtype in machine.dtypes if case.every_dtype else machine.dtypes[:1]:
            for batch in case.batches:
                name = f"{batch.phase} {case.name} {_short(dtype)}, {batch.name}"
                with log.trying(name):
                    if made is None or made.site.dtype != dtype:
                        made = Placed.of(machine, _site(case, sizes.ranks, dtype))
                    _check_site(made, log, name, batch, case.wide)


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


def _check_site(whole: Placed, log: Log, name: str, batch: LoraBatch, wide: bool) -> None:
    made = whole if batch.scale == 1 else whole.scaled(batch.scale)
    phase, tokens, slots = batch.phase, batch.tokens, batch.slots(made.site.slots)
    x, y = (moved(one, made.device) for one in _batch(made, batch, wide))
    out = made.run(phase, slots, x, y)
    want = made.oracle(slots, x, y)
    if wide:  # what was added to y, which would be small beside it
        log.check(name, of_bound(out.double() - y.double(), want - y.double(), LORA, made.site.dtype))
    else:
        log.check(name, of_bound(out, want, LORA))
    base = [at for at, slot in enumerate(slots) if slot < 0]
    log.equal(f"{name}: base rows keep their bits", same_bits(out[base], y[base]))
    log.equal(f"{name}: nothing else is written", beside(out) == beside(y), f"{beside(out)} of {beside(y)} NaN")
    log.equal(f"{name}: two runs", same_bits(made.run(phase, slots, x, y), out))
    pick = random.Random(tokens)
    alone = sorted(pick.sample(range(tokens), min(tokens, _ALONE)))
    parts = [made.run(phase, [slots[at]], x[at : at + 1], y[at : at + 1]) for at in alone]
    log.equal(f"{name}: alone = in the batch", same_bits(torch.cat(parts), out[alone]))
    order = pick.sample(range(tokens), tokens)
    turned = made.run(phase, [slots[at] for at in order], x[order], y[order])
    log.equal(f"{name}: in any order", same_bits(turned, out[order]))
    _check_graph(made, log, name, phase, slots, x, y)


def _batch(made: Placed, batch: LoraBatch, wide: bool) -> tuple[Tensor, Tensor]:
    """x and y, on the CPU."""
    x, y = made.site.batch(batch.tokens, sliced=batch.sliced, size=batch.size, wide=wide)
    return x, y.add_(_LOGITS) if wide else y


def _check_graph(made: Placed, log: Log, name: str, phase: Phase, slots: Sequence[int], x: Tensor, y: Tensor) -> None:
    """One graph, three fills of its buffers: other slots, other tables (ranks, offsets, scales), base alone."""
    device, one = made.device, made.site
    routing = Routing.allocate(phase, len(slots), one.slots, device)
    slot = torch.full((len(slots),), -1, dtype=torch.int32, device=device)
    expected = torch.zeros(len(slots), dtype=torch.int64, device=device)
    lora, out, apart = made.lora(phase), moved(y, device), moved(y, device)
    planes = torch.full_like(lora.planes(len(slots), device), float("nan"))

    def body() -> tuple[Tensor, ...]:
        out.copy_(y)
        route(slot, expected, made.generation, routing)
        lora(out, x, one.arena, made.tables, routing, planes, one.vectors)
        return (out,)

    def in_turn() -> tuple[Tensor, ...]:
        apart.copy_(y)
        lora.in_turn()(apart, x, one.arena, made.tables, routing, planes, one.vectors)
        return (apart,)

    graph, plain = (captured(made.machine, each) for each in (body, in_turn))
    others = [slot if slot < 0 else (slot + 1) % one.slots for slot in [*slots[1:], slots[0]]]
    for kind, now in (("slots", others), ("tables", others), ("base", [-1] * len(slots))):
        if kind == "tables":
            made.turn_tables()
        try:
            slot.copy_(checked_slots(now, one.slots))
            expected.copy_(made.expected(now))
            found = graph.run()[0].clone()
            if lora.shrink.tiles.launch.dependent:
                log.equal(f"{name}: dependent launches = one after the other, {kind}", same_bits(plain.run()[0], found))
            want = made.run(phase, now, x, y)
        finally:
            if kind == "tables":
                made.turn_tables()
        log.equal(f"{name}: graph = eager, {kind} changed", same_bits(found, want))


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]


__all__ = ["run"]
